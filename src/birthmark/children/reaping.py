"""The reaper: collects the exit statuses of children that were dropped."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Final

from birthmark.children.waiting import POLL_S
from birthmark.core.outcomes import ExitStatus
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned

_JOIN_S: Final = 1.0


class Reaper:
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
            ended = None
            if self._wake is not None and not self._waiting:
                os.close(self._wake)
                ended, self._wake, self._thread = self._thread, None, None
        if ended is not None and ended is not threading.current_thread():
            # Its own end of the pipe closes with it; it has nothing left to wait for.
            ended.join(_JOIN_S)

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
