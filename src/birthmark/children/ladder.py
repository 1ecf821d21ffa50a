"""The ladder of a stop: who belongs to it, what has been sent to whom, and who is left."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import suppress
from typing import Final

from birthmark.children.members import Finder, nobody
from birthmark.children.waiting import POLL_S, Hurry, Steps, Wait
from birthmark.core.outcomes import (
    Basis,
    Delivery,
    Found,
    MemberReceipt,
    Receipt,
    Termination,
    Warrant,
    signal_name,
)
from birthmark.core.policies import StopPolicy
from birthmark.errors import (
    LookFailed,
    NotPermitted,
    NotSignalable,
    SignalFailed,
    StopTimedOut,
)
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned

KILL: Final = 9

# After an exit, orphans fall to a new parent and late forks appear: look again this soon even
# when some of the known members take their time.
_LOOK_EVERY_S: Final = 0.5


class Member:
    __slots__ = ("alive", "pinned", "receipt")

    def __init__(self, pinned: Pinned, receipt: MemberReceipt) -> None:
        self.pinned, self.receipt = pinned, receipt
        self.alive = True


class Ladder:
    """One stop: the members known so far, and what has been sent to whom."""

    def __init__(
        self,
        *,
        service: str,
        leader: Pinned | None,
        warrant: Warrant,
        find: Finder,
        lead_group: bool,
        asked_by: str,
        hurry: Hurry | None,
        insist_on_leader: bool = False,
    ) -> None:
        """Begin a stop.

        With `insist_on_leader` a leader that may not be signalled is an error at once, and nobody is;
        without it the others are stopped, and the leader is a survivor.
        """
        self._platform = load()
        self._began = time.monotonic()
        self._leader = leader
        self._leader_warrant = warrant
        self._find = find
        self._lead_group = lead_group
        self._asked_by = asked_by
        self._hurry = hurry
        self._insist_on_leader = insist_on_leader
        self._members: list[Member] = []
        self._looked_at = 0.0
        self.blind: LookFailed | None = None
        self._epoll: select.epoll | None = None
        self.receipt = Receipt(service=service, termination=Termination.ALREADY_EXITED)
        if leader is not None and not self._platform.exited(leader):
            self._admit(leader, Found.LEADER)

    # -- members ------------------------------------------------------------

    def _admit(self, pinned: Pinned, found: Found) -> Member:
        command = (
            "" if found is Found.LEADER and self._find is nobody else self._platform.command_line(pinned.pid)
        )
        receipt = MemberReceipt(pid=pinned.pid, found=found, command=command)
        member = Member(pinned, receipt)
        self._members.append(member)
        self.receipt.members.append(receipt)
        if self._epoll is not None:
            self._register(member)
        return member

    def look(self) -> list[Member]:
        """Find and admit members not known yet.

        Raises:
            LookFailed: Not everybody could be looked at, so that nobody can say whether that is all.
        """
        if self._find is nobody:
            return []
        self._looked_at = time.monotonic()
        known = [member.pinned for member in self.alive]
        if self._leader is not None and all(pinned is not self._leader for pinned in known):
            known.append(self._leader)
        return [self._admit(pinned, found) for pinned, found in self._find(known)]

    def look_again(self) -> list[Member]:
        """Look, in the middle of a stop: those who are known are dealt with also while we are blind."""
        before = len(self._members)
        try:
            self.look()
        except LookFailed as err:
            self.blind = err
        else:
            self.blind = None
        return self._members[before:]

    @property
    def alive(self) -> list[Member]:
        return [member for member in self._members if member.alive]

    def note_exits(self) -> bool:
        """Mark who has exited; say whether anybody did."""
        any_exit = False
        for member in self.alive:
            if self._platform.exited(member.pinned):
                any_exit = True
                sent = [name for name, _ in member.receipt.sent]
                member.receipt.end = "killed" if signal_name(KILL) in sent else "exited"
                self._wait_no_more_for(member)
        return any_exit

    def _wait_no_more_for(self, member: Member) -> None:
        member.alive = False
        if self._epoll is not None and member.pinned.fd is not None:
            with suppress(OSError):
                self._epoll.unregister(member.pinned.fd)

    # -- signals ------------------------------------------------------------

    def send(self, sig: int, members: Collection[Member]) -> None:
        """Send `sig` once to each of `members`: to the leader's group in one act, to the others one by one."""
        rest = list(members)
        leader = self._leader
        if leader is not None and self._lead_group:
            # In one act, so that nobody forks away between two sends. A group outlives its leader.
            in_group = [m for m in rest if self._platform.group_of(m.pinned.pid) == leader.pid]
            if in_group and self._deliver(leader, sig, self._leader_warrant, in_group, group=True):
                rest = [m for m in rest if m not in in_group]
        for member in rest:
            is_leader = member.pinned is leader
            warrant = (
                self._leader_warrant if is_leader else Warrant(basis=Basis.MEMBER, asked_by=self._asked_by)
            )
            self._deliver(member.pinned, sig, warrant, [member], group=False)

    def _deliver(
        self, target: Pinned, sig: int, warrant: Warrant, members: Sequence[Member], *, group: bool
    ) -> bool:
        """Send, and write it into the members' receipts; False when a group could not be addressed."""
        try:
            result = self._platform.deliver(target, sig, warrant, group=group)
        except (NotSignalable, NotPermitted, SignalFailed) as err:
            if group:
                return False
            if target is self._leader and self._insist_on_leader:
                raise
            for member in members:
                # Nobody waits for what may not be signalled; it is reported as a survivor.
                self._wait_no_more_for(member)
                member.receipt.why = err.reason if isinstance(err, NotSignalable) else str(err)
            return True
        if result is Delivery.SENT:
            after = int((time.monotonic() - self._began) * 1000)
            for member in members:
                member.receipt.sent.append((signal_name(sig), after))
        return result is Delivery.SENT or not group

    # -- waiting ------------------------------------------------------------

    def wait(
        self, grace_s: float, sig: int | None, *, leader_only: bool = False
    ) -> Generator[Wait, None, None]:
        """Wait until all members have exited, or the grace is over; newcomers get `sig` too.

        With `leader_only` it is over as soon as the leader has left.
        """
        deadline = time.monotonic() + grace_s
        while True:
            exits = self.note_exits()
            if leader_only and all(member.pinned is not self._leader for member in self.alive):
                return
            if exits or not self.alive or time.monotonic() - self._looked_at >= _LOOK_EVERY_S:
                self._meet_newcomers(sig)
            if not self.alive:
                return
            left = deadline - time.monotonic()
            if left <= 0 or (self._hurry is not None and self._hurry.said and sig != KILL):
                return
            yield self._next_wait(left)

    def _meet_newcomers(self, sig: int | None) -> None:
        newcomers = self.look_again()
        if newcomers and sig is not None:
            self.send(sig, newcomers)

    def _next_wait(self, left_s: float) -> Wait:
        if self._find is not nobody:
            left_s = min(left_s, _LOOK_EVERY_S)
        alive = self.alive
        if any(member.pinned.fd is None for member in alive) or not hasattr(select, "epoll"):
            return Wait(None, min(POLL_S, left_s))
        hurry = self._hurry if self._hurry is not None and not self._hurry.said else None
        if len(alive) == 1 and hurry is None and self._epoll is None:
            return Wait(alive[0].pinned.fd, left_s)
        if self._epoll is not None and hurry is None and self._hurry is not None:
            # Said once, it is readable for ever: nobody would wait any more.
            with suppress(OSError, ValueError):
                self._epoll.unregister(self._hurry.fd)
        if self._epoll is None:
            # One descriptor to wait on, whoever drives: an epoll is itself readable when one of its own is.
            self._epoll = select.epoll()
            if hurry is not None and hurry.fd >= 0:
                self._epoll.register(hurry.fd, select.EPOLLIN)
            for member in alive:
                self._register(member)
        return Wait(self._epoll.fileno(), left_s)

    def _register(self, member: Member) -> None:
        if self._epoll is not None and member.pinned.fd is not None:
            self._epoll.register(member.pinned.fd, select.EPOLLIN)

    def finish(self) -> Receipt:
        sent = [name for member in self.receipt.members for name, _ in member.sent]
        if signal_name(KILL) in sent:
            self.receipt.termination = Termination.KILLED
        elif self.receipt.members:
            self.receipt.termination = Termination.EXITED
        self.receipt.took_ms = int((time.monotonic() - self._began) * 1000)
        return self.receipt

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
        for member in self._members:
            if member.pinned is not self._leader:
                member.pinned.close()


def climb(ladder: Ladder, policy: StopPolicy, close_stdin: Callable[[], None] | None, pid: int) -> Steps:
    """Go up the ladder, from end-of-file to SIGKILL, until nobody of the set is left."""
    ladder.look()
    if not ladder.alive:
        if close_stdin is not None:
            close_stdin()
        return ladder.finish()
    if close_stdin is not None:
        close_stdin()
        yield from ladder.wait(policy.stdin_grace_s, None, leader_only=True)
    if ladder.alive:
        ladder.send(policy.stop_signal, ladder.alive)
        yield from ladder.wait(policy.term_grace_s, policy.stop_signal)
    ladder.note_exits()
    if ladder.alive or ladder.look_again():
        ladder.send(KILL, ladder.alive)
        yield from ladder.wait(policy.settle_s, KILL)
    receipt = ladder.finish()
    if receipt.survivors:
        for member in ladder.alive:
            member.receipt.why = member.receipt.why or why_alive(member.pinned.pid)
        tried = (
            f"{signal_name(policy.stop_signal)}, {policy.term_grace_s:g} s, SIGKILL, {policy.settle_s:g} s"
        )
        raise StopTimedOut(pid, [member.pid for member in receipt.survivors], tried, receipt)
    if ladder.blind is not None:
        # Those who were known are gone. Whether that was all, nobody could see.
        raise ladder.blind
    return receipt


def why_alive(pid: int) -> str:
    """Say why a process outlives SIGKILL, as far as its state tells."""
    stat_of = getattr(load(), "stat_of", None)
    stat = stat_of(pid) if stat_of is not None else None
    if stat is None:
        return "it could not be looked at"
    if stat.state == "D":
        return "uninterruptible: it is inside the kernel, waiting for a device or a file system"
    if stat.state == "t":
        return "traced: its debugger holds it"
    return f"state {stat.state}"
