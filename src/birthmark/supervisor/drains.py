"""One thread that keeps reading what children write, so that a full pipe never holds one up.

A thread and not the event loop: a loop that is busy for a second would stop every child that
writes. Memory is bounded: one buffer for all, and a line's rest for each stream.
"""

from __future__ import annotations

import io
import os
import select
import threading
from contextlib import suppress
from typing import Final, Protocol

READ_BYTES: Final = 64 * 1024

_JOIN_S: Final = 5.0


class Sink(Protocol):
    """Where a stream's bytes go. Called on the drain's thread; must not block for long, nor raise."""

    def feed(self, data: bytes) -> None: ...

    def end(self) -> None: ...


class Drain:
    """One stream being read. `ended` is set once its last byte is in its sink."""

    __slots__ = ("_drains", "_pipe", "ended", "fd", "finishing", "sink")

    def __init__(self, drains: Drains, pipe: io.FileIO, sink: Sink) -> None:
        self.sink = sink
        self.fd = pipe.fileno()
        self.ended = threading.Event()
        self.finishing = False
        self._pipe = pipe
        self._drains = drains

    def finish(self) -> None:
        """Read what is there now and close, even if somebody still holds the other end. Returns at once."""
        self._drains._finish(self)

    def _close(self) -> None:
        self.sink.end()
        with suppress(OSError):
            self._pipe.close()
        self.ended.set()


class Drains:
    """Reads any number of pipes on one thread, which starts with the first of them.

    Owns the pipes given to it. Close it when the last child is gone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: list[Drain] = []
        self._thread: threading.Thread | None = None
        self._wake_fd: int | None = None
        self._closing = False

    def add(self, pipe: io.FileIO, sink: Sink) -> Drain:
        """Read `pipe` into `sink` until its end; the pipe is ours from here on.

        Raises:
            OSError, RuntimeError: There is no descriptor, or no thread, for it. The pipe stays the caller's.
        """
        drain = Drain(self, pipe, sink)
        os.set_blocking(drain.fd, False)
        with self._lock:
            if self._closing:
                raise RuntimeError("the drains are closed")
            if self._thread is None:
                self._begin()
            self._new.append(drain)
            self._wake()
        return drain

    def _begin(self) -> None:
        ear, wake_fd = os.pipe()
        try:
            os.set_blocking(wake_fd, False)
            thread = threading.Thread(target=self._run, args=(ear,), name="birthmark-drains", daemon=True)
            thread.start()
        except BaseException:
            os.close(ear)
            os.close(wake_fd)
            raise
        self._thread, self._wake_fd = thread, wake_fd

    def close(self) -> None:
        """Read what is there, close all pipes, and end the thread. Waits for at most 5 s."""
        with self._lock:
            self._closing = True
            thread, self._thread = self._thread, None
            self._wake()
        if thread is not None:
            thread.join(_JOIN_S)
        with self._lock:
            fd, self._wake_fd = self._wake_fd, None
        if fd is not None:
            os.close(fd)

    def _finish(self, drain: Drain) -> None:
        with self._lock:
            drain.finishing = True
            self._wake()

    def _wake(self) -> None:
        if self._wake_fd is not None:
            # A full pipe has woken it already.
            with suppress(BlockingIOError):
                os.write(self._wake_fd, b"!")

    def _run(self, ear: int) -> None:
        poller = select.poll()
        poller.register(ear, select.POLLIN)
        live: dict[int, Drain] = {}
        try:
            while True:
                for fd, _ in poller.poll():
                    if fd == ear:
                        os.read(ear, 4096)
                    elif not _read_some(live[fd]):
                        _forget(poller, live, fd)
                with self._lock:
                    new, self._new = self._new, []
                    closing = self._closing
                for drain in new:
                    live[drain.fd] = drain
                    poller.register(drain.fd, select.POLLIN)
                for fd, drain in list(live.items()):
                    if drain.finishing or closing:
                        _read_all_now(drain)
                        _forget(poller, live, fd)
                if closing:
                    return
        finally:
            os.close(ear)


def _forget(poller: select.poll, live: dict[int, Drain], fd: int) -> None:
    poller.unregister(fd)
    live.pop(fd)._close()


def _read_some(drain: Drain) -> bool:
    """Read once; False at the end of the stream."""
    try:
        data = os.read(drain.fd, READ_BYTES)
    except BlockingIOError:
        return True
    except OSError:
        return False
    if data:
        drain.sink.feed(data)
    return bool(data)


def _read_all_now(drain: Drain) -> None:
    """Read what the pipe holds now, and no more than a pipe can hold: a writer that never stops must not hold us."""
    for _ in range(32):
        try:
            data = os.read(drain.fd, READ_BYTES)
        except OSError:
            return
        if not data:
            return
        drain.sink.feed(data)
