"""A host of a given size that starts children, ours and plain ones in turns. A process of its own: `python -m benchmarks.bearer`.

It reads lines `ROUNDS BUSY` and answers each with one line of JSON: for either way, a pair of nanoseconds for
every round, until the call returned and until the target's main() ran. BUSY threads compute meanwhile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from types import TracebackType
from typing import Final

from benchmarks.sampling import now

PAGE: Final = 4096
Pairs = dict[str, list[tuple[int, int]]]


class Bearer:
    """The other end: starts the process, asks it for rounds."""

    def __init__(self, megabytes: int, stamp: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bearer", str(megabytes), stamp],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def spawn(self, rounds: int, *, busy: int = 0) -> Pairs:
        """Have children started; returns the samples, `ours` and `popen`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{rounds} {busy}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the bearer ended with {self._process.wait()}")
        return {way: [(returned, ran) for returned, ran in pairs] for way, pairs in json.loads(line).items()}

    def __enter__(self) -> Bearer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()


def main(megabytes: int, stamp: str) -> int:
    """Answer the lines of stdin until it ends."""
    import birthmark

    ballast = _ballast(megabytes)
    spawner = birthmark.Spawner()
    installation = birthmark.open_installation().id
    reading, writing = os.pipe()

    def ours() -> tuple[int, int]:
        began = now()
        child = spawner.spawn_owned_supervised(
            birthmark.mark_child(
                birthmark.Command(stamp, stdout=writing),
                birthmark.ChildKind.MCP,
                "bench",
                installation=installation,
            )
        )
        returned = now()
        ran = int(os.read(reading, 20))
        child.wait()
        return returned - began, ran - began

    def popen() -> tuple[int, int]:
        began = now()
        child = subprocess.Popen([stamp], stdin=subprocess.DEVNULL, stdout=writing, stderr=subprocess.DEVNULL)
        returned = now()
        ran = int(os.read(reading, 20))
        child.wait()
        return returned - began, ran - began

    ways = {"ours": ours, "popen": popen}
    for warm_up in (ours, popen, ours, popen):
        warm_up()
    for line in sys.stdin:
        rounds, busy = map(int, line.split())
        found: Pairs = {way: [] for way in ways}
        with _Busy(busy):
            for _ in range(rounds):
                for way, spawn in ways.items():
                    found[way].append(spawn())
        print(json.dumps(found), flush=True)
    spawner.close()
    del ballast
    return 0


def _ballast(megabytes: int) -> bytearray:
    """Return so much memory, written to, that this process has `megabytes` of it."""
    with open("/proc/self/statm", "rb") as file:
        resident = int(file.read().split()[1]) * PAGE
    ballast = bytearray(max(0, (megabytes << 20) - resident))
    for at in range(0, len(ballast), PAGE):
        ballast[at] = 1
    return ballast


class _Busy:
    """Threads that compute in Python, and so want the GIL all the time, for as long as the context lasts."""

    def __init__(self, count: int) -> None:
        self._over = False
        self._threads = [threading.Thread(target=self._compute, daemon=True) for _ in range(count)]

    def _compute(self) -> None:
        number = 0
        while not self._over:
            number += 1

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        for thread in self._threads:
            thread.join()


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), sys.argv[2]))
