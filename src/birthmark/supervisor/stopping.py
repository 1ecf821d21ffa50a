"""Stop one birth: the whole set, then the exit status, then the record, then a look at its port."""

from __future__ import annotations

from functools import partial

import anyio.to_thread

from birthmark.children.control import stop_set
from birthmark.children.waiting import Hurry
from birthmark.core.outcomes import ExitStatus, Receipt
from birthmark.errors import RegistryError, StopTimedOut
from birthmark.supervisor.house import House
from birthmark.supervisor.leases import held_by, look_at
from birthmark.supervisor.records import hide_secrets
from birthmark.supervisor.running import Running


async def end_birth(
    house: House, running: Running, *, asked_by: str, hurry: Hurry | None
) -> tuple[Receipt, ExitStatus]:
    """End all of a birth, whether its leader lives or left by itself, and write its end down.

    The leader is reaped last: until then its number, and its group's, cannot be given away.

    Raises:
        StopTimedOut: Survivors; the birth stays open in the registry, and is to be looked at again.
    """
    try:
        receipt = await stop_set(
            running.child.identity,
            running.spec.stop,
            asked_by=asked_by,
            child=running.child,
            close_stdin=running.close_stdin,
            hurry=hurry,
        )
    except StopTimedOut as err:
        hide_secrets(running.spec, err.receipt)
        raise
    status = running.child.poll() or ExitStatus()
    house.orphans.forget(running.child.pid)
    await anyio.to_thread.run_sync(running.finish_output)
    running.child.close()
    await _write_end(house, running, status, asked_by)
    hide_secrets(running.spec, receipt)
    if running.spec.port is not None:
        await anyio.to_thread.run_sync(_look_at_port, house, running.spec.port, receipt)
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


def _look_at_port(house: House, port: int, receipt: Receipt) -> None:
    held = held_by(house, look_at(port))
    receipt.notes.append(f"port {port} is free again" if held is None else str(held))
