"""Who holds a port, among 50 processes and among 2,000."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.figures import Figure, missing, ratio
from benchmarks.peers import NO_COMPILER, NO_LSOF, NO_PSUTIL, lsof, program, psutil_is_there
from benchmarks.sampling import Sampler, in_turns, timed

FEW, MANY = 50, 2000
DESCRIPTORS = 12
"""Further descriptors of each process in the crowd."""

_LISTEN = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()
"""


def holders(quick: bool) -> list[Figure]:
    """`holders_of(port, expected=pid)` against lsof and against itself; without a guess, against psutil."""
    crowd = program("crowd")
    expected, unknown = "holder of a port, expected pid", "holder of a port, not known"
    flat = f"{expected}: {MANY:,} processes"
    if crowd is None:
        return [
            missing(expected, f"lsof, {FEW} processes", 0.02, NO_COMPILER),
            missing(flat, f"ours, {FEW} processes", 1.3, NO_COMPILER),
            missing(unknown, f"psutil, {FEW} processes", 1.0, NO_COMPILER),
        ]
    figures: list[Figure] = []
    known: dict[int, list[int]] = {FEW: [], MANY: []}
    # Both crowds in turns, so that what else the machine does is shared by both sides of "flat".
    for number in range(2 if quick else 4):
        for count in known:
            with _crowd(crowd, count), _listener() as (pid, port):
                known[count] += _sample(_ours(pid, port), 50 if quick else 100)["expected"]
                if number == 0:
                    figures += _against_tools(pid, port, count, 5 if quick else 15)
    few = [figure for figure in figures if figure.base.endswith(f" {FEW} processes")]
    many = [figure for figure in figures if figure not in few]
    return [*few, *many, ratio(flat, known[MANY], f"ours, {FEW} processes", known[FEW], 1.3)]


def _ours(pid: int, port: int) -> dict[str, Sampler]:
    from birthmark.children.ports import holders_of

    if holders_of(port, expected=pid).pids != (pid,) or holders_of(port).pids != (pid,):
        raise RuntimeError(f"the holder of port {port} is {pid}, and was not found")
    return {
        "expected": timed(lambda: holders_of(port, expected=pid)),
        "unknown": timed(lambda: holders_of(port)),
    }


def _sample(variants: dict[str, Sampler], rounds: int) -> dict[str, list[int]]:
    return in_turns({"expected": variants["expected"]}, rounds, warm=5)


def _against_tools(pid: int, port: int, count: int, rounds: int) -> list[Figure]:
    expected, unknown = "holder of a port, expected pid", "holder of a port, not known"
    variants = _ours(pid, port)
    tool = lsof()
    if tool is not None:
        command = [tool, "-nP", "-t", f"-iTCP:{port}", "-sTCP:LISTEN"]
        variants["lsof"] = timed(lambda: subprocess.run(command, stdout=subprocess.PIPE, check=True))
    if psutil_is_there():
        import psutil

        variants["psutil"] = timed(
            lambda: [
                each.pid
                for each in psutil.net_connections("tcp")
                if each.laddr and each.laddr.port == port and each.status == psutil.CONN_LISTEN
            ]
        )
    found = in_turns(variants, rounds, warm=1)
    by_lsof, by_psutil = f"lsof, {count:,} processes", f"psutil, {count:,} processes"
    return [
        ratio(expected, found["expected"], by_lsof, found["lsof"], 0.02)
        if "lsof" in found
        else missing(expected, by_lsof, 0.02, NO_LSOF),
        ratio(unknown, found["unknown"], by_psutil, found["psutil"], 1.0)
        if "psutil" in found
        else missing(unknown, by_psutil, 1.0, NO_PSUTIL),
    ]


@contextmanager
def _crowd(crowd: str, count: int) -> Iterator[None]:
    """Have so many further processes for a while."""
    process = subprocess.Popen(
        [crowd, str(count), str(DESCRIPTORS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        made = int(process.stdout.readline())
        if made < count:
            raise RuntimeError(f"only {made} of {count} processes could be started")
        yield
    finally:
        process.communicate()


@contextmanager
def _listener() -> Iterator[tuple[int, int]]:
    """Have a process that listens: its pid and its port. It is started last, so a scan of all finds it last."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield process.pid, int(process.stdout.readline())
    finally:
        process.communicate()
