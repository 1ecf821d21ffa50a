"""A set and what was done to it: who belongs, who was sent what and when, how each has ended.

The set of a keeper is what descends from it. It is empty when the keeper has no child left but the leader it
holds: a fact of the kernel, not the result of a search.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Final

from birthmark.core.outcomes import (
    Basis,
    Delivery,
    ExitStatus,
    Found,
    MemberReceipt,
    Receipt,
    Termination,
    Warrant,
    signal_name,
)
from birthmark.errors import LookFailed, NotPermitted, NotSignalable, SignalFailed
from birthmark.keeper.descent import Member, living, take_in_fallen
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned
from birthmark.platforms.posix import peek, reap

KILL: Final = int(signal.SIGKILL)

_Key = tuple[int, int]  # pid and start time: good as long as the process is unreaped, or known to have ended

_LISTED: Final = 1000
"""Members that a receipt lists; a fork storm has more, and those are counted."""


class Members:
    """What lives below this process, but for its children `aside`: signalled, reaped, written down.

    This process must be a subreaper, and nobody else may reap its children.
    """

    def __init__(self, asked_by: str) -> None:
        self.asked_by = asked_by
        self.began: float | None = None
        """The monotonic instant of the first signal; None: nobody was signalled."""
        self.unlisted = 0
        self._members: dict[_Key, MemberReceipt] = {}
        self._given: dict[_Key, set[int]] = {}
        self._keys: dict[int, _Key] = {}

    def send(self, sig: int, *, again: bool = False, only: Callable[[int], bool] | None = None) -> None:
        """Send a signal to every living member, parents before their children.

        Args:
            sig: The signal.
            again: Also to those that were sent it before.
            only: Says of a pid whether it is meant; None: all are.
        """
        if self.began is None:
            self.began = time.monotonic()
        for member in self._living():
            key = _key(member)
            receipt = self._note(member, key)
            if (again or sig not in self._given.get(key, ())) and (only is None or only(member.pinned.pid)):
                self._deliver(member, sig, key, receipt)

    def living(self) -> list[int]:
        """Return the pids of the members that live."""
        return [member.pinned.pid for member in self._living()]

    def note_end(self, pid: int, status: ExitStatus) -> None:
        """Take note that a member was reaped."""
        key = self._keys.pop(pid, None)
        if key is None:
            return
        self._given.pop(key, None)
        receipt = self._members.get(key)
        if receipt is not None:
            receipt.end = "killed" if status.signal == KILL else "exited"
            receipt.why = None

    def receipt(self, service: str, *, empty: bool) -> Receipt:
        """Return what was done to each member so far.

        Args:
            service: Whose set it is.
            empty: Nobody is left. Members that their own parents reaped have ended unseen.
        """
        members = list(self._members.values())
        here = set() if empty else self._here()
        for key, member in self._members.items():
            if member.end is None and key not in here:
                # Reaped by its own parent, so that nobody told us how.
                sent = [name for name, _ in member.sent]
                member.end = "killed" if signal_name(KILL) in sent else "exited"
                member.why = None
            elif member.end is None:
                member.why = member.why or _why_alive(member.pid)
        killed = any(name == signal_name(KILL) for member in members for name, _ in member.sent)
        found = Receipt(
            service=service,
            termination=Termination.KILLED
            if killed
            else Termination.EXITED
            if members
            else Termination.ALREADY_EXITED,
            members=members,
            took_ms=self._after_ms(),
        )
        if self.unlisted:
            found.notes.append(f"{self.unlisted} more members are not listed")
        return found

    def _here(self) -> set[_Key]:
        """Return who lives, and who is dead and cannot be reaped: the debugger that holds it has not looked."""
        children: set[_Key | None] = set()
        with suppress(LookFailed):
            children = {self._keys.get(pid) for pid in load().children_of(os.getpid())}
        return {_key(member) for member in self._living()} | {key for key in children if key is not None}

    def _living(self) -> Iterator[Member]:
        # Where our own children cannot be listed, the next look tells; a set is never empty for that.
        with suppress(LookFailed):
            yield from living(self.aside())

    def aside(self) -> Collection[int]:
        """Return our children that are no part of it."""
        return ()

    def found(self, pid: int) -> Found:
        """Return how a member belongs."""
        return Found.DESCENDANT

    def _note(self, member: Member, key: _Key) -> MemberReceipt | None:
        receipt = self._members.get(key)
        if receipt is not None:
            return receipt
        pid = member.pinned.pid
        self._keys[pid] = key
        if len(self._members) >= _LISTED:
            self.unlisted += 1
            return None
        receipt = MemberReceipt(pid=pid, found=self.found(pid), command=load().command_line(pid))
        self._members[key] = receipt
        return receipt

    def _deliver(self, member: Member, sig: int, key: _Key, receipt: MemberReceipt | None) -> None:
        if member.parent == os.getpid():
            warrant = Warrant(basis=Basis.CHILD, asked_by=self.asked_by)
        else:
            warrant = Warrant(basis=Basis.DESCENT, asked_by=self.asked_by, parent=member.parent)
        try:
            result = load().deliver(member.pinned, sig, warrant)
        except NotSignalable as err:
            # Mostly its parent has just died: it falls to us, and the next look finds it there.
            if receipt is not None and member.parent == os.getpid():
                receipt.why = err.reason
            return
        except (NotPermitted, SignalFailed) as err:
            if receipt is not None:
                receipt.why = str(err)
            return
        if result is Delivery.SENT:
            self._note_sent(sig, key, receipt)

    def _note_sent(self, sig: int, key: _Key, receipt: MemberReceipt | None) -> None:
        given = self._given.setdefault(key, set())
        # A KILL is sent until it is seen to have worked; one line of it is enough.
        if receipt is not None and sig not in given:
            receipt.sent.append((signal_name(sig), self._after_ms()))
        given.add(sig)

    def _after_ms(self) -> int:
        return 0 if self.began is None else int((time.monotonic() - self.began) * 1000)


class KeptSet(Members):
    """The set of one birth, below its keeper: the leader, an unreaped child of ours, and all it has become."""

    def __init__(self, leader: Pinned, asked_by: str) -> None:
        """Take charge. Owns the pin."""
        super().__init__(asked_by)
        self.leader = leader
        self.status: ExitStatus | None = None
        """How the leader ended. It stays unreaped, so that its number is nobody else's."""

    def take_in(self) -> bool:
        """Notice the leader's end, reap what fell to us and has ended. True: nothing is left but a dead leader.

        The leader is asked first: one that died after its children were listed would leave some unlisted.
        """
        if self.status is None:
            self.status = peek(self.leader.pid)
            if self.status is not None:
                self.note_end(self.leader.pid, self.status)
        left = take_in_fallen(self.leader.pid, (), self.note_end)
        return self.status is not None and not left

    def insist(self) -> None:
        """Send KILL to whoever is there: to the leader's group in one act, then to each."""
        leader = self.leader
        if load().group_of(leader.pid) == leader.pid:
            if self.began is None:
                self.began = time.monotonic()
            # Written down first: whoever dies of the one act is not to be found afterwards.
            group = [_key(m) for m in self._noted() if load().group_of(m.pinned.pid) == leader.pid]
            # Nobody forks away between two sends.
            try:
                warrant = Warrant(basis=Basis.CHILD, asked_by=self.asked_by)
                sent = load().deliver(leader, KILL, warrant, group=True) is Delivery.SENT
            except (NotSignalable, NotPermitted, SignalFailed):
                sent = False  # each is sent its own below, and told why not
            for key in group if sent else ():
                self._note_sent(KILL, key, self._members.get(key))
        self.send(KILL, again=True)

    def _noted(self) -> Iterator[Member]:
        for member in self._living():
            self._note(member, _key(member))
            yield member

    def found(self, pid: int) -> Found:
        """Return how a member belongs."""
        if pid == self.leader.pid:
            return Found.LEADER
        platform = load()
        if platform.group_of(pid) == self.leader.pid:
            return Found.GROUP
        return Found.SESSION if platform.session_of(pid) == self.leader.pid else Found.DESCENDANT

    def bury(self) -> None:
        """Reap the leader, once the set is empty and written down."""
        reap(self.leader.pid)
        self.leader.close()


def _key(member: Member) -> _Key:
    return member.pinned.pid, member.pinned.start_ticks


def _why_alive(pid: int) -> str:
    """Say why a process outlives SIGKILL, as far as its state tells."""
    stat_of = getattr(load(), "stat_of", None)
    stat = stat_of(pid) if stat_of is not None else None
    if stat is None:
        return "it could not be looked at"
    if stat.state == "D":
        return "uninterruptible: it is inside the kernel, waiting for a device or a file system"
    if stat.state in "tZ":
        return "traced: its debugger holds it"
    return f"state {stat.state}"
