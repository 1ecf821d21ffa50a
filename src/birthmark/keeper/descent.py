"""The set by descent: as a subreaper we are where every descendant ends up, so our children are all there is."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from birthmark.core.outcomes import Basis, Delivery, ExitStatus, Warrant, signal_name
from birthmark.errors import LookFailed, NotPermitted, NotSignalable, ProcessGone, SupervisionError
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned
from birthmark.platforms.posix import peek, reap

_AT_MOST: Final = 10_000
"""Members looked at in one round. A fork storm may be larger; the next round takes the rest."""


class Member(NamedTuple):
    """One living process of the set, pinned for one round."""

    pinned: Pinned
    parent: int


_ROUNDS: Final = 1000
"""How often we list our children in one go while some of them end; a storm must not keep us from signalling."""


def take_in_fallen(
    leader: int | None, aside: Container[int], ended: Callable[[int, ExitStatus], None] | None = None
) -> bool:
    """Reap every child of ours that has exited, but the leader and those aside; True if any of them is left.

    Whoever dies leaves its children to us, at once and before it can be reaped. So after every reap the list
    is old, and only one after which nobody had to be reaped says that nobody is left.

    Args:
        leader: Stays unreaped, so that its number is nobody else's.
        aside: Children of ours that are no part of it.
        ended: Called for each that was reaped.
    """
    for _ in range(_ROUNDS):
        left = reaped = False
        try:
            children = load().children_of(os.getpid())
        except LookFailed:
            return True  # we could not look, which is not *nobody*
        for pid in children:
            if pid == leader or pid in aside:
                continue
            status = reap(pid)
            if status is None:
                left = True
            else:
                reaped = True
                if ended is not None:
                    ended(pid, status)
        if not reaped:
            return left
    return True


def living(aside: Container[int]) -> Iterator[Member]:
    """Yield what lives below us, parents before their children. A pin is good until the next one is asked for.

    Args:
        aside: Children of ours that are left out, with all below them.

    Raises:
        LookFailed: Our own children cannot be listed.
    """
    platform = load()
    me = os.getpid()
    # A parent stays pinned until its children have been listed and pinned: if it has not exited by then,
    # its number was its own all the time, and so whoever names it as parent is its child. Only the line from
    # us to whoever is looked at is held, or a large set would take all descriptors we may have.
    line: list[tuple[int, Pinned | None, Iterator[int]]] = [(me, None, iter(platform.children_of(me)))]
    seen = 0
    try:
        while line and seen < _AT_MOST:
            number, parent, children = line[-1]
            pid = next(children, None)
            if pid is None:
                line.pop()
                if parent is not None:
                    parent.close()
                continue
            if pid in aside:
                continue
            pinned = _pin(pid)
            if pinned is None:
                continue
            line.append((pid, pinned, iter(())))
            if not _is_child(pinned, number, parent):
                continue
            seen += 1
            yield Member(pinned, number)
            # Where a line is too long for our descriptors, its end falls to us when its beginning has gone.
            with suppress(LookFailed):
                line[-1] = (pid, pinned, iter(platform.children_of(pid)))
    finally:
        for _, open_pin, _ in line:
            if open_pin is not None:
                open_pin.close()


class Descent:
    """All that descends from one child of ours, its leader.

    This process must be a subreaper, and have no children but these and those `aside`.
    """

    def __init__(self, leader: Pinned, asked_by: str) -> None:
        """Take charge of `leader`, an unreaped child of ours. Owns the pin."""
        self.leader = leader
        self.status: ExitStatus | None = None
        """How the leader ended; it stays unreaped, so that its number is nobody else's."""
        self.signalled: list[tuple[int, str]] = []
        """Who was sent what, in order; for people."""
        self.refused: dict[int, str] = {}
        self.aside: set[int] = set()
        """Children of ours that are no part of it."""
        self._asked_by = asked_by
        self._given: dict[tuple[int, int], set[int]] = {}

    def take_in(self) -> bool:
        """Notice the leader's end, and reap what fell to us and has ended. True when nothing but a dead leader is left."""
        if self.status is None:
            self.status = peek(self.leader.pid)
        others = take_in_fallen(self.leader.pid, self.aside)
        return self.status is not None and not others

    def bury(self) -> ExitStatus:
        """Reap the leader, once the set is empty or given up, and return how it ended."""
        found = reap(self.leader.pid) or ExitStatus()
        self.leader.close()
        return found

    def tell_leader(self, sig: int) -> bool:
        """Send a signal to the leader alone; True if it was there to get it."""
        return self.status is None and self._send(
            self.leader, sig, Warrant(basis=Basis.CHILD, asked_by=self._asked_by)
        )

    def leader_was_given(self, sig: int) -> bool:
        """Say whether the leader was sent this signal by us."""
        return sig in self._given.get((self.leader.pid, self.leader.start_ticks), ())

    def tell_others(self, sig: int) -> list[int]:
        """Send a signal to every living member but the leader that did not get it before; returns those that got it now."""
        told = []
        me = os.getpid()
        with suppress(LookFailed):  # the next round looks again
            for member in self.members():
                pinned = member.pinned
                if pinned.pid == self.leader.pid or sig in self._given.get(
                    (pinned.pid, pinned.start_ticks), ()
                ):
                    continue
                if member.parent == me:
                    warrant = Warrant(basis=Basis.CHILD, asked_by=self._asked_by)
                else:
                    warrant = Warrant(basis=Basis.DESCENT, asked_by=self._asked_by, parent=member.parent)
                if self._send(pinned, sig, warrant):
                    told.append(pinned.pid)
        return told

    def members(self) -> Iterator[Member]:
        """Yield the living members, parents before their children. A pin is good until the next one is asked for.

        Raises:
            LookFailed: Our own children cannot be listed.
        """
        for member in living(self.aside):
            if member.pinned.pid != self.leader.pid or self.status is None:
                yield member

    def _send(self, target: Pinned, sig: int, warrant: Warrant) -> bool:
        try:
            if load().deliver(target, sig, warrant) is Delivery.GONE:
                return False
        except NotSignalable:
            # Its parent has just died: it falls to us, and the next round finds it there.
            return False
        except (NotPermitted, SupervisionError) as err:
            self.refused[target.pid] = str(err)
            return False
        self._given.setdefault((target.pid, target.start_ticks), set()).add(sig)
        self.signalled.append((target.pid, signal_name(sig)))
        return True


def _is_child(pinned: Pinned, of: int, parent: Pinned | None) -> bool:
    platform = load()
    with suppress(LookFailed):
        return (
            not platform.exited(pinned)
            and platform.parent_of(pinned.pid) == of
            and not (parent is not None and platform.exited(parent))
        )
    return False


def _pin(pid: int) -> Pinned | None:
    try:
        return load().pin(pid)
    except (ProcessGone, LookFailed):
        return None
