"""Spawning: against a plain Popen, in a host of 50 MB, of 2 GB, and beside eight busy threads."""

from __future__ import annotations

from benchmarks.bearer import Bearer, Pairs
from benchmarks.figures import Figure, missing, ratio
from benchmarks.peers import NO_COMPILER, program
from benchmarks.sampling import p99

SMALL_MB = 50
LARGE_MB = 2048
THREADS = 8


def idle(quick: bool) -> list[Figure]:
    """Parent death armed and race-free, against a Popen that arms nothing."""
    returns, runs = "spawn: call returns", "spawn: target's main() runs"
    stamp = program("stamp")
    if stamp is None:
        return [missing(returns, "Popen", 1.0, NO_COMPILER), missing(runs, "Popen", 1.25, NO_COMPILER)]
    with Bearer(SMALL_MB, stamp) as bearer:
        pairs = bearer.spawn(40 if quick else 300)
    return [
        ratio(returns, _returned(pairs, "ours"), "Popen", _returned(pairs, "popen"), 1.0),
        ratio(runs, _ran(pairs, "ours"), "Popen", _ran(pairs, "popen"), 1.25),
    ]


def large(quick: bool) -> list[Figure]:
    """The same call, in a host of 2 GB: nothing may be copied with it."""
    name = "spawn at 2 GB: call returns"
    stamp = program("stamp")
    if stamp is None:
        return [missing(name, "ours at 50 MB", 1.3, NO_COMPILER)]
    small: list[int] = []
    large: list[int] = []
    with Bearer(SMALL_MB, stamp) as one, Bearer(LARGE_MB, stamp) as other:
        for _ in range(4 if quick else 20):
            small += _returned(one.spawn(10), "ours")
            large += _returned(other.spawn(10), "ours")
    return [ratio(name, large, "ours at 50 MB", small, 1.3)]


def busy(quick: bool) -> list[Figure]:
    """The same call, while eight threads of the host want the GIL all the time."""
    against_idle, against_popen = "spawn beside 8 busy threads", "spawn beside 8 busy threads, both"
    slowest = "spawn beside 8 busy threads: p99"
    stamp = program("stamp")
    if stamp is None:
        return [
            missing(against_idle, "ours, idle", 4.0, NO_COMPILER),
            missing(slowest, "", 10.0, NO_COMPILER, unit="ms"),
            missing(against_popen, "Popen, busy", 0.1, NO_COMPILER),
        ]
    calm: list[int] = []
    ours: list[int] = []
    popen: list[int] = []
    with Bearer(SMALL_MB, stamp) as bearer:
        for _ in range(2 if quick else 15):
            calm += _returned(bearer.spawn(10), "ours")
            pairs = bearer.spawn(10, busy=THREADS)
            ours += _returned(pairs, "ours")
            popen += _returned(pairs, "popen")
    return [
        ratio(against_idle, ours, "ours, idle", calm, 4.0),
        Figure(name=slowest, unit="ms", at_most=10.0, value=p99(ours) / 1e6, ours_ns=p99(ours)),
        ratio(against_popen, ours, "Popen, busy", popen, 0.1),
    ]


def _returned(pairs: Pairs, way: str) -> list[int]:
    return [returned for returned, _ in pairs[way]]


def _ran(pairs: Pairs, way: str) -> list[int]:
    return [ran for _, ran in pairs[way]]
