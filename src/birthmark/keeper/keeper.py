"""The keeper: the parent of one child, and nothing else's friend.

Forked from the nursery, it starts the child, stands by it, and goes when nothing of it is left. It is a
subreaper, so that whatever the child starts ends up below it, however it detaches; it holds the dead leader
unreaped until the set is empty; it carries out stop orders, and the death policy when its owner vanishes; it
writes down how it ended before it lets go. If it is killed, the child dies with it.

Everything that happens arrives on a descriptor, so an idle keeper costs no time. It never waits for *any*
child: the dead leader it holds would be reported for ever.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Final

from birthmark.children.proving import prove
from birthmark.core.identity import Identity, Verdict
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import ExitStatus, Receipt, signal_name
from birthmark.core.policies import DeathPolicy, StopPolicy
from birthmark.core.service import birth_id, installation_id, service_name
from birthmark.errors import LookFailed
from birthmark.keeper import protocol
from birthmark.keeper.ledger import Ledger
from birthmark.keeper.lines import Line, Lines
from birthmark.keeper.order import unpack, unpack_death, unpack_stop
from birthmark.keeper.papers import Papers
from birthmark.keeper.protocol import (
    BadMessage,
    Birth,
    Born,
    Dying,
    Ended,
    Exited,
    Hello,
    Message,
    NotBorn,
    Refused,
    Stop,
    Stopping,
    Survived,
    Welcome,
)
from birthmark.keeper.set import KeptSet
from birthmark.platforms import load
from birthmark.platforms.inbox import Inbox
from birthmark.platforms.inheritance import close_all_but
from birthmark.platforms.launch import LaunchFailed, Step, launch
from birthmark.platforms.linux import become_subreaper
from birthmark.platforms.procfs import share_facts_with_parent

assert sys.platform == "linux"

KILL: Final = int(signal.SIGKILL)

LISTENS_TO: Final = (
    int(signal.SIGCHLD),
    int(signal.SIGTERM),
    int(signal.SIGINT),
    int(signal.SIGHUP),
    int(signal.SIGQUIT),
)
"""What keepers and nursery read instead of dying of it: all but the first ask to end."""

LOOK_FIRST_S: Final = 0.05
LOOK_LAST_S: Final = 1.0
"""How often newcomers are looked for during a grace, since forks are not announced: doubled from first to last."""

KILL_EVERY_S: Final = 0.005
KILL_LATER_S: Final = 10.0
"""How often KILL is sent until nobody is left, and how often once the last rung has been reported as failed."""

RECORD_EVERY_S: Final = 1.0
RECORD_WITHIN_S: Final = 30.0
"""A disk that refuses the exit record is asked again, unless an owner has been told what would be in it."""


class Keeper:
    """Stands by one birth. Runs in a process of its own, which `stand` ends with."""

    def __init__(
        self,
        order: Birth,
        first: socket.socket,
        packed: bytes,
        lock: int,
        descriptors: list[int],
        inbox: Inbox,
        ledger: Ledger,
    ) -> None:
        """Take over what came with the order.

        Raises:
            ValueError: The order cannot be understood.
        """
        self._order = order
        self._first = first
        self._lock = lock
        self._descriptors = descriptors
        self._inbox = inbox
        self._ledger = ledger
        self._policy: StopPolicy = unpack_stop(order.stop)
        self._death: DeathPolicy = unpack_death(order.death)
        self._launch = unpack(packed, order.targets, descriptors, parent_death=KILL)
        self._papers = Papers(order.births, birth_id(order.birth))
        self._poller = select.poll()
        self._poller.register(inbox.fd, select.POLLIN)
        self._why = ""
        self._exited: Exited | None = None
        # Instants on the monotonic clock; None: not begun.
        self._term_again_at: float | None = None
        self._look_s = LOOK_FIRST_S
        self._kill_at: float | None = None
        self._settled_at: float | None = None
        self._leave_at: float | None = None
        self._reported = False
        self._alone = False
        self._early: list[tuple[Line, Message]] = []
        """What was asked before there was a child."""

    def stand(self) -> int:
        """Give birth, stand by until the set is empty, write it down; returns the exit code.

        Zero says that nothing is left and all is written, or that nothing came to be. Anything else, and a
        signal, has the nursery look for what is left.
        """
        listener = self._ready()
        if listener is None:
            return 0
        try:
            if not self._give_birth(listener):
                return 0
            self._stand()
            return self._end()
        finally:
            with suppress(OSError):
                os.unlink(f"{self._order.run}/{protocol.name_of(self._order.birth)}")

    # -- birth ------------------------------------------------------------------

    def _ready(self) -> socket.socket | None:
        """Be what a keeper must be before there is a child; None when that cannot be, which has been told."""
        if not become_subreaper():
            self._not_born(errno.ENOSYS, Step.SPAWN, "the kernel does not let us keep descendants")
            return None
        try:
            return protocol.listen(self._order.run, self._order.birth)
        except OSError as err:
            self._not_born(err.errno or 0, Step.SPAWN, f"its keeper could not open its socket: {err}")
            return None

    def _give_birth(self, listener: socket.socket) -> bool:
        order = self._order
        self._lines = Lines(self._poller, listener, self._first, order.epoch)
        if self._owner_has_gone():
            # Whoever ordered it has died meanwhile; what never was needs no policy.
            self._not_born(errno.EOWNERDEAD, Step.PARENT, "its owner was gone before it was started")
            return False
        why = self._lock_held() if order.lock else ""
        if why:
            self._not_born(errno.EWOULDBLOCK, Step.LOCK, why)
            return False
        try:
            pid, pidfd = launch(self._launch)
        except LaunchFailed as err:
            self._not_born(err.errno, err.step, str(err))
            return False
        self._ledger.write(pid)
        del self._launch  # an environment may be megabytes
        for fd in self._descriptors:
            os.close(fd)
        leader = load().pin(pid) if pidfd is None else load().adopt_pidfd(pid, pidfd)
        self._set = KeptSet(leader, "keeper")
        self._identity = self._written_down()
        self._me = _identity_of_this_process()
        unwritten = ""
        try:
            self._papers.born(self._identity, keeper=self._me)
        except OSError as err:
            unwritten = str(err)
        self._lines.tell(
            Born(self._identity.to_dict(), self._me.to_dict(), self._read_back(), unwritten), self._pidfd()
        )
        for line, message in self._early:
            self._answer(line, message)
        return True

    def _lock_held(self) -> str:
        """Take the service's lock; returns why it is not to be had, empty when it is ours.

        It is held until we and our nursery have both let go: the nursery does when nothing of the set is left.
        """
        import fcntl

        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A lock on a file that was removed or replaced meanwhile keeps nobody out.
            ours, there = os.fstat(self._lock), os.stat(self._order.lock)
        except OSError as err:
            return f"its lock {self._order.lock} is held, or cannot be taken: {err}"
        if (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino):
            return f"its lock {self._order.lock} was replaced while it was taken"
        return ""

    def _owner_has_gone(self) -> bool:
        for fd, what in self._poller.poll(0):
            if fd in self._lines:
                line, heard, over = self._lines.hear(fd, what)
                self._early += [(line, message) for message in heard]
                if over:
                    self._lines.drop(line)
        return self._lines.controller is None

    def _written_down(self) -> Identity:
        """Return who was born. It is ours and unreaped, so that this cannot be about anybody else."""
        sighting = load().observe(self._set.leader, environ=False)
        assert sighting is not None
        order = self._order
        return sighting.identity(
            birth=birth_id(order.birth),
            installation=installation_id(order.installation),
            kind=ChildKind(order.kind),
            service=service_name(order.service),
        )

    def _read_back(self) -> str:
        """Prove the child as somebody will have to who holds nothing: "same", or why it could not be."""
        try:
            proof = prove(self._identity)
        except LookFailed as err:
            return str(err)
        return Verdict.SAME.value if proof.verdict in (Verdict.SAME, Verdict.GONE) else str(proof)

    def _not_born(self, number: int, step: str, why: str) -> None:
        with suppress(OSError):
            # If the disk refuses, the intent alone is left: a later sweep finds nobody and says so.
            self._papers.never_born(why)
        with suppress(OSError):
            self._first.setblocking(False)
            protocol.send(self._first, NotBorn(number, step, why))

    # -- life -------------------------------------------------------------------

    def _stand(self) -> None:
        while not self._set.take_in():
            now = time.monotonic()
            if self._set.status is not None and self._exited is None:
                self._leader_exited()
                self._begin_ending(now, "its leader ended", self._policy)
            if self._lines.controller is None and not self._alone:
                self._left_alone(now)
            self._act(now)
            self._listen(self._patience_s(time.monotonic()))

    def _left_alone(self, now: float) -> None:
        """Nobody controls us any more: do what the service's death policy says."""
        self._alone = True
        if not self._death.outlive:
            self._begin_ending(now, "its owner vanished", self._policy)
        elif self._death.for_s is not None:
            self._leave_at = now + self._death.for_s

    def _leader_exited(self) -> None:
        status = self._set.status
        assert status is not None
        self._exited = Exited(status.code, status.signal, status.core_dumped, round(time.time(), 3))
        self._lines.tell(self._exited)

    def _begin_ending(self, now: float, why: str, policy: StopPolicy, *, force: bool = False) -> None:
        """Begin the ladder, or shorten what is under way; nobody can lengthen it."""
        kill_at = now if force else now + policy.term_grace_s
        if self._kill_at is not None:
            self._kill_at = min(self._kill_at, kill_at)
            return
        self._why, self._kill_at, self._policy = why, kill_at, policy
        self._set.asked_by = why
        self._lines.tell(Stopping(why))
        if not force:
            self._set.send(policy.stop_signal)
            self._term_again_at = now + self._look_s

    def _act(self, now: float) -> None:
        """Do what is due."""
        if self._leave_at is not None and now >= self._leave_at:
            self._leave_at = None
            self._begin_ending(now, f"its owner vanished {self._death.for_s:g} s ago", self._policy)
        if self._kill_at is None:
            return
        if now >= self._kill_at:
            self._set.insist()
            if self._settled_at is None:
                self._settled_at = now + self._policy.settle_s
            elif now >= self._settled_at and not self._reported:
                self._reported = True
                self._lines.tell(Survived(self._receipt(empty=False).to_dict()))
        elif self._term_again_at is not None and now >= self._term_again_at:
            self._set.send(self._policy.stop_signal)
            self._look_s = min(self._look_s * 2, LOOK_LAST_S)
            self._term_again_at = now + self._look_s

    def _patience_s(self, now: float) -> float | None:
        """Return how long nothing is due; None for ever."""
        times = [self._leave_at] if self._leave_at is not None else []
        if self._kill_at is not None:
            if now >= self._kill_at:
                return KILL_LATER_S if self._reported else KILL_EVERY_S
            times.append(self._kill_at)
            if self._term_again_at is not None:
                times.append(self._term_again_at)
        return max(0.0, min(times) - now) if times else None

    def _listen(self, for_s: float | None) -> None:
        # Rounded up, or the last millisecond would be spent in circles.
        for fd, what in self._poller.poll(None if for_s is None else int(for_s * 1000) + 1):
            if fd == self._inbox.fd:
                for arrived in self._inbox.take():
                    if arrived.number != signal.SIGCHLD:
                        self._begin_ending(
                            time.monotonic(), f"its keeper got {signal_name(arrived.number)}", self._policy
                        )
            elif fd == self._lines.listener_fd:
                self._lines.accept()
            elif fd in self._lines:  # one of this round may have ended another
                line, heard, over = self._lines.hear(fd, what)
                for message in heard:
                    self._answer(line, message)
                if over:
                    self._lines.drop(line)

    # -- orders -----------------------------------------------------------------

    def _answer(self, line: Line, message: Message) -> None:
        if isinstance(message, Hello):
            self._welcome(line, message)
        elif line is not self._lines.controller:
            line.tell(Refused("this connection does not control"))
        elif isinstance(message, Stop):
            self._on_stop(line, message)
        elif isinstance(message, Dying):
            try:
                self._death = unpack_death(message.death)
            except ValueError as err:
                line.tell(Refused(str(err)))
        else:
            line.tell(Refused(f"a keeper is not told {type(message).__name__}"))

    def _welcome(self, line: Line, hello: Hello) -> None:
        if hello.control:
            why = self._lines.take_control(line, hello.epoch)
            if why:
                line.tell(Refused(why))
                return
            self._alone, self._leave_at = False, None
        line.epoch = hello.epoch
        line.tell(
            Welcome(
                self._identity.to_dict(),
                self._me.to_dict(),
                self._lines.epoch,
                self._why,
                None if self._exited is None else list(self._exited),
            ),
            self._pidfd(),
        )

    def _on_stop(self, line: Line, message: Stop) -> None:
        try:
            policy = self._policy if message.stop is None else unpack_stop(message.stop)
        except ValueError as err:
            line.tell(Refused(str(err)))
            return
        self._begin_ending(time.monotonic(), f"asked by {message.asked_by}", policy, force=message.force)
        if self._reported:
            # Asked once more after the last rung: tried once more, and reported once more.
            self._reported, self._settled_at = False, None

    def _pidfd(self) -> list[int]:
        fd = self._set.leader.fd
        return [] if fd is None else [fd]

    # -- end --------------------------------------------------------------------

    def _end(self) -> int:
        if self._exited is None:
            self._leader_exited()
        status = self._set.status
        assert status is not None
        why = self._why or "its leader ended"
        receipt = self._receipt(empty=True).to_dict() if self._set.began is not None else None
        # Before the leader is reaped: killed in between, we leave a zombie that still tells its status.
        unwritten, told = self._record(status, why, receipt)
        if not told:
            self._tell_end(status, why, receipt, unwritten)
        self._ledger.write(0)
        self._set.bury()
        self._lines.close()
        return 3 if unwritten and not told else 0

    def _record(self, status: ExitStatus, why: str, receipt: dict[str, object] | None) -> tuple[str, bool]:
        """Write the exit record; returns why it is not written, and whether an owner was told all of it instead."""
        assert self._exited is not None
        until = time.monotonic() + RECORD_WITHIN_S
        while True:
            try:
                self._papers.ended(
                    status, why=why, survivors=[], exited_at=self._exited.at, receipt=receipt, by="keeper"
                )
                return "", False
            except FileExistsError:
                return "", False
            except OSError as err:
                unwritten = str(err)
            if self._tell_end(status, why, receipt, unwritten):
                return unwritten, True
            if time.monotonic() >= until:
                return unwritten, False
            self._listen(RECORD_EVERY_S)

    def _tell_end(
        self, status: ExitStatus, why: str, receipt: dict[str, object] | None, unwritten: str
    ) -> bool:
        return self._lines.tell(
            Ended(status.code, status.signal, status.core_dumped, why, receipt, unwritten)
        )

    def _receipt(self, *, empty: bool) -> Receipt:
        return self._set.receipt(self._order.service, empty=empty)


def _identity_of_this_process() -> Identity:
    with load().pin(os.getpid()) as pinned:
        sighting = load().observe(pinned, environ=False)
        assert sighting is not None
        return sighting.identity()


def keep(body: bytes, descriptors: list[int], inbox: Inbox, ledger: Ledger) -> int:
    """Be the keeper of one birth, from the fork to the end; returns the exit code.

    Closes every descriptor that is not its own: a socket of the nursery kept open here would hide an
    end-of-file from whoever waits for it.
    """
    share_facts_with_parent()
    close_all_but({0, 1, 2, inbox.fd, ledger.fd, *descriptors})
    first = socket.socket(fileno=descriptors[0])
    order: protocol.Message | None = None
    try:
        order = protocol.decode(body)
        if not isinstance(order, Birth):
            raise BadMessage(f"no birth: {type(order).__name__}")
        packed = protocol.read_whole(descriptors[1])
        os.close(descriptors[1])
        keeper = Keeper(order, first, packed, descriptors[2], descriptors[3:], inbox, ledger)
    except (ValueError, IndexError, BadMessage) as err:
        if isinstance(order, Birth):
            with suppress(OSError, ValueError):
                Papers(order.births, birth_id(order.birth)).never_born(str(err))
        with suppress(OSError):
            protocol.send(first, NotBorn(errno.EINVAL, Step.SPAWN, str(err)))
        return 0
    try:
        return keeper.stand()
    except Exception:
        import traceback

        # The child dies with us, and the nursery ends what it leaves. Why, stands in the nursery's log.
        traceback.print_exc()
        return 70
