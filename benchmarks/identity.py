"""Who is it, and does it live: the two questions that are asked all day."""

from __future__ import annotations

import os

from benchmarks.figures import Figure, missing, ratio
from benchmarks.peers import NO_COMPILER, NO_PSUTIL, program, psutil_is_there, sample_c
from benchmarks.sampling import in_turns, timed

VARIABLES = 40
CALLS = 10
"""In a row, of which the mean is one sample: C too does its reads one after the other."""


def checks(quick: bool) -> list[Figure]:
    """`prove(identity)` and `child.is_running()`, against psutil and against two reads from C."""
    import birthmark

    rounds = 30 if quick else 100
    environ = {"PATH": os.defpath, **{f"VARIABLE_{number}": "x" * 60 for number in range(VARIABLES)}}
    with birthmark.Spawner() as spawner:
        child = spawner.spawn_owned_supervised(
            birthmark.mark_child(
                birthmark.Command("/bin/sleep", "1000", env=environ),
                birthmark.ChildKind.MCP,
                "bench",
                installation=birthmark.open_installation().id,
            )
        )
        identity = child.identity
        if birthmark.prove(identity).verdict is not birthmark.Verdict.SAME:
            raise RuntimeError(f"our own child is not proven: {birthmark.prove(identity)}")
        figures = []
        look = program("look")
        variants = {
            "prove": timed(lambda: birthmark.prove(identity), calls=CALLS),
            "running": timed(child.is_running, calls=CALLS),
        }
        if psutil_is_there():
            import psutil

            def who() -> None:
                process = psutil.Process(child.pid)
                process.create_time()
                process.environ()

            variants["psutil"] = timed(who, calls=CALLS)
            variants["status"] = timed(lambda: psutil.Process(child.pid).status(), calls=CALLS)
        ours: dict[str, list[int]] = {name: [] for name in variants}
        c: list[int] = []
        for _ in range(5):
            for name, samples in in_turns(variants, rounds, warm=20).items():
                ours[name] += samples
            if look is not None:
                c += sample_c(look, str(rounds), str(child.pid))
    against, name = "psutil create_time + environ", "identity check"
    figures.append(
        ratio(name, ours["prove"], against, ours["psutil"], 0.3)
        if "psutil" in ours
        else missing(name, against, 0.3, NO_PSUTIL)
    )
    against = "C, the two reads"
    figures.append(
        ratio(name, ours["prove"], against, c, 5.0) if c else missing(name, against, 5.0, NO_COMPILER)
    )
    against, name = "psutil status", "liveness with a held pidfd"
    figures.append(
        ratio(name, ours["running"], against, ours["status"], 0.05)
        if "status" in ours
        else missing(name, against, 0.05, NO_PSUTIL)
    )
    return figures
