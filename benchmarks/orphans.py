"""Being right: no orphan when the parent is killed while it spawns, and no wrong answer about a process inside an exec."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.figures import Figure
from benchmarks.nursery import READY, SERVICE, birth_number
from benchmarks.progress import say

if TYPE_CHECKING:
    from birthmark import BirthId, Child, Identity, ServiceName, Spawner, Verdict

ROOT: Final = Path(__file__).resolve().parent.parent

KILLED_WITHIN_S: Final = 0.004
"""The parent is killed at a random moment of this long a time after it enters the call."""

GONE_WITHIN_S: Final = 2.0
"""How long what was about to start may take to see that its parent is gone."""

_PR_SET_CHILD_SUBREAPER: Final = 36
_ENTERED, _RETURNED = 1, 2


def orphans(quick: bool) -> list[Figure]:
    """Kill a parent at a random moment of its spawn, again and again; whoever survives it is an orphan."""
    tries = 100 if quick else 1000
    import birthmark
    from birthmark.platforms.launch import why_pure

    installation = birthmark.open_installation().id
    # Loaded before the forks, or each would load it anew.
    loaded = (birthmark.Spawner, birthmark.Command, birthmark.mark_child, why_pure())
    say(f"the spawner is {'native' if loaded[-1] is None else 'pure'}")
    # Orphans fall to us, so that none is overlooked.
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError("this kernel has no subreapers")
    flag = mmap.mmap(-1, 1)
    left = inside = 0
    for number in range(tries):
        if number % 250 == 0 and number:
            say(f"{number} of {tries} parents killed, {left} orphans")
        flag[0] = 0
        parent = os.fork()
        if parent == 0:
            _spawn_and_stay(flag, installation)
        while flag[0] < _ENTERED:
            time.sleep(0.00005)
        _spin(random.random() * KILLED_WITHIN_S)
        inside += flag[0] != _RETURNED
        os.kill(parent, signal.SIGKILL)
        left += _survivors()
    name = f"orphans in {tries:,} kills of the parent during the spawn"
    return [_count(name, left, f"{inside} of the kills came before the call returned")]


def _spawn_and_stay(flag: mmap.mmap, installation: str) -> None:
    """Be the parent that is killed. Never returns."""
    try:
        import birthmark

        spawner = birthmark.Spawner()
        command = birthmark.Command("/bin/sleep", "1000")
        birthmark.mark_child(
            command, birthmark.ChildKind.MCP, "bench", installation=birthmark.InstallationId(installation)
        )
        flag[0] = _ENTERED
        child = spawner.spawn_owned_supervised(command)
        flag[0] = _RETURNED
        child.wait()
    finally:
        os._exit(1)


def _spin(for_s: float) -> None:
    until = time.perf_counter() + for_s
    while time.perf_counter() < until:
        pass


def _survivors() -> int:
    """Reap the parent and what fell to us; return how many still lived when the time was over, and end them."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.0005)
        except ChildProcessError:
            return 0
    with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
        alive = [int(pid) for pid in file.read().split()]
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return len(alive)


def watched(quick: bool) -> list[Figure]:
    """Watch another process spawn, and ask about each child from its first instant on.

    Asked: is it the birth it is (never *different*), is it a birth that nobody is (never *same*). Once it has
    said that it runs, the first must be *same* and the second *different*. The recorded identity has no inode,
    so mark and tag must decide, and the nursery is marked itself: its mark is what shows before the exec.
    """
    tries = 100 if quick else 1000
    import birthmark

    with birthmark.Spawner() as spawner, _nursery(spawner) as nursery:
        watch = _Watch(nursery)
        for number in range(tries):
            if number % 250 == 0 and number:
                say(f"{number} of {tries} spawns watched, {len(watch.wrong)} wrong answers")
            watch.one(number)
        nursery.close_stdin()
        nursery.wait(10)
    for line in watch.wrong[:5]:
        say(line)
    name = f"wrong answers about {tries:,} spawns watched from outside"
    note = f"{watch.answers:,} answers, {watch.inside} inside an exec, {watch.unknown} unknown"
    return [_count(name, len(watch.wrong), note)]


def _nursery(spawner: Spawner) -> Child:
    import birthmark

    installation = birthmark.open_installation().id
    command = birthmark.Command(
        sys.executable,
        "-m",
        "benchmarks.nursery",
        installation,
        cwd=ROOT,
        stdin=birthmark.Stdio.PIPE,
        stdout=birthmark.Stdio.PIPE,
        stderr=birthmark.Stdio.INHERIT,
    )
    return spawner.spawn_owned_supervised(
        birthmark.mark_child(command, birthmark.ChildKind.MCP, "nursery", installation=installation)
    )


class _Watch:
    """What was asked so far, and what was answered wrongly."""

    def __init__(self, nursery: Child) -> None:
        self._nursery = nursery
        self.wrong: list[str] = []
        self.answers = self.inside = self.unknown = 0

    def one(self, number: int) -> None:
        """Have one child spawned, ask about it until it has settled, and have it ended."""
        from birthmark import BirthId, Verdict

        before = _children_of(self._nursery.pid)
        self._order(b"spawn\n")
        pid = self._first_child(before)
        right = self._identity(pid, birth_number(number))
        other = replace(right, birth=BirthId("f" * 32))
        # An answer from inside an exec is looked for again and takes milliseconds: either question is first in turn.
        for identity in (right, other) if number % 2 else (other, right):
            never = Verdict.DIFFERENT if identity is right else Verdict.SAME
            self._ask(identity, f"spawn {number}, from its first instant", never=never)
        self._await_ready()
        self._ask(right, f"spawn {number}, settled", only=Verdict.SAME)
        self._ask(other, f"spawn {number}, settled, of another birth", only=Verdict.DIFFERENT)
        self._order(b"end\n")
        self._await_ready()

    def _ask(
        self, identity: Identity, when: str, *, never: Verdict | None = None, only: Verdict | None = None
    ) -> None:
        import birthmark

        before_exec = _still_forked(identity.pid)
        proof = birthmark.prove(identity)
        self.answers += 1
        self.inside += before_exec
        self.unknown += proof.verdict is birthmark.Verdict.UNKNOWN
        if proof.verdict is never or (only is not None and proof.verdict is not only):
            self.wrong.append(f"{when}: {proof}")

    def _identity(self, pid: int, birth: BirthId) -> Identity:
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        return replace(
            self._nursery.identity,
            pid=pid,
            start_ticks=ticks,
            inode=None,
            birth=birth,
            service=_service_name(SERVICE),
        )

    def _first_child(self, before: set[int]) -> int:
        """Return the new child as soon as it can be seen. Spins: the time between fork and exec is short."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for new in _children_of(self._nursery.pid) - before:
                return new
        raise TimeoutError("the nursery spawned nothing within 10 s")

    def _order(self, line: bytes) -> None:
        assert self._nursery.stdin is not None
        self._nursery.stdin.write(line)

    def _await_ready(self) -> None:
        assert self._nursery.stdout is not None
        if self._nursery.stdout.read(1) != READY:
            raise RuntimeError("the nursery ended")


def _service_name(text: str) -> ServiceName:
    from birthmark import ServiceName

    return ServiceName(text)


def _still_forked(pid: int) -> bool:
    """Say whether the kernel has it as forked and not exec'ed yet (PF_FORKNOEXEC)."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return bool(int(file.read().rpartition(b")")[2].split()[6]) & 0x40)


def _children_of(pid: int) -> set[int]:
    found: set[int] = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.update(map(int, file.read().split()))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _count(name: str, value: int, note: str) -> Figure:
    return Figure(name=name, unit="count", at_most=0, value=value, hard=True, note=note)
