"""The reaper: collects the exit statuses of children that were dropped."""

from __future__ import annotations

import _thread
import os
import threading
from contextlib import suppress
from typing import Final

from birthmark.children.waiting import POLL_S
from birthmark.core.outcomes import ExitStatus
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned

_JOIN_S: Final = 1.0


class Fate:
    """A dropped child: its pin while it is unreaped, and then how it ended."""

    __slots__ = ("pinned", "status")

    def __init__(self, pinned: Pinned) -> None:
        self.pinned = pinned
        self.status: ExitStatus | None = None


class Reaper:
    """Reaps dropped children when they exit, on one thread that sleeps in poll(2) meanwhile.

    Children are dropped from destructors too, so in any thread, and in the middle of anything: no lock
    here is kept while something is waited for, and the thread is started without those of `threading`.
    """

    _KEPT: Final = 1000

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: dict[int, Fate] = {}
        self._ended: dict[int, ExitStatus] = {}
        self._wake: int | None = None
        self._done = threading.Event()
        self._starting = self._closed = False

    def adopt(self, pinned: Pinned) -> Fate:
        """Take over a child and its pin."""
        with self._lock:
            fate = self._waiting[pinned.pid] = Fate(pinned)
            # The number is this child's now, whoever had it before.
            self._ended.pop(pinned.pid, None)
            if self._wake is not None:
                self._nudge(self._wake)
            elif not self._starting:
                self._start()
            return fate

    def _start(self) -> None:
        self._starting = True
        try:
            ear, wake = os.pipe()
            os.set_blocking(wake, False)
            self._done = threading.Event()
            try:
                _thread.start_new_thread(self._run, (ear, self._done))
            except RuntimeError:
                # No thread to be had, or the interpreter ends: then it is reaped when somebody asks.
                os.close(ear)
                os.close(wake)
            else:
                self._wake = wake
        except OSError:
            pass  # no descriptor to be had: as above
        finally:
            self._starting = False

    def _nudge(self, wake: int) -> None:
        with suppress(BlockingIOError):
            os.write(wake, b"!")

    def running(self) -> list[int]:
        """Return the pids of the dropped children that run."""
        platform = load()
        with self._lock:
            return [pid for pid, fate in self._waiting.items() if not platform.exited(fate.pinned)]

    def status(self, pid: int) -> ExitStatus | None:
        """Return how a dropped child ended, None while it runs or when it is unknown."""
        self.reap_exited()
        with self._lock:
            return self._ended.get(pid)

    def stop_all(self) -> None:
        """End all dropped children with their groups, and reap them. Blocks."""
        from birthmark.children.stopping import stop_children_now

        with self._lock:
            waiting = [fate.pinned for fate in self._waiting.values()]
        try:
            stop_children_now(waiting)
        finally:
            self.reap_exited()

    def close(self) -> None:
        """Let the thread end once there is nobody left to reap."""
        with self._lock:
            self._closed = True
            if self._wake is None:
                return
            if self._waiting:
                self._nudge(self._wake)
                return
            self._retire()
            done = self._done
        # Its own end of the pipe closes with it; it has nothing left to wait for.
        done.wait(_JOIN_S)

    def _retire(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None:
            os.close(wake)

    def reap_exited(self) -> None:
        """Reap the dropped children that have exited."""
        platform = load()
        with self._lock:
            for pid, fate in list(self._waiting.items()):
                if not platform.exited(fate.pinned):
                    continue
                status = platform.reap(pid)
                if status is None:
                    continue
                del self._waiting[pid]
                fate.status = status
                fate.pinned.close()
                self._ended[pid] = status
                while len(self._ended) > self._KEPT:
                    del self._ended[next(iter(self._ended))]

    def _run(self, ear: int, done: threading.Event) -> None:
        import select

        platform = load()
        try:
            while True:
                poller = select.poll()
                poller.register(ear, select.POLLIN)
                with self._lock:
                    pins = [fate.pinned for fate in self._waiting.values()]
                    # One that has exited and cannot be reaped yet (its tracer comes first) would wake us for ever.
                    fds = [
                        fd for p in pins if not platform.exited(p) and (fd := platform.exit_fd(p)) is not None
                    ]
                    for fd in fds:
                        poller.register(fd, select.POLLIN)
                ready = poller.poll(None if len(fds) == len(pins) else POLL_S * 1000)
                if any(fd == ear for fd, _ in ready) and not os.read(ear, 4096):
                    return
                self.reap_exited()
                with self._lock:
                    if self._closed and not self._waiting:
                        self._retire()
                        return
        finally:
            os.close(ear)
            done.set()
