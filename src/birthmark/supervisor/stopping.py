"""Stop one birth: the whole set, then the exit status, then the record, then a look at its port."""

from __future__ import annotations

from functools import partial

import anyio
import anyio.to_thread

from birthmark.children.control import stop_set
from birthmark.children.ports import PortState
from birthmark.children.stopping import Hurry
from birthmark.core.outcomes import ExitStatus, Receipt
from birthmark.errors import RegistryError
from birthmark.supervisor.house import House
from birthmark.supervisor.leases import held_by, look_at
from birthmark.supervisor.running import Running


async def end_birth(
    house: House, running: Running, *, asked_by: str, hurry: Hurry | None
) -> tuple[Receipt, ExitStatus]:
    """End all of a birth, whether its leader lives or left by itself, and write its end down.

    The leader is reaped last: until then its number, and its group's, cannot be given away.

    Raises:
        StopTimedOut: Survivors; the birth stays open in the registry, and is to be looked at again.
    """
    receipt = await stop_set(
        running.child.identity,
        running.spec.stop,
        asked_by=asked_by,
        child=running.child,
        close_stdin=running.close_stdin,
        hurry=hurry,
    )
    status = running.child.poll() or ExitStatus()
    house.orphans.forget(running.child.pid)
    await anyio.to_thread.run_sync(running.finish_output)
    running.child.close()
    await _write_end(house, running, status, asked_by)
    await _look_at_port(running, receipt)
    return receipt, status


async def _write_end(house: House, running: Running, status: ExitStatus, why: str) -> None:
    ended = partial(
        house.registry.ended,
        running.birth,
        house.clock.now(),
        epoch=house.epoch,
        status=status,
        why=why,
    )
    try:
        await house.write(ended)
    except RegistryError as err:
        # It is gone all the same. The row says *born*, and the next boot proves that it is gone.
        house.say(f"{running.spec.name}: its end could not be written down: {err}")


async def _look_at_port(running: Running, receipt: Receipt) -> None:
    port = running.spec.port
    if port is None:
        return
    answer = await anyio.to_thread.run_sync(look_at, port)
    if answer.state is PortState.NOBODY:
        receipt.notes.append(f"port {port} is free again")
    else:
        receipt.notes.append(str(held_by(answer)))
