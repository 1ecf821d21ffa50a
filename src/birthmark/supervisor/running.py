"""A birth that is under way: the child we hold, and what we keep of it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from birthmark.children.child import Child
from birthmark.children.ports import PortAnswer, PortState
from birthmark.children.proving import claim_of, pin_or_none
from birthmark.config.model import ServiceSpec
from birthmark.core.service import BirthId
from birthmark.platforms import load
from birthmark.supervisor.drains import Drain
from birthmark.supervisor.journal import CountSink, Journal


class LineWatch:
    """Waits for a line that matches; fed on the drain's thread, asked on any."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern.encode())
        self._seen = threading.Event()

    def __call__(self, line: bytes) -> None:
        """Look at one line."""
        if not self._seen.is_set() and self._pattern.search(line):
            self._seen.set()

    @property
    def seen(self) -> bool:
        """Whether a line has matched."""
        return self._seen.is_set()


@dataclass(slots=True, kw_only=True)
class Running:
    """One birth of one service, from its spawn until its set is gone.

    `spec` has its port filled in. `counted` counts a drained stdout; `since` is on the monotonic clock.
    """

    spec: ServiceSpec
    birth: BirthId
    child: Child
    journal: Journal
    born_at: datetime
    since: float
    drains: list[Drain] = field(default_factory=list)
    counted: CountSink | None = None
    watch: LineWatch | None = None

    @property
    def close_stdin(self) -> Callable[[], None] | None:
        """Closes the stdin that we hold open; None where we hold none."""
        return None if self.child.stdin is None else self.child.close_stdin

    def owns(self, pid: int) -> bool:
        """Say whether a live process belongs to this birth's set: leader, group, session, descent, mark or tag."""
        leader = self.child.pid
        platform = load()
        if pid == leader or leader in (platform.group_of(pid), platform.session_of(pid)):
            return True
        if _descends(pid, leader):
            return True
        identity = self.child.identity
        assert identity.installation is not None
        pinned = pin_or_none(pid)
        if pinned is None:
            return False
        with pinned:
            seen = platform.observe(pinned)
        return (
            seen is not None and claim_of(seen, {self.birth: self.birth}, identity.installation) is not None
        )

    def strangers(self, answer: PortAnswer) -> list[int]:
        """Return the holders of a port that do not belong to this birth's set."""
        if answer.state is not PortState.HELD:
            return []
        return [pid for pid in answer.pids if not self.owns(pid)]

    def finish_output(self) -> None:
        """Take in what the child's pipes still hold, and let go of them."""
        self.child.close_stdin()
        for drain in self.drains:
            drain.finish()
        for drain in self.drains:
            drain.ended.wait(1.0)
        self.journal.close()


def _descends(pid: int, leader: int) -> bool:
    """Say whether `leader`, which is not reaped, is among a process's ancestors as they are now."""
    platform = load()
    seen: set[int] = set()
    parent = platform.parent_of(pid)
    while parent is not None and parent > 1 and parent not in seen:
        if parent == leader:
            return True
        seen.add(parent)
        parent = platform.parent_of(parent)
    return False
