"""Stop: ask, wait, insist, report. One procedure of synchronous steps, and its blocking driver.

A procedure is a generator: it yields what it waits for, and is sent nothing but its turn. It
never sleeps, so the same steps run under asyncio, under trio and in a plain thread.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from birthmark.children.members import Finder, group_of, nobody, set_of
from birthmark.children.proving import look_until_settled, pin_or_none
from birthmark.core.identity import Identity, Proof, Verdict, judge
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
    IdentityMismatch,
    NotPermitted,
    NotSignalable,
    SignalFailed,
    StopTimedOut,
    SupervisionError,
)
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned

POLL_S: Final = 0.025
"""How often exits are looked for where the kernel has no pidfd."""

KILL: Final = 9

# After an exit, orphans fall to a new parent and late forks appear: look again this soon even
# when some of the known members take their time.
_LOOK_EVERY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Wait:
    """What a procedure waits for: `fd` readable (None: nothing to wake on), at most `for_s` seconds."""

    fd: int | None
    for_s: float


Steps = Generator[Wait, None, Receipt]


class Hurry:
    """Tells a stop that is under way that patience is over: its grace ends now. May be said once, from any thread."""

    def __init__(self) -> None:
        self._ear, self._mouth = os.pipe()
        self.said = False

    @property
    def fd(self) -> int:
        """Readable once it has been said; owned by this object."""
        return self._ear

    def say(self) -> None:
        """Shorten the grace to nothing."""
        if not self.said:
            self.said = True
            os.write(self._mouth, b"!")

    def close(self) -> None:
        """Let go of the pipe. Closing twice is harmless."""
        for name in ("_ear", "_mouth"):
            fd = getattr(self, name)
            if fd >= 0:
                os.close(fd)
                setattr(self, name, -1)

    def __enter__(self) -> Hurry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run_now(steps: Steps) -> Receipt:
    """Drive a procedure to its end in this thread. Blocks."""
    try:
        wait = next(steps)
        while True:
            _wait(wait)
            wait = next(steps)
    except StopIteration as end:
        receipt: Receipt = end.value
        return receipt


def _wait(wait: Wait) -> None:
    if wait.fd is None:
        time.sleep(wait.for_s)
        return
    poller = select.poll()
    poller.register(wait.fd, select.POLLIN)
    # Rounded up: waking a fraction early would only turn the wait into a busy loop.
    poller.poll(int(wait.for_s * 1000) + 1)


class _Member:
    __slots__ = ("alive", "pinned", "receipt")

    def __init__(self, pinned: Pinned, receipt: MemberReceipt) -> None:
        self.pinned, self.receipt = pinned, receipt
        self.alive = True


class _Ladder:
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
    ) -> None:
        self._platform = load()
        self._began = time.monotonic()
        self._leader = leader
        self._leader_warrant = warrant
        self._find = find
        self._lead_group = lead_group
        self._asked_by = asked_by
        self._hurry = hurry
        self._members: dict[int, _Member] = {}
        self._epoll: select.epoll | None = None
        self.receipt = Receipt(service=service, termination=Termination.ALREADY_EXITED)
        if leader is not None and not self._platform.exited(leader):
            self._admit(leader, Found.LEADER)

    # -- members ------------------------------------------------------------

    def _admit(self, pinned: Pinned, found: Found) -> _Member:
        command = (
            "" if found is Found.LEADER and self._find is nobody else self._platform.command_line(pinned.pid)
        )
        receipt = MemberReceipt(pid=pinned.pid, found=found, command=command)
        member = _Member(pinned, receipt)
        self._members[pinned.pid] = member
        self.receipt.members.append(receipt)
        if self._epoll is not None:
            self._register(member)
        return member

    def look(self) -> list[_Member]:
        """Find and admit members not known yet."""
        if self._find is nobody:
            return []
        known = {pid for pid, member in self._members.items() if member.alive}
        if self._leader is not None:
            known.add(self._leader.pid)
        return [self._admit(pinned, found) for pinned, found in self._find(known)]

    @property
    def alive(self) -> list[_Member]:
        return [member for member in self._members.values() if member.alive]

    def note_exits(self) -> bool:
        """Mark who has exited; say whether anybody did."""
        any_exit = False
        for member in self.alive:
            if self._platform.exited(member.pinned):
                member.alive = False
                any_exit = True
                sent = [name for name, _ in member.receipt.sent]
                member.receipt.end = "killed" if signal_name(KILL) in sent else "exited"
                if self._epoll is not None and member.pinned.fd is not None:
                    with suppress(OSError):
                        self._epoll.unregister(member.pinned.fd)
        return any_exit

    # -- signals ------------------------------------------------------------

    def send(self, sig: int, members: Collection[_Member]) -> None:
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
        self, target: Pinned, sig: int, warrant: Warrant, members: Sequence[_Member], *, group: bool
    ) -> bool:
        """Send, and write it into the members' receipts; False when a group could not be addressed."""
        try:
            result = self._platform.deliver(target, sig, warrant, group=group)
        except (NotSignalable, NotPermitted, SignalFailed) as err:
            if group:
                return False
            if target is self._leader and warrant.basis is Basis.CALLER:
                raise
            for member in members:
                # Nobody waits for what may not be signalled; it is reported as a survivor.
                member.alive = False
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
            if leader_only and (
                self._leader is None or self._leader.pid not in {m.pinned.pid for m in self.alive}
            ):
                return
            if exits or not self.alive:
                self._meet_newcomers(sig)
            if not self.alive:
                return
            left = deadline - time.monotonic()
            if left <= 0 or (self._hurry is not None and self._hurry.said and sig != KILL):
                return
            yield self._next_wait(left)
            if self._find is not nobody and sig is not None and time.monotonic() < deadline:
                self._meet_newcomers(sig)

    def _meet_newcomers(self, sig: int | None) -> None:
        newcomers = self.look()
        if newcomers and sig is not None:
            self.send(sig, newcomers)

    def _next_wait(self, left_s: float) -> Wait:
        if self._find is not nobody:
            left_s = min(left_s, _LOOK_EVERY_S)
        alive = self.alive
        if any(member.pinned.fd is None for member in alive) or not hasattr(select, "epoll"):
            return Wait(None, min(POLL_S, left_s))
        if len(alive) == 1 and self._hurry is None and self._epoll is None:
            return Wait(alive[0].pinned.fd, left_s)
        if self._epoll is None:
            # One descriptor to wait on, whoever drives: an epoll is itself readable when one of its own is.
            self._epoll = select.epoll()
            if self._hurry is not None and self._hurry.fd >= 0:
                self._epoll.register(self._hurry.fd, select.EPOLLIN)
            for member in alive:
                self._register(member)
        return Wait(self._epoll.fileno(), left_s)

    def _register(self, member: _Member) -> None:
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
        for member in self._members.values():
            if member.pinned is not self._leader:
                member.pinned.close()


def _climb(ladder: _Ladder, policy: StopPolicy, close_stdin: Callable[[], None] | None, pid: int) -> Steps:
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
    if ladder.alive or ladder.look():
        ladder.send(KILL, ladder.alive)
        yield from ladder.wait(policy.settle_s, KILL)
    receipt = ladder.finish()
    if receipt.survivors:
        for member in ladder.alive:
            member.receipt.why = member.receipt.why or _why_alive(member.pinned.pid)
        tried = (
            f"{signal_name(policy.stop_signal)}, {policy.term_grace_s:g} s, SIGKILL, {policy.settle_s:g} s"
        )
        raise StopTimedOut(pid, [member.pid for member in receipt.survivors], tried, receipt)
    return receipt


def _why_alive(pid: int) -> str:
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


def terminate_steps(
    pinned: Pinned,
    grace_s: float,
    *,
    group: bool,
    warrant: Warrant,
    service: str = "",
    settle_s: float = 5.0,
) -> Steps:
    """Return the steps that end one process, or with `group` the whole group it leads.

    The receipt says in a note when a group was asked for and the process leads none.
    """
    platform = load()
    leads = group and platform.group_of(pinned.pid) == pinned.pid
    own = leads and hasattr(os, "getpgrp") and pinned.pid == os.getpgrp()
    ladder = _Ladder(
        service=service,
        leader=pinned,
        warrant=warrant,
        find=group_of(pinned) if leads else nobody,
        lead_group=leads and not own,
        asked_by=warrant.asked_by,
        hurry=None,
    )
    if group and not leads:
        ladder.receipt.notes.append("not a group leader: only the process itself was stopped")
    policy = StopPolicy(stdin_grace_s=0, term_grace_s=grace_s, settle_s=settle_s)
    try:
        return (yield from _climb(ladder, policy, None, pinned.pid))
    finally:
        ladder.close()


def set_steps(
    identity: Identity,
    policy: StopPolicy,
    *,
    asked_by: str,
    held: Pinned | None = None,
    close_stdin: Callable[[], None] | None = None,
    hurry: Hurry | None = None,
) -> Steps:
    """Return the steps that end the whole set of a birth: leader, group, session, descendants, carriers.

    Args:
        identity: Of the leader, written down at birth. A leader that is gone is no obstacle: what
            carries the birth's mark or tag is ended all the same.
        policy: The ladder.
        asked_by: For the audit.
        held: A pin of the leader held since birth; stays the caller's.
        close_stdin: Closes our end of the leader's stdin.
        hurry: Shortens the grace when said.

    Raises (while run):
        IdentityMismatch: A live process has the recorded pid and is not proven to be it. Nothing was signalled.
        StopTimedOut: Survivors; the receipt names them.
    """
    leader = held if held is not None else pin_or_none(identity.pid)
    try:
        is_held = held is not None and held.fd is not None
        proof = look_until_settled(leader, lambda seen: judge(identity, seen, held=is_held))
        if proof.verdict is Verdict.UNKNOWN:
            raise IdentityMismatch(proof)
        # Somebody else has the number now: the leader is gone, and what it left may still carry the mark.
        ours = leader if _pins_the_number(leader, identity, proof) else None
        ladder = _Ladder(
            service=str(identity.service or ""),
            leader=ours,
            warrant=Warrant(basis=Basis.PROOF, asked_by=asked_by, proof=proof),
            find=set_of(ours, birth=identity.birth, installation=identity.installation),
            lead_group=ours is not None and load().group_of(identity.pid) == identity.pid,
            asked_by=asked_by,
            hurry=hurry,
        )
        try:
            return (yield from _climb(ladder, policy, close_stdin, identity.pid))
        finally:
            ladder.close()
    finally:
        if leader is not None and held is None:
            leader.close()


def _pins_the_number(leader: Pinned | None, identity: Identity, proof: Proof) -> bool:
    """Say whether the recorded process still has its number: alive, or a zombie nobody has reaped."""
    if leader is None:
        return False
    if proof.verdict is Verdict.SAME:
        return True
    return proof.verdict is Verdict.GONE and load().start_ticks_of(identity.pid) == identity.start_ticks


def stop_set_now(
    identity: Identity,
    policy: StopPolicy,
    *,
    asked_by: str,
    held: Pinned | None = None,
    close_stdin: Callable[[], None] | None = None,
) -> Receipt:
    """End the whole set of a birth, blocking; see `set_steps`."""
    return run_now(set_steps(identity, policy, asked_by=asked_by, held=held, close_stdin=close_stdin))


def stop_children_now(children: Sequence[Pinned], grace_s: float = 5.0) -> list[Receipt]:
    """End our own unreaped children, each with the group it leads, all at once. Blocks for one grace at most.

    Raises:
        StopTimedOut: The first that survived SIGKILL; the others have been stopped by then.
    """
    running = [
        terminate_steps(
            pinned, grace_s, group=True, warrant=Warrant(basis=Basis.CHILD, asked_by="spawner close")
        )
        for pinned in children
    ]
    receipts: list[Receipt] = []
    failed: SupervisionError | None = None
    waits: list[tuple[Steps, Wait]] = []
    pending = [(steps, Wait(None, 0)) for steps in running]
    while pending:
        waits.clear()
        for steps, _ in pending:
            try:
                waits.append((steps, next(steps)))
            except StopIteration as end:
                receipts.append(end.value)
            except SupervisionError as err:
                failed = failed or err
        pending = list(waits)
        if pending:
            _wait_any([wait for _, wait in pending])
    if failed is not None:
        raise failed
    return receipts


def _wait_any(waits: Sequence[Wait]) -> None:
    for_s = min(wait.for_s for wait in waits)
    fds = [wait.fd for wait in waits if wait.fd is not None]
    if len(fds) < len(waits):
        time.sleep(min(for_s, POLL_S))
        return
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    poller.poll(int(for_s * 1000) + 1)
