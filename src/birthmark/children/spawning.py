"""Spawn: start, pin and write down, as one step."""

from __future__ import annotations

import errno
import io
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Literal

from birthmark.children.child import Child
from birthmark.children.command import Command, Stdio
from birthmark.children.reaping import Reaper
from birthmark.core.outcomes import ExitStatus
from birthmark.errors import ChildrenAlive, SpawnerClosed, SpawnFailed
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned
from birthmark.platforms.launch import LaunchFailed, end_unclaimed, launch

_BIGGEST_SHOWN: Final = 3


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
        self._reaper = Reaper()
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
                    [*enumerate_targets(theirs), *((s, t) for t, s in command.pass_fds.items())], path
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

    def ended(self, child: Child) -> None:
        """Forget a child that was reaped; called by the child."""
        with self._lock:
            self._held.pop(child.pid, None)
        child.pinned.close()

    def dropped(self, child: Child) -> None:
        """Take over a child nobody holds any more; called by the child."""
        with self._lock:
            known = self._held.pop(child.pid, None)
        if known is not None and self._pid == os.getpid():
            self._reaper.adopt(child.pinned)
        elif known is not None:
            child.pinned.close()


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
