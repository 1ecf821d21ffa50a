"""Standing by one command: what is waited for, and what is done about it.

Everything that can happen arrives on a descriptor, so nothing is polled while nothing happens. What has been
begun goes down one ladder:

    end of input, client's death    wait `eof_grace_s`, then the rung below
    a signal that asks us to stop   the leader gets that signal, once, unless the terminal gave it already
    a third of the grace later,     everybody else gets TERM (wrappers that pass a signal on have done so by
    or when the leader has ended    then), and the leader TERM at two thirds if it had another signal before
    `grace_s` after the signal      KILL for whoever is there, again and again until nobody is
"""

from __future__ import annotations

import math
import os
import select
import signal
import time
from contextlib import suppress
from typing import Final

from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import ExitStatus, signal_name
from birthmark.errors import LookFailed
from birthmark.keeper.client import HANG_UP, client_is_gone, hangs_up
from birthmark.keeper.descent import Descent
from birthmark.keeper.options import Request
from birthmark.keeper.witness import Witness
from birthmark.platforms import jobs, load
from birthmark.platforms.contract import Pinned
from birthmark.platforms.inbox import Arrived, Inbox

TERM: Final = int(signal.SIGTERM)
KILL: Final = int(signal.SIGKILL)

# Later ones include the earlier: INT, then TERM, as one host sends them, is one request.
ASKS_TO_STOP: Final = {int(signal.SIGHUP): 0, int(signal.SIGINT): 1, TERM: 2}

# Not ours to pass on: what nobody can catch, our own children, and what the kernel tells a writer or a reader.
_KEPT: Final = frozenset({
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGXFSZ,
})  # fmt: skip

PASSED_ON: Final = frozenset(int(number) for number in signal.valid_signals() - _KEPT) - ASKS_TO_STOP.keys()
"""All others, those of a fault too: sent by somebody, they would end us and leave the set. A fault of our own ends us still."""

HARMLESS: Final = frozenset(
    int(number) for number in (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH, signal.SIGURG)
)
"""These end nobody by default, so the witness cannot tell; and it stops with the job, so it would not answer."""

OTHERS_AFTER_S: Final = 0.3
"""At most: hosts that lose patience fastest kill us half a second after their first signal."""

HURRIED_S: Final = 0.2
"""The grace that is left after a second request."""

SETTLE_S: Final = 2.0
"""How long nobody new may be found to kill before we say who would not go: an uninterruptible sleep, another user."""

STORM_S: Final = 10.0
"""The same while there is always somebody new: processes that fork and die faster than we look."""

LOOK_EVERY_S: Final = 0.05
"""While a stop is under way, forks are not announced: how often newcomers are looked for."""

KILL_EVERY_S: Final = 0.005
CLIENT_EVERY_S: Final = 1.0
"""How often the client is looked at on a kernel without pidfds."""


class Standing:
    """One command and its set, until nothing of it is left."""

    def __init__(
        self,
        request: Request,
        leader: Pinned,
        client: Pinned | None,
        inbox: Inbox,
        witness: Witness,
        *,
        outlives_client: bool,
        early: list[Arrived],
    ) -> None:
        """Take charge of `leader`, our unreaped child, and of the rest. The witness was posted before the leader was born.

        `early`: the signals that came before the leader was there for certain.
        `outlives_client`: the user said so by ``nohup``; then only signals and the command's own end count.
        """
        self.set = Descent(leader, "run")
        self.why = "the command ended"
        self._request = request
        self._inbox = inbox
        self._early = early
        self._witness = witness
        self.set.aside = witness.pids
        self._client = None if outlives_client else client
        self._poller = select.poll()
        self._poller.register(inbox.fd, select.POLLIN)
        if self._client is not None and self._client.fd is not None:
            self._poller.register(self._client.fd, select.POLLIN)
        if request.kind is ChildKind.MCP and not outlives_client and hangs_up(0):
            self._poller.register(0, HANG_UP)
        # Instants on the monotonic clock; None: not begun.
        self._term_at: float | None = None
        self._others_at: float | None = None
        self._leader_again_at: float | None = None
        self._kill_at: float | None = None
        self._next_kill_at = self._killed_at = 0.0
        self._rank = -1

    @staticmethod
    def listens_to(ignored: frozenset[int]) -> list[int]:
        """Return the signals the inbox must take; SIGCHLD is set to its default, or the kernel would reap for us."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Writing a warning to the terminal must not stop us, nor is there anything we read.
        for number in (signal.SIGTTIN, signal.SIGTTOU):
            signal.signal(number, signal.SIG_IGN)
        return [int(signal.SIGCHLD), *((PASSED_ON | ASKS_TO_STOP.keys()) - ignored)]

    def stand(self) -> tuple[ExitStatus, list[int]]:
        """Wait until the command has ended and nothing of it is left.

        Returns:
            How the command ended, and the pids that would not go, which is none but for an uninterruptible
            sleep or another user's process.
        """
        try:
            survivors = self._until_gone()
        finally:
            self._witness.close()
        return self.set.bury(), survivors

    def _until_gone(self) -> list[int]:
        self._on_signals(time.monotonic(), self._early, early=True)
        while not self.set.take_in():
            now = time.monotonic()
            if self.set.status is not None and self._kill_at is None:
                self._begin_ending(now)
            if not self._act(now):
                return [member.pinned.pid for member in self.set.members()]
            self._mirror_stop()
            self._listen(self._patience_s(time.monotonic()))
        return []

    def report(self) -> list[str]:
        """Return what was done, for people, one line each."""
        lines = [f"ended because {self.why}"]
        lines += [f"sent {name} to {pid}" for pid, name in self.set.signalled]
        return lines

    def refusals(self) -> str:
        """Return why signals could not be sent, as one line; empty when all could."""
        return "; ".join(self.set.refused.values())

    # -- what is due ------------------------------------------------------------

    def _begin_ending(self, now: float) -> None:
        """The leader is gone: the rest gets TERM now."""
        self._others_at = now
        self._kill_at = now + self._request.grace_s

    def _act(self, now: float) -> bool:
        """Do what is due; False when the last rung has failed."""
        if self._term_at is not None and now >= self._term_at:
            self._term_at = None
            self._ask(now, TERM)
        if self.set.status is not None and self._others_at is not None:
            self._others_at = min(self._others_at, now)
        if self._kill_at is not None and now >= self._kill_at:
            if now >= min(max(self._kill_at, self._killed_at) + SETTLE_S, self._kill_at + STORM_S):
                return False
            told = self.set.tell_others(KILL)
            if not self.set.leader_was_given(KILL):
                self.set.tell_leader(KILL)
            # While there is somebody new, every millisecond counts: what forks must be met before it forks again.
            self._killed_at = now if told else self._killed_at
            self._next_kill_at = now if told else now + KILL_EVERY_S
            return True
        if self._leader_again_at is not None and now >= self._leader_again_at:
            self._leader_again_at = None
            if not self.set.leader_was_given(TERM):
                self.set.tell_leader(TERM)
        if self._others_at is not None and now >= self._others_at:
            self.set.tell_others(TERM)
        return True

    def _ask(self, now: float, sig: int, *, leader_has_it: bool = False) -> None:
        """Begin the part of the ladder that starts with a signal."""
        self._term_at = None
        if not leader_has_it and not self.set.leader_was_given(sig):
            self.set.tell_leader(sig)
        grace_s = self._request.grace_s
        if self._kill_at is None:
            self._others_at = now + min(OTHERS_AFTER_S, grace_s / 3)
            self._kill_at = now + grace_s
            if sig != TERM:
                self._leader_again_at = now + grace_s * 2 / 3
        elif sig == TERM:
            self._leader_again_at = None

    def _wait_for_end(self, now: float, why: str) -> None:
        """The client is gone or will write no more. The command knows from its stdin, and may still have to finish."""
        if self._term_at is None and self._kill_at is None:
            self.why = why
            self._term_at = now + self._request.eof_grace_s

    def _patience_s(self, now: float) -> float | None:
        """Return how long nothing is due; None for ever."""
        times = [at for at in (self._term_at, self._leader_again_at) if at is not None]
        if self._kill_at is not None:
            if now >= self._kill_at:
                return max(0.0, self._next_kill_at - now)
            times.append(self._kill_at)
            # Newcomers matter once the others are being asked; until then the next instant is enough.
            if self._others_at is not None:
                times.append(self._others_at if now < self._others_at else now + LOOK_EVERY_S)
        if self._client is not None and self._client.fd is None:
            times.append(now + CLIENT_EVERY_S)
        return max(0.0, min(times) - now) if times else None

    # -- what has happened ------------------------------------------------------

    def _listen(self, for_s: float | None) -> None:
        # Rounded up, or the last millisecond would be spent in circles.
        events = self._poller.poll(None if for_s is None else math.ceil(for_s * 1000))
        now = time.monotonic()
        for fd, what in events:
            if fd == self._inbox.fd:
                self._on_signals(now, self._inbox.take())
            elif fd == 0:
                self._poller.unregister(0)
                if what & HANG_UP:
                    self._wait_for_end(now, "its input ended")
            else:
                self._client_gone(now)
        if self._client is not None and self._client.fd is None and client_is_gone(self._client):
            self._client_gone(now)

    def _client_gone(self, now: float) -> None:
        client, self._client = self._client, None
        if client is not None:
            if client.fd is not None:
                self._poller.unregister(client.fd)
            client.close()
            self._wait_for_end(now, "the client is gone")

    def _on_signals(self, now: float, arrived: list[Arrived], *, early: bool = False) -> None:
        arrived = [each for each in arrived if each.number != signal.SIGCHLD]
        if not arrived:
            return
        group_got = self._witness.fell_to() if any(each.number not in HARMLESS for each in arrived) else None
        if group_got is not None and self.set.status is None:
            # Before the leader is told anything: what may come next wants a witness, too.
            self._witness.relieve()
        # The kernel hands them out by number. A CONT that waited until after the others could undo a later stop.
        for each in sorted(arrived, key=lambda each: each.number != signal.SIGCONT):
            self._on_signal(now, each, group_got, early=early)

    def _on_signal(self, now: float, arrived: Arrived, group_got: int | None, *, early: bool) -> None:
        number, sender = arrived
        if sender is not None and self._is_member(sender):
            # `kill 0` in a script reaches us only because we stand in its group; it is the command's own affair.
            return
        # Whoever was in the group when the witness fell need not have been the leader yet. Told twice, it still
        # gets one: nobody has a handler that early.
        has_it = not early and self._leader_has_it(number, sender, group_got)
        if number not in ASKS_TO_STOP:
            if number == signal.SIGCONT:
                self._continue_leader()
            elif not has_it:
                self.set.tell_leader(number)
            return
        if number == signal.SIGINT and sender is None and self._kill_at is None and self._term_at is None:
            # ^C is the command's to understand: a prompt survives it, and what ends of it ends us.
            if early:
                self.set.tell_leader(number)
            return
        rank = ASKS_TO_STOP[number]
        if (
            self._kill_at is not None
            and (rank <= self._rank or self.set.status is not None)
            and number != signal.SIGHUP
        ):
            self._kill_at = min(self._kill_at, now + HURRIED_S)
            self._others_at = now
        elif self._rank < 0 and self._kill_at is None:
            self.why = f"we got {signal_name(number)}"
        self._rank = max(self._rank, rank)
        self._ask(now, number, leader_has_it=has_it)

    def _leader_has_it(self, number: int, sender: int | None, group_got: int | None) -> bool:
        """Say whether the leader got this signal without us, as a member of the group that was meant."""
        if load().group_of(self.set.leader.pid) != os.getpgrp():
            return False
        if sender is not None:
            return number == group_got
        # The terminal's signals go to the foreground group; but a session's leader is told its hang-up alone.
        return number != signal.SIGHUP or not jobs.leads_session()

    def _is_member(self, pid: int) -> bool:
        platform = load()
        me = os.getpid()
        seen: set[int] = set()
        at: int | None = pid
        while at and at not in seen and at != 1:
            if at == me:
                return pid != me
            seen.add(at)
            try:
                at = platform.parent_of(at)
            except LookFailed:
                return False
        # In a container whoever was put in from outside has no parent there, and is nobody's descendant.
        return me == 1 and at == 1 and pid != 1

    # -- job control ------------------------------------------------------------

    def _mirror_stop(self) -> None:
        """Stop when the command has stopped, so that the shell sees the job stop; continue it when we are."""
        if self.set.status is None and jobs.stopped_by(self.set.leader.pid) is not None and jobs.in_a_job():
            jobs.suspend_ourselves()
            self._continue_leader()

    def _continue_leader(self) -> None:
        with suppress(LookFailed):
            sighting = load().observe(self.set.leader, environ=False)
            if sighting is None or sighting.state != "T":
                return
        self.set.tell_leader(signal.SIGCONT)
