"""A child: a process we spawned, held by its pidfd since birth."""

from __future__ import annotations

import errno
import io
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Protocol

from birthmark.children.command import Command, unarmed_reason
from birthmark.children.reaping import Fate
from birthmark.children.waiting import POLL_S, wait_readable
from birthmark.core.identity import Identity, Proof, gone
from birthmark.core.judging import judge
from birthmark.core.outcomes import ExitStatus
from birthmark.core.service import BirthId
from birthmark.errors import LookFailed, ProcessGone
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned

_AT_ONCE_S: Final = 60.0
"""The longest single wait for an exit."""


class Owner(Protocol):
    """Who a child belongs to, and who reaps it when nobody holds it any more."""

    def ended(self, child: Child) -> None:
        """Take note that the child was reaped."""
        ...

    def dropped(self, child: Child) -> Fate | None:
        """Take over a child nobody holds any more; None when there is nothing to take over."""
        ...

    def reap_dropped(self) -> None:
        """Reap the dropped children that have exited."""
        ...


class Child:
    """A process we spawned, held by its pidfd since birth. We reap it, and nobody else does.

    Attributes:
        pid: The kernel's number for it.
        pinned: Its pidfd, held since birth; ours, not the caller's.
        stdin, stdout, stderr: Our ends of its pipes, unbuffered; None where no pipe was asked for.
            The caller's to close.

    A child that is dropped is neither ended nor forgotten: its spawner reaps it.
    """

    def __init__(
        self,
        owner: Owner,
        pinned: Pinned,
        command: Command,
        path: str,
        pipes: Sequence[io.FileIO | None],
    ) -> None:
        self.pid = pinned.pid
        self.pinned = pinned
        self.stdin, self.stdout, self.stderr = pipes
        self._mark = command.mark
        self._asked_for = command.parent_death is not None
        self._path = path
        self._identity: Identity | None = None
        self._spawner = owner
        self._owner = os.getpid()
        self._status: ExitStatus | None = None
        self._fate: Fate | None = None
        self._let_go = False
        self._lock = threading.Lock()
        self._platform = load()

    @property
    def identity(self) -> Identity:
        """Who it is, as of its birth.

        Read when it is first asked for, and before it is reaped at the latest: until then its
        number, start time and inode are its own. In a host whose other threads are busy, each
        system call at the spawn itself would cost their whole time slices.
        """
        if self._identity is None:
            seen = self._platform.observe(self.pinned, environ=False)
            if seen is None:
                # SIGCHLD is ignored in this host, or somebody else waits for any child.
                raise ProcessGone(self.pid)
            mark = self._mark
            self._identity = seen.identity(
                birth=mark.birth if mark else None,
                installation=mark.installation if mark else None,
                kind=mark.kind if mark else None,
                service=mark.service if mark else None,
            )
        return self._identity

    @property
    def unarmed_reason(self) -> str | None:
        """Why the kernel will not signal it when our process ends; None when it will."""
        return unarmed_reason(self._path) if self._asked_for else "not asked for"

    @property
    def armed(self) -> bool:
        """Whether parent death is armed."""
        return self.unarmed_reason is None

    @property
    def birth(self) -> BirthId | None:
        """The birth, None for an unmarked child."""
        return self._mark.birth if self._mark is not None else None

    @property
    def exit_fd(self) -> int | None:
        """A descriptor readable once it has exited; ours, not the caller's. None: poll `is_running`."""
        return self._platform.exit_fd(self.pinned)

    def is_running(self) -> bool:
        """Say whether it has not exited. Reaps nothing; costs one poll(2)."""
        return self._status is None and not self._platform.exited(self.pinned)

    def poll(self) -> ExitStatus | None:
        """Return its exit status, reaping it if it has exited; None while it runs. Does not block."""
        # A fork of our process is not its parent: it may look, and leaves the status alone. Nor does it take
        # a lock, which another thread may have held when it was made.
        if self._status is not None or self._owner != os.getpid():
            return self._status
        with self._lock:
            if self._fate is not None:
                # Its spawner reaps it, and knows: the number may be another child's by now.
                self._spawner.reap_dropped()
                self._status = self._fate.status
            elif self._status is None and not self._let_go:
                if self._identity is None:
                    # Before it is reaped, also when it exits between these two lines.
                    with suppress(ProcessGone, LookFailed):
                        self._identity = self.identity
                self._status = self._platform.reap(self.pid)
                if self._status is not None:
                    self._spawner.ended(self)
            return self._status

    def wait(self, timeout_s: float | None = None) -> ExitStatus:
        """Block until it has exited, and reap it.

        Raises:
            TimeoutError: It still runs after `timeout_s` seconds; None waits for ever.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        held_up = False
        while True:
            status = self.poll()
            if status is not None:
                return status
            left = _AT_ONCE_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"process {self.pid} still runs after {timeout_s:g} s")
            if held_up:
                # Exited, and not to be reaped yet: a tracer comes first, and nobody tells when it is through.
                time.sleep(min(POLL_S, left))
                continue
            # Now and then we look whatever happens: our pin may be closed, and its number reused, under us.
            wait_readable(self.exit_fd, min(left, _AT_ONCE_S))
            held_up = self._platform.exited(self.pinned)

    async def wait_exit(self) -> ExitStatus:
        """Wait until it has exited, without blocking the event loop, and reap it."""
        import anyio

        held_up = False
        while (status := self.poll()) is None:
            fd = self.exit_fd
            if fd is None or held_up:
                await anyio.sleep(POLL_S)
                continue
            # A copy for each waiter: an event loop takes one reader per descriptor.
            try:
                waiter = os.dup(fd)
            except OSError as err:
                if err.errno == errno.EBADF:
                    continue  # reaped this instant, by another waiter
                raise
            try:
                await anyio.wait_readable(waiter)
            finally:
                os.close(waiter)
            held_up = True
        return status

    def proof(self) -> Proof:
        """Return the proof of who it is, through the pidfd held since birth."""
        if self._status is not None:
            return gone(self.pid)
        return judge(self.identity, self._platform.observe(self.pinned), held=self.pinned.fd is not None)

    def close_stdin(self) -> None:
        """Close our end of its stdin, which is end-of-file for it. Harmless when there is none."""
        if self.stdin is not None:
            with suppress(OSError):
                self.stdin.close()

    def close(self) -> None:
        """Close our ends of its pipes and let go of it; its spawner reaps it when it exits."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        if not self._let_go:
            self._let_go = True
            self._fate = self._spawner.dropped(self)

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # While the interpreter ends, everything we would need may be gone already.
        if not sys.is_finalizing() and hasattr(self, "_platform"):
            self.close()

    def __repr__(self) -> str:
        return f"<Child pid={self.pid} {'running' if self._status is None else self._status}>"
