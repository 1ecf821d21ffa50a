"""From SIGTERM to knowing that it is gone: an obedient child, under asyncio."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from benchmarks.figures import Figure, missing, ratio
from benchmarks.peers import NO_COMPILER, program, sample_c
from benchmarks.sampling import now

POLLING_S = 0.025
GRACE_S = 5.0


def stops(quick: bool) -> list[Figure]:
    """`terminate_gracefully` against C's poll on the pidfd, and against looking every 25 ms."""
    name = "SIGTERM to known gone"
    against_c, against_polling = "C, poll on the pidfd", "polling every 25 ms"
    obey, end = program("obey"), program("end")
    if obey is None or end is None:
        return [missing(name, against_c, 2.5, NO_COMPILER), missing(name, against_polling, 0.01, NO_COMPILER)]
    ours, polling, c = asyncio.run(_in_turns(obey, end, 6 if quick else 30))
    return [
        ratio(name, ours, against_c, c, 2.5),
        ratio(name, ours, against_polling, polling, 0.01),
    ]


async def _in_turns(obey: str, end: str, rounds: int) -> tuple[list[int], list[int], list[int]]:
    import birthmark

    installation = birthmark.open_installation().id
    spawner = birthmark.Spawner()

    def start() -> birthmark.Child:
        command = birthmark.Command(obey, stdout=birthmark.Stdio.PIPE)
        child = spawner.spawn_owned_supervised(
            birthmark.mark_child(command, birthmark.ChildKind.MCP, "bench", installation=installation)
        )
        assert child.stdout is not None
        child.stdout.read(1)
        time.sleep(0.001)  # from its byte to its wait, as C's end does
        return child

    def reap(child: birthmark.Child) -> None:
        child.wait()
        child.close()

    async def ours_once() -> int:
        child = start()
        began = now()
        outcome = await birthmark.terminate_gracefully(child.pid, GRACE_S)
        took = now() - began
        if outcome is not birthmark.Termination.EXITED:
            raise RuntimeError(f"the obedient child was {outcome}")
        reap(child)
        return took

    def polling_once() -> int:
        child = start()
        began = now()
        os.kill(child.pid, signal.SIGTERM)
        while not _is_zombie(child.pid):
            time.sleep(POLLING_S)
        took = now() - began
        reap(child)
        return took

    ours: list[int] = []
    polling: list[int] = []
    c: list[int] = []
    await ours_once()
    for _ in range(rounds):
        for _ in range(5):
            ours.append(await ours_once())
        c += sample_c(end, "5", obey)
        polling.append(polling_once())
    spawner.close()
    return ours, polling, c


def _is_zombie(pid: int) -> bool:
    # The cheapest look there is: a slower first one lets the child end meanwhile, and measures luck.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
