"""The nursery: the small process that keepers are forked from, and what a lost keeper leaves falls to.

One per owner, started by the exec of a bare interpreter: it has imported what a keeper needs and nothing else,
so a fork of it costs what a small process costs, whatever the owner weighs. It leads a session of its own (no
^C and no hang-up reaches it), is a subreaper and its keepers' parent, and outlives its owner until its last
keeper has gone. It has one thread, or its forks would not be safe.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from birthmark.core.markers import is_tag, tag_of
from birthmark.core.outcomes import ExitStatus
from birthmark.core.policies import StopPolicy
from birthmark.core.service import birth_id
from birthmark.errors import LookFailed, ProcessGone
from birthmark.keeper import protocol
from birthmark.keeper.keeper import KILL, KILL_EVERY_S, LISTENS_TO, LOOK_FIRST_S, keep
from birthmark.keeper.ledger import Book, Ledger
from birthmark.keeper.order import unpack_stop
from birthmark.keeper.papers import Papers, exit_of
from birthmark.keeper.protocol import BadMessage, Birth, Lost, NotBorn
from birthmark.keeper.set import Members
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned
from birthmark.platforms.inbox import Inbox
from birthmark.platforms.launch import Step
from birthmark.platforms.linux import become_subreaper, read_tag
from birthmark.platforms.posix import exited_child, reap

assert sys.platform == "linux"

_AT_ONCE: Final = 32
"""Births taken in one go, so that an exit is not waited for behind a hundred of them."""


_REMEMBERED: Final = 100
"""Ends of what fell to us that are remembered, until it is known that their keeper was lost."""


class _Loss:
    """A keeper that ended without its set, and what has become of that so far."""

    __slots__ = ("keeper", "kill_at", "leader", "lock", "order", "policy", "settled_at", "status", "tag")

    def __init__(self, keeper: int, order: Birth, leader: int, lock: int, now: float) -> None:
        self.keeper, self.order, self.leader, self.lock = keeper, order, leader, lock
        self.policy: StopPolicy = unpack_stop(order.stop)
        self.tag = tag_of(birth_id(order.birth))
        self.status: ExitStatus | None = None
        self.kill_at = now + self.policy.term_grace_s
        self.settled_at = self.kill_at + self.policy.settle_s

    def take(self, pid: int, tag: int | None, status: ExitStatus) -> None:
        """Look whether somebody who has ended was this birth's leader, and remember how it ended."""
        if self.status is not None or (tag is not None and is_tag(tag) and tag != self.tag):
            return
        # A keeper killed within the microseconds of its child's birth has not told the number.
        if pid == self.leader or (not self.leader and tag == self.tag):
            self.status = status


class _Leftovers(Members):
    """What lost keepers have left: all that lives below the nursery and below no keeper."""

    def __init__(self, keepers: Collection[int]) -> None:
        super().__init__("a keeper was lost")
        self._keepers = keepers

    def aside(self) -> Collection[int]:
        return self._keepers


class Nursery:
    """Forks a keeper for each birth, reaps keepers, ends what lost ones leave."""

    def __init__(self, channel: socket.socket, owner: Pinned | None, inbox: Inbox) -> None:
        """Serve `channel`. `owner` is the process at its other end, None when it is gone already."""
        self._channel: socket.socket | None = channel
        self._owner = owner
        self._inbox = inbox
        self._book = Book()
        self._keepers: dict[int, tuple[bytes, Ledger, int]] = {}
        """By pid: the order as it came, the slot in the book, and our hold of the service's lock."""
        self._lost: list[_Loss] = []
        self._leftovers = _Leftovers(self._keepers)
        self._fallen: list[tuple[int, int | None, ExitStatus]] = []
        self._closing = False
        self._poller = select.poll()
        self._poller.register(inbox.fd, select.POLLIN)
        channel.setblocking(False)
        self._poller.register(channel, select.POLLIN)
        if owner is None:
            self._owner_gone()
        elif owner.fd is not None:
            self._poller.register(owner.fd, select.POLLIN)

    def serve(self) -> None:
        """Return when nobody will ask for another birth and the last keeper, with all it left, has gone."""
        while True:
            self._look()
            if self._keepers or self._lost:
                pass
            elif self._closing or self._channel is None:
                return
            for fd, _ in self._poller.poll(self._patience_ms()):
                if fd == self._inbox.fd:
                    # TERM, as a whole set gets it when an outer one is stopped: the keepers have it as well.
                    self._closing |= any(each.number != signal.SIGCHLD for each in self._inbox.take())
                elif self._owner is not None and fd == self._owner.fd:
                    # Nobody waits any more for what it asked for last, and nothing has come of that: the
                    # intents among the papers say so by having nothing beside them.
                    self._owner_gone()
                elif self._channel is not None and fd == self._channel.fileno():
                    self._take_orders()

    def _owner_gone(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            self._poller.unregister(channel)
            channel.close()
        owner, self._owner = self._owner, None
        if owner is not None and owner.fd is not None:
            self._poller.unregister(owner.fd)
            owner.close()

    # -- births -----------------------------------------------------------------

    def _take_orders(self) -> None:
        for _ in range(_AT_ONCE):
            if self._channel is None:
                return
            try:
                found = protocol.receive_body(self._channel)
            except BlockingIOError:
                return
            except BadMessage as err:
                # Its descriptors are closed, which tells whoever waits at the other end.
                sys.stderr.write(f"{err}\n")
                continue
            except OSError:
                found = None
            if found is None:
                self._owner_gone()
                return
            self._fork_keeper(*found)

    def _fork_keeper(self, body: bytes, descriptors: list[int]) -> None:
        if len(descriptors) < 3:
            for fd in descriptors:
                os.close(fd)
            return
        ledger = self._book.open()
        try:
            if self._closing:
                raise OSError(errno.ESHUTDOWN, "the nursery takes no more births")
            pid = os.fork()
        except OSError as err:
            self._book.close(ledger)
            self._refuse(body, descriptors[0], err)
        else:
            if pid == 0:
                code = 70
                try:
                    code = keep(body, descriptors, self._inbox, ledger)
                finally:
                    # Never back into the nursery's loop, whatever happened.
                    os._exit(code)
            # A copy of the keeper's lock, which so is held until what a lost keeper leaves has gone, too.
            self._keepers[pid] = (body, ledger, descriptors.pop(2))
        # Or end-of-file would never come to whoever waits at the other end.
        for fd in descriptors:
            os.close(fd)

    def _refuse(self, body: bytes, first: int, err: OSError) -> None:
        with suppress(OSError, ValueError, BadMessage):
            order = protocol.decode(body)
            if isinstance(order, Birth):
                Papers(order.births, birth_id(order.birth)).never_born(str(err))
        with suppress(OSError):
            # Born yesterday, its buffer is empty: this cannot block.
            with socket.socket(fileno=os.dup(first)) as connection:
                protocol.send(connection, NotBorn(err.errno or errno.EAGAIN, Step.SPAWN, str(err)))

    # -- ends -------------------------------------------------------------------

    def _look(self) -> None:
        """Reap who has ended, and go on with what lost keepers left. Nothing is held back here."""
        while (pid := exited_child()) is not None:
            if pid in self._keepers:
                self._keeper_ended(pid)
            else:
                self._fallen_ended(pid)
        if self._lost:
            self._end_leftovers(time.monotonic())

    def _keeper_ended(self, pid: int) -> None:
        status = reap(pid)
        body, ledger, lock = self._keepers.pop(pid)
        leader = ledger.read()
        self._book.close(ledger)
        if status == ExitStatus(code=0):
            os.close(lock)
            return
        try:
            order = protocol.decode(body)
            assert isinstance(order, Birth)
            # Its children fell to us before it could be reaped.
            loss = _Loss(pid, order, leader, lock, time.monotonic())
        except (BadMessage, AssertionError, ValueError) as err:
            os.close(lock)
            sys.stderr.write(f"the keeper {pid} of no birth was lost: {status}; {err}\n")
            return
        for fallen in self._fallen:
            loss.take(*fallen)
        self._lost.append(loss)
        sys.stderr.write(f"the keeper {pid} of birth {order.birth} was lost: {status}\n")

    def _fallen_ended(self, pid: int) -> None:
        tag = read_tag(pid)  # unreaped, it has one still
        status = reap(pid)
        if status is None:
            return
        self._leftovers.note_end(pid, status)
        # A keeper has more than one thread: what it leaves may be here a moment before its end can be seen.
        self._fallen.append((pid, tag, status))
        del self._fallen[:-_REMEMBERED]
        for loss in self._lost:
            loss.take(pid, tag, status)

    def _end_leftovers(self, now: float) -> None:
        if not self._anybody_left():
            for loss in self._lost:
                self._record(loss, [])
            self._lost.clear()
            self._leftovers = _Leftovers(self._keepers)
            return
        stop_signals = {loss.policy.stop_signal for loss in self._lost}
        self._leftovers.send(stop_signals.pop() if len(stop_signals) == 1 else signal.SIGTERM)
        if any(now >= loss.kill_at for loss in self._lost):
            self._leftovers.send(KILL, again=True, only=lambda pid: now >= self._kill_at(pid))
        settled = [loss for loss in self._lost if now >= loss.settled_at]
        if settled:
            survivors = self._leftovers.living()
            for loss in settled:
                self._lost.remove(loss)
                self._record(loss, survivors)

    def _anybody_left(self) -> bool:
        try:
            return any(pid not in self._keepers for pid in load().children_of(os.getpid()))
        except LookFailed:
            return True  # we could not look, which is not *nobody*

    def _kill_at(self, pid: int) -> float:
        """Return when a leftover's grace is over: its own birth's if it carries its tag, else the first to end."""
        tag = read_tag(pid)
        own = [loss.kill_at for loss in self._lost if loss.tag == tag]
        return min(own or [loss.kill_at for loss in self._lost])

    def _record(self, loss: _Loss, survivors: list[int]) -> None:
        """Write down how a lost birth ended, unless its keeper had done so; tell the owner."""
        order = loss.order
        if not survivors:
            os.close(loss.lock)  # else it is held as long as we are there
        births, birth = order.births, birth_id(order.birth)
        began = self._leftovers.began is not None
        receipt = self._leftovers.receipt(order.service, empty=not survivors).to_dict() if began else None
        told = loss.leader or loss.status is not None
        with suppress(OSError):
            Papers(births, birth).ended(
                loss.status or ExitStatus(),
                why="its keeper was lost" if told else "its keeper was lost before it told of a child",
                survivors=survivors,
                exited_at=round(time.time(), 3),
                receipt=receipt,
                by="nursery",
            )
        status = exit_of(births, birth) or loss.status or ExitStatus()
        with suppress(OSError):
            os.unlink(f"{order.run}/{protocol.name_of(birth)}")
        if self._channel is not None:
            with suppress(OSError):
                protocol.send(
                    self._channel,
                    Lost(birth, loss.keeper, status.code, status.signal, status.core_dumped, survivors),
                )

    def _patience_ms(self) -> int | None:
        if not self._lost:
            return None
        now = time.monotonic()
        first = min(loss.kill_at for loss in self._lost)
        for_s = KILL_EVERY_S if now >= first else min(LOOK_FIRST_S, first - now)
        return int(for_s * 1000) + 1


def main(words: list[str]) -> None:
    """Be a nursery: `words` are the descriptor of the channel and the pid of its owner, our parent."""
    channel = socket.socket(fileno=int(words[0]))
    owner_pid = int(words[1])
    inbox = Inbox(LISTENS_TO)
    if not become_subreaper():
        sys.exit("the kernel does not let us keep descendants (prctl PR_SET_CHILD_SUBREAPER)")
    os.chdir("/")
    try:
        # Asked again with the process held: had it died before, somebody else would be our parent by now.
        owner: Pinned | None = load().pin(owner_pid)
    except (ProcessGone, LookFailed):
        owner = None
    if owner is not None and os.getppid() != owner_pid:
        owner.close()
        owner = None
    nursery = Nursery(channel, owner, inbox)
    # What is found out once is found out here, for all keepers.
    load().capabilities()
    load().facts()
    # What a keeper shares with us is what neither of us writes to; a collection would touch every object.
    gc.collect()
    gc.freeze()
    nursery.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
