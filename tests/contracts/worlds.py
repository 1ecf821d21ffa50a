"""One small world in which processes are born and end: real, and made of values."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, Protocol

import pytest

from birthmark.core.outcomes import ExitStatus, SignalRecord
from birthmark.platforms import contract, load
from birthmark.platforms.contract import Pinned, ProcessControl
from birthmark.testing import FakeControl, Puppet, puppet, wait_exited

NAMES: Final = ("real", "real_without_pidfd", "fake", "fake_without_pidfd")


class World(Protocol):
    """What a contract test does to processes, whoever provides them. Births are our children unless said."""

    control: ProcessControl
    own_pid: int

    def born(self, *, deaf: bool = False) -> int:
        """Return a child in a group and session of its own; `deaf` ones ignore SIGTERM."""

    def fork_of(self, pid: int) -> int:
        """Return a child of that birth, in its group; it ends with its parent."""

    def ends(self, pid: int, code: int) -> None:
        """Let a birth exit by itself with that code, and return when it is a zombie."""

    def wait_exited(self, pinned: Pinned) -> None: ...


class Real:
    """Puppets under the platform's own control."""

    def __init__(self, stack: ExitStack) -> None:
        self.control = load()
        self.own_pid = os.getpid()
        self._stack = stack
        self._puppets: dict[int, Puppet] = {}

    def born(self, *, deaf: bool = False) -> int:
        script = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if deaf else ""
        script += (
            "ready()\n"
            "for line in sys.stdin:\n"
            "    if line == 'fork\\n':\n"
            "        pid = os.fork()\n"
            "        if not pid: stay()\n"
            "        tell(pid)\n"
            "    else: os._exit(int(line))\n"
        )
        child = self._stack.enter_context(puppet(script))
        child.wait_ready()
        self._puppets[child.pid] = child
        return child.pid

    def fork_of(self, pid: int) -> int:
        self._puppets[pid].say("fork")
        return self._puppets[pid].hear_pid()

    def ends(self, pid: int, code: int) -> None:
        self._puppets[pid].say(str(code))
        self._puppets[pid].wait_exited()

    def wait_exited(self, pinned: Pinned) -> None:
        wait_exited(pinned)


class Fake:
    """Values; exits are instant."""

    def __init__(self, control: FakeControl) -> None:
        self.control: ProcessControl = control
        self.own_pid = control.own.pid
        self._control = control

    def born(self, *, deaf: bool = False) -> int:
        return self._control.add(ignores={signal.SIGTERM} if deaf else None).pid

    def fork_of(self, pid: int) -> int:
        return self._control.fork(self._control.process(pid)).pid

    def ends(self, pid: int, code: int) -> None:
        self._control.exit(pid, ExitStatus(code=code))

    def wait_exited(self, pinned: Pinned) -> None:
        assert self._control.exited(pinned)
        if pinned.fd is not None:
            assert select.select([pinned.fd], [], [], 0)[0] == [pinned.fd]


@contextmanager
def world(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Make the world of that name, one of `NAMES`; skip, with the reason, where there is none."""
    with ExitStack() as stack:
        if name.startswith("fake"):
            yield Fake(stack.enter_context(FakeControl(pidfd=name == "fake")))
            return
        if sys.platform != "linux":
            pytest.skip("the real control is exercised on Linux")
        if name == "real_without_pidfd":
            from birthmark.platforms import linux

            monkeypatch.setattr(linux, "_no_pidfd", True)
        yield Real(stack)


@contextmanager
def audit() -> Iterator[list[SignalRecord]]:
    """Collect what is signalled while the block lasts."""
    records: list[SignalRecord] = []
    remove = contract.add_audit_sink(records.append)
    try:
        yield records
    finally:
        remove()
