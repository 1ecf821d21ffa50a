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
from birthmark.children.reaping import Fate, Reaper
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
        if not isinstance(command, Command):
            raise TypeError(f"a Command is spawned, not {type(command).__name__}")
        self._require_open()
        path = command.resolve()
        ours, theirs, opened = _plumb(command, self._null_device)
        born: Pinned | None = None
        try:
            try:
                request = command.to_launch(
                    [*enumerate_targets(theirs), *((s, t) for t, s in command.pass_fds.items())], path
                )
                pid, pidfd = launch(request)
                born = Pinned(pid, pidfd, -1)
            except LaunchFailed as err:
                raise _spawn_failed(command, err) from err
            finally:
                for each in opened:
                    os.close(each)
            if pidfd is None:
                born = load().pin(pid)
            return self._claim(command, path, born, ours)
        except BaseException:
            for pipe in ours:
                if pipe is not None:
                    pipe.close()
            if born is not None:
                # Whoever asked went away (a signal handler raised), or the spawner was closed meanwhile: an
                # unrecorded child would leak. Taken back first: the descriptor is closed once.
                with self._lock:
                    if (known := self._held.get(born.pid)) is not None and known[0] is born:
                        del self._held[born.pid]
                fd, born.fd = born.fd, None
                end_unclaimed(born.pid, fd)
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
        if self._pid != os.getpid():
            return None
        with self._lock:
            if pid in self._held:
                return None  # of another one, who had the number before
        return self._reaper.status(pid)

    def children(self) -> list[int]:
        """Return the pids of our children that still run, held or dropped."""
        if self._pid != os.getpid():
            return []
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
        # In one act, so that no spawn in another thread comes in between: it finds us closed, and ends its child.
        with self._lock:
            alive = self.children()
            if alive and children is None:
                raise ChildrenAlive(alive)
            self._closed = True
        self._close_null_device()
        try:
            if children == "stop":
                self._stop_all()
        finally:
            with self._lock:
                held = [reference() for _, reference in self._held.values()]
            for child in held:
                if child is not None:
                    child.poll()
            self._reaper.close()

    def _stop_all(self) -> None:
        from birthmark.children.stopping import stop_children_now

        with self._lock:
            # Also those that have exited: unreaped, they still lead what they left in their group.
            held = [pinned for pinned, _ in self._held.values()]
        try:
            stop_children_now(held)
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

    def _claim(self, command: Command, path: str, born: Pinned, ours: Sequence[io.FileIO | None]) -> Child:
        child = Child(self, born, command, path, ours)
        with self._lock:
            if self._closed:
                raise SpawnerClosed
            self._held[born.pid] = (born, weakref.ref(child))
        return child

    def _take_back(self, child: Child) -> bool:
        """Forget a child; False when we do not know it, since its number may be another's by now."""
        with self._lock:
            known = self._held.get(child.pid)
            if known is None or known[0] is not child.pinned:
                return False
            del self._held[child.pid]
            return True

    def ended(self, child: Child) -> None:
        """Forget a child that was reaped; called by the child."""
        self._take_back(child)
        child.pinned.close()

    def dropped(self, child: Child) -> Fate | None:
        """Take over a child nobody holds any more; called by the child."""
        if self._pid != os.getpid():
            # A fork of our process has a copy of the pin, and no child. It takes no lock: another thread may
            # have held it when the fork was made.
            child.pinned.close()
            return None
        return self._reaper.adopt(child.pinned) if self._take_back(child) else None

    def reap_dropped(self) -> None:
        """Reap the dropped children that have exited; called by a child that was let go."""
        self._reaper.reap_exited()


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


_default: Spawner | None = None
_default_lock = threading.Lock()


def _spawner() -> Spawner:
    """Return the process's own spawner, made on first use and again after a fork."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Spawner()
        return _default


def _forget_default() -> None:
    """In a fork: the spawner is the parent's, and another thread may have held the lock."""
    global _default, _default_lock
    _default, _default_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_default)


def spawn_owned_supervised(command: Command) -> Child:
    """Start a command on the process's own spawner; see `Spawner.spawn_owned_supervised`."""
    return _spawner().spawn_owned_supervised(command)


def spawn_supervised(command: Command) -> int:
    """Start a command on the process's own spawner; see `Spawner.spawn_supervised`."""
    return _spawner().spawn_supervised(command)


def exit_status(pid: int) -> ExitStatus | None:
    """Return how a child of the process's own spawner ended; see `Spawner.exit_status`."""
    return _spawner().exit_status(pid)
