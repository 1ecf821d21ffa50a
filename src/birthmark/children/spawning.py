"""Spawn: start, pin and write down, as one step; and the child that comes of it."""

from __future__ import annotations

import errno
import io
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Literal

from birthmark.children.command import Command, Stdio, unarmed_reason
from birthmark.core.identity import Identity, Proof, gone, judge
from birthmark.core.outcomes import ExitStatus
from birthmark.core.service import BirthId
from birthmark.errors import ChildrenAlive, LookFailed, ProcessGone, SpawnerClosed, SpawnFailed
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned
from birthmark.platforms.launch import LaunchFailed, end_unclaimed, launch

POLL_S: Final = 0.025
"""How often an exit is looked for where the kernel has no pidfd."""

_BIGGEST_SHOWN: Final = 3


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
        spawner: Spawner,
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
        self._spawner = spawner
        self._owner = os.getpid()
        self._status: ExitStatus | None = None
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
        with self._lock:
            # A fork of our process is not its parent: it may look, and leaves the status alone.
            if self._status is None and self._owner == os.getpid():
                if self._identity is None and self._platform.exited(self.pinned):
                    with suppress(ProcessGone, LookFailed):
                        self._identity = self.identity
                self._status = self._platform.reap(self.pid)
                if self._status is not None:
                    self._spawner._ended(self)
            return self._status

    def wait(self, timeout_s: float | None = None) -> ExitStatus:
        """Block until it has exited, and reap it.

        Raises:
            TimeoutError: It still runs after `timeout_s` seconds; None waits for ever.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            status = self.poll()
            if status is not None:
                return status
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"process {self.pid} still runs after {timeout_s:g} s")
            _wait_readable(self.exit_fd, left)

    async def wait_exit(self) -> ExitStatus:
        """Wait until it has exited, without blocking the event loop, and reap it."""
        import anyio

        while (status := self.poll()) is None:
            if self.exit_fd is None:
                await anyio.sleep(POLL_S)
                continue
            # A copy for each waiter: an event loop takes one reader per descriptor.
            waiter = os.dup(self.exit_fd)
            try:
                await anyio.wait_readable(waiter)
            finally:
                os.close(waiter)
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
        self._spawner._drop(self)

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


class Spawner:
    """Starts children whose lives are bound to this process, from any thread.

    The forking itself is done by one thread that lives as long as the process, because the
    kernel's parent-death signal follows the *thread* that forked. Children outlive the thread
    that asked for them, and the spawner too if they are left at its close.

    Use it as a context manager (children are stopped at its end), or call `close`.
    """

    def __init__(self) -> None:
        # A dropped child comes back to us from the garbage collector, in whatever thread it runs.
        self._lock = threading.RLock()
        self._closed = False
        self._pid = os.getpid()
        self._held: dict[int, tuple[Pinned, weakref.ref[Child]]] = {}
        self._reaper = _Reaper()
        self._null = -1

    def spawn_owned_supervised(self, command: Command) -> Child:
        """Start a command and return its child, once its program runs. Blocks for about a millisecond.

        Raises:
            SpawnFailed: It never ran; program, errno, step and the PATH searched are named.
            SpawnerClosed: The spawner was closed.
        """
        self._require_open()
        path = command.resolve()
        ours, theirs, opened = _plumb(command, self._null_device)
        try:
            try:
                request = command.to_launch(
                    [*enumerate_targets(theirs), *((s, t) for t, s in command.pass_fds.items())]
                )
                pid, pidfd = launch(request)
            except LaunchFailed as err:
                raise _spawn_failed(command, err) from err
        except BaseException:
            for pipe in ours:
                if pipe is not None:
                    pipe.close()
            raise
        finally:
            for fd in opened:
                os.close(fd)
        try:
            return self._claim(command, path, pid, pidfd, ours)
        except BaseException:
            # Whoever asked went away (a signal handler raised): an unrecorded child would leak.
            end_unclaimed(pid, pidfd)
            raise

    def spawn_supervised(self, command: Command) -> int:
        """Start a command and return only its pid; the spawner reaps it, and `exit_status` tells how it ended."""
        child = self.spawn_owned_supervised(command)
        child.close()
        return child.pid

    def exit_status(self, pid: int) -> ExitStatus | None:
        """Return how a child that was dropped ended; None while it runs, or for a pid that is not ours.

        Statuses of the last 1,000 dropped children are kept.
        """
        return self._reaper.status(pid)

    def children(self) -> list[int]:
        """Return the pids of our children that still run, held or dropped."""
        platform = load()
        with self._lock:
            held = [pinned for pinned, _ in self._held.values()]
        return sorted([p.pid for p in held if not platform.exited(p)] + self._reaper.running())

    def close(self, children: Literal["stop", "leave"] | None = None) -> None:
        """Start nothing more, and say what becomes of the children.

        Args:
            children: ``"stop"`` ends each with its group (TERM, 5 s, KILL) and reaps it.
                ``"leave"`` lets them run until this process ends, when the armed ones get
                their signal. None is for when none lives.

        Closing twice is harmless.

        Raises:
            ChildrenAlive: Some live, and nothing was said about them.
            StopTimedOut: One survived SIGKILL.
        """
        if children not in (None, "stop", "leave"):
            raise ValueError(f"{children!r} is neither 'stop' nor 'leave'")
        if self._pid != os.getpid():
            self._closed = True
            self._close_null_device()
            return
        alive = self.children()
        if alive and children is None:
            raise ChildrenAlive(alive)
        self._closed = True
        self._close_null_device()
        if children == "stop":
            self._stop_all()
        with self._lock:
            held = [reference() for _, reference in self._held.values()]
        for child in held:
            if child is not None:
                child.poll()

    def _stop_all(self) -> None:
        from birthmark.children.stopping import stop_children_now

        platform = load()
        with self._lock:
            held = [pinned for pinned, _ in self._held.values()]
        try:
            stop_children_now([pinned for pinned in held if not platform.exited(pinned)])
        finally:
            self._reaper.stop_all()

    def __enter__(self) -> Spawner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(children="stop")

    def __del__(self) -> None:
        self._close_null_device()

    def _null_device(self) -> int:
        """Return a descriptor on the null device. One serves all: an open at each spawn would cost a time slice."""
        with self._lock:
            if self._null < 0:
                self._null = os.open(os.devnull, os.O_RDWR)
            return self._null

    def _close_null_device(self) -> None:
        fd, self._null = self._null, -1
        if fd >= 0:
            os.close(fd)

    def _require_open(self) -> None:
        if self._closed or self._pid != os.getpid():
            raise SpawnerClosed

    def _claim(
        self, command: Command, path: str, pid: int, pidfd: int | None, ours: Sequence[io.FileIO | None]
    ) -> Child:
        pinned = Pinned(pid, pidfd, -1) if pidfd is not None else load().pin(pid)
        child = Child(self, pinned, command, path, ours)
        with self._lock:
            self._held[pid] = (pinned, weakref.ref(child))
        return child

    def _ended(self, child: Child) -> None:
        with self._lock:
            self._held.pop(child.pid, None)
        child.pinned.close()

    def _drop(self, child: Child) -> None:
        """Take over a child nobody holds any more."""
        with self._lock:
            known = self._held.pop(child.pid, None)
        if known is not None and self._pid == os.getpid():
            self._reaper.adopt(child.pinned)
        elif known is not None:
            child.pinned.close()


class _Reaper:
    """Reaps dropped children when they exit, on one thread that sleeps in poll(2) meanwhile."""

    _KEPT: Final = 1000

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: dict[int, Pinned] = {}
        self._ended: dict[int, ExitStatus] = {}
        self._thread: threading.Thread | None = None
        self._wake: int | None = None

    def adopt(self, pinned: Pinned) -> None:
        with self._lock:
            self._waiting[pinned.pid] = pinned
            if self._thread is None:
                ear, self._wake = os.pipe()
                os.set_blocking(self._wake, False)
                self._thread = threading.Thread(
                    target=self._run, args=(ear,), name="birthmark-reaper", daemon=True
                )
                self._thread.start()
            assert self._wake is not None
            with suppress(BlockingIOError):
                os.write(self._wake, b"!")

    def running(self) -> list[int]:
        platform = load()
        with self._lock:
            return [pid for pid, pinned in self._waiting.items() if not platform.exited(pinned)]

    def status(self, pid: int) -> ExitStatus | None:
        self._reap_exited()
        with self._lock:
            return self._ended.get(pid)

    def stop_all(self) -> None:
        from birthmark.children.stopping import stop_children_now

        with self._lock:
            waiting = list(self._waiting.values())
            stop_children_now(waiting)
        self._reap_exited()
        with self._lock:
            # With nobody left to wait for, the thread ends and gives its pipe back.
            if self._wake is not None and not self._waiting:
                os.close(self._wake)
                self._wake = self._thread = None

    def _reap_exited(self) -> None:
        platform = load()
        with self._lock:
            for pid, pinned in list(self._waiting.items()):
                if not platform.exited(pinned):
                    continue
                status = platform.reap(pid)
                if status is None:
                    continue
                del self._waiting[pid]
                pinned.close()
                self._ended[pid] = status
                while len(self._ended) > self._KEPT:
                    del self._ended[next(iter(self._ended))]

    def _run(self, ear: int) -> None:
        import select

        platform = load()
        try:
            while True:
                poller = select.poll()
                poller.register(ear, select.POLLIN)
                with self._lock:
                    pinned = list(self._waiting.values())
                    fds = [fd for p in pinned if (fd := platform.exit_fd(p)) is not None]
                for fd in fds:
                    poller.register(fd, select.POLLIN)
                ready = poller.poll(None if len(fds) == len(pinned) else POLL_S * 1000)
                if any(fd == ear for fd, _ in ready) and not os.read(ear, 4096):
                    return
                self._reap_exited()
        finally:
            os.close(ear)


def enumerate_targets(sources: Sequence[int]) -> list[tuple[int, int]]:
    """Return (ours, child's) for descriptors that become 0, 1, 2, … in order."""
    return [(source, target) for target, source in enumerate(sources)]


def _plumb(command: Command, null: Callable[[], int]) -> tuple[list[io.FileIO | None], list[int], list[int]]:
    """Return our ends of the pipes, the child's three descriptors, and those to close after the spawn."""
    ours: list[io.FileIO | None] = []
    theirs: list[int] = []
    opened: list[int] = []
    try:
        for number, wish in enumerate((command.stdin, command.stdout, command.stderr)):
            match wish:
                case Stdio.PIPE:
                    reader, writer = os.pipe()
                    mine, its = (writer, reader) if number == 0 else (reader, writer)
                    opened.append(its)
                    theirs.append(its)
                    ours.append(io.FileIO(mine, "wb" if number == 0 else "rb"))
                    continue
                case Stdio.NULL:
                    theirs.append(null())
                case Stdio.INHERIT:
                    theirs.append(number)
                case int():
                    theirs.append(wish)
            ours.append(None)
    except BaseException:
        for fd in opened:
            os.close(fd)
        for pipe in ours:
            if pipe is not None:
                pipe.close()
        raise
    return ours, theirs, opened


def _spawn_failed(command: Command, err: LaunchFailed) -> SpawnFailed:
    hint = None
    if err.errno == errno.E2BIG:
        entries = sorted(command.environment().items(), key=lambda item: len(item[1]), reverse=True)
        biggest = ", ".join(f"{name} ({len(value)} bytes)" for name, value in entries[:_BIGGEST_SHOWN])
        hint = f"the biggest variables are {biggest}; arguments count too"
    elif err.errno == errno.ENOENT and err.step == "exec" and os.path.exists(command.resolve()):
        hint = "the file is there, but the interpreter its first line names is not"
    elif err.errno == errno.ENOEXEC:
        hint = "it is no program and has no #! line"
    elif err.step == "cwd":
        hint = f"the working directory is {command.cwd!r}"
    return SpawnFailed(command.program, err.errno, err.step, hint=hint)


def _wait_readable(fd: int | None, timeout_s: float | None) -> None:
    if fd is None:
        time.sleep(POLL_S if timeout_s is None else min(POLL_S, timeout_s))
        return
    import select

    poller = select.poll()
    poller.register(fd, select.POLLIN)
    poller.poll(None if timeout_s is None else max(1, int(timeout_s * 1000)))


_default: tuple[int, Spawner] | None = None
_default_lock = threading.Lock()


def _spawner() -> Spawner:
    """Return the process's own spawner, made on first use and again after a fork."""
    global _default
    with _default_lock:
        if _default is None or _default[0] != os.getpid():
            _default = (os.getpid(), Spawner())
        return _default[1]


def spawn_owned_supervised(command: Command) -> Child:
    """Start a command on the process's own spawner; see `Spawner.spawn_owned_supervised`."""
    return _spawner().spawn_owned_supervised(command)


def spawn_supervised(command: Command) -> int:
    """Start a command on the process's own spawner; see `Spawner.spawn_supervised`."""
    return _spawner().spawn_supervised(command)


def exit_status(pid: int) -> ExitStatus | None:
    """Return how a child of the process's own spawner ended; see `Spawner.exit_status`."""
    return _spawner().exit_status(pid)
