"""The pure path: a bare interpreter is started, is told what to do, and becomes the program.

`os.posix_spawn` copies no memory, runs no Python between fork and exec, and keeps the GIL. What it cannot
do (limits, ids, parent death) the new interpreter does for itself: `bootstrap.py`. The price is the start of
an interpreter, tens of milliseconds.
"""

from __future__ import annotations

import errno
import itertools
import marshal
import os
import pkgutil
import queue
import select
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from birthmark.platforms.launch import (
    REAP_WITHIN_S,
    Born,
    Launch,
    LaunchFailed,
    Session,
    Step,
    end_unclaimed,
    reap,
)

assert sys.platform != "win32"

# Read with this module, not at each launch: an upgrade of the package must not pair our request with
# another version's reader.
_SOURCE = (pkgutil.get_data("birthmark.platforms", "bootstrap.py") or b"").decode()

# What decides whether an interpreter starts at all. Until the exec our own counts, then the child's.
_LOADERS = (b"LD_", b"DYLD_", b"GLIBC_TUNABLES")


def launch(request: Launch) -> Born:
    """Start the program by way of a bare interpreter; see `birthmark.platforms.launch.launch`.

    The GIL is not kept while the program is found and read, so it may lie on a file system that this very
    process serves; the interpreter itself (`sys.executable`) may not.

    Platform: Linux; other POSIX systems without parent death.
    """
    ticket = _Ticket(request)
    try:
        with _in_flight(ticket) as ours:
            _spawner.submit(ticket)
            ticket.finished.acquire()
            if ticket.failed is not None:
                raise ticket.failed
            _send(ours, _payload(request, ticket))
            _read_answer(ours)
        # No call between here and the caller's assignment: CPython looks for signals at calls only, so an
        # exception from a handler comes before this line, and is seen below, or after the caller has both.
        born = ticket.born
        assert born is not None
        return born
    except LaunchFailed:
        ticket.see_off()
        raise
    except BaseException:
        ticket.abandon()
        raise


class _Ticket:
    """One launch on its way through the spawner thread."""

    def __init__(self, request: Launch) -> None:
        self.request = request
        # A bare lock: a signal handler that raises in the middle of a semaphore's wait breaks the semaphore.
        self.finished = threading.Lock()
        self.finished.acquire()
        self.failed: BaseException | None = None
        self.control: socket.socket | None = None  # the child's end; the thread's to close, once taken
        # Under the lock:
        self.lock = threading.Lock()
        self.taken = False
        self.abandoned = False
        self.born: Born | None = None
        # Where the descriptors wait in the interpreter: numbers that are neither moved nor moved to.
        pairs = request.descriptors
        taken = {number for pair in pairs for number in pair}
        free = (number for number in itertools.count(3) if number not in taken)
        self.stash = [(next(free), int(theirs)) for _, theirs in pairs]
        self.moves = [(ours, next_to) for (ours, _), (next_to, _) in zip(pairs, self.stash, strict=True)]
        self.spare = free

    def carry_out(self) -> None:
        """Start the interpreter. On the spawner thread: its end would be the parent's death."""
        with self.lock:
            if self.abandoned:
                return
            self.taken = True
        try:
            born: Born | None = self._start()
        except BaseException as err:
            # Whatever it is, it is the requester's: this thread must never end.
            self.failed = err
        else:
            with self.lock:
                if not self.abandoned:
                    self.born, born = born, None
            if born is not None:
                end_unclaimed(*born)
        self.finished.release()

    def see_off(self) -> None:
        """Reap the interpreter that has told why it failed: it ends by itself, and is not signalled."""
        born, self.born = self.born, None
        if born is None:
            return
        pid, pidfd = born
        if pidfd is not None:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if poll.poll(REAP_WITHIN_S * 1000):
                reap(pid)
                os.close(pidfd)
                return
        end_unclaimed(pid, pidfd)

    def abandon(self) -> None:
        """Leave nothing behind, wherever the launch is now."""
        with self.lock:
            self.abandoned = True
            born, self.born = self.born, None
            if not self.taken and self.control is not None:
                _close(self.control)
        if born is not None:
            end_unclaimed(*born)

    def _start(self) -> Born:
        assert self.control is not None
        if not sys.executable or getattr(sys, "frozen", False):
            # A frozen program is its own interpreter: it would start itself.
            _close(self.control)
            raise LaunchFailed(errno.ENOSYS, Step.SPAWN)
        control = self.control.fileno()
        self.control_in_child = next(number for number in self.spare if number != control)
        moves = [
            (control, self.control_in_child),
            *self.moves,
        ]  # in this order: one of the others may go onto it
        start: Callable[..., int] = os.posix_spawn
        if self.request.session is Session.NEW_GROUP:
            start = partial(start, setpgroup=0)  # no value means "leave it alone"
        try:
            pid = start(
                sys.executable,
                [sys.executable, "-I", "-S", "-c", _SOURCE, str(self.control_in_child)],
                _environment(self.request),
                file_actions=[(os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in moves],
                setsid=self.request.session is Session.NEW_SESSION,
                # All are blocked until right before the exec. An interpreter gives ^C a handler and prints a
                # traceback; this one dies of it like the program it is about to be.
                setsigmask=signal.valid_signals(),
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
        except OSError as err:
            steps = {errno.EBADF: Step.DESCRIPTORS, errno.E2BIG: Step.EXEC}
            number = err.errno or errno.EINVAL
            raise LaunchFailed(number, steps.get(number, Step.SPAWN)) from err
        finally:
            _close(self.control)
        try:
            # It waits for its request, so it is there, and unreaped it keeps its number.
            return pid, _open_pidfd(pid)
        except OSError as err:
            end_unclaimed(pid, None)
            raise LaunchFailed(err.errno or errno.EINVAL, Step.SPAWN) from err


class _Spawner:
    """The thread that all children of the pure path are forked from. It lives as long as the process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may start a program, too
        self._queue: queue.SimpleQueue[_Ticket] = queue.SimpleQueue()
        self._started = False

    def submit(self, ticket: _Ticket) -> None:
        """Have the thread carry it out.

        Raises:
            LaunchFailed: There is no thread, and none can be started (limits; the interpreter is at its end).
        """
        with self._lock:
            if not self._started:
                thread = threading.Thread(target=self._serve, name="subprocess-spawner", daemon=True)
                try:
                    thread.start()
                except RuntimeError as err:
                    raise LaunchFailed(errno.EAGAIN, Step.SPAWN) from err
                self._started = True
        self._queue.put(ticket)

    def _serve(self) -> None:
        while True:
            self._queue.get().carry_out()


_spawner = _Spawner()

# The sockets that are open now. Opened and closed under the lock, which a fork waits for: its child closes exactly
# these. Kept open there, the child's end of one would hide from us that its program runs, and Python's close()
# gives the GIL away between forgetting the number and closing it.
# Weak, so that one whose close() was interrupted is left to the collector.
_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_forking = threading.RLock()


def _begin_anew() -> None:
    """After os.fork(), in the child: the thread is gone, the locks are as they were, and the sockets are not ours."""
    global _spawner, _forking
    _spawner = _Spawner()
    _forking = threading.RLock()
    while _sockets:
        _sockets.pop().close()


os.register_at_fork(
    before=lambda: _forking.acquire(),
    after_in_parent=lambda: _forking.release(),
    after_in_child=_begin_anew,
)


def _close(end: socket.socket) -> None:
    with _forking:
        end.close()
        _sockets.discard(end)


@contextmanager
def _in_flight(ticket: _Ticket) -> Iterator[socket.socket]:
    """Make the socket to the new interpreter: our end, closed at the end, and the ticket's."""
    try:
        with _forking:
            ours, ticket.control = pair = socket.socketpair()
            _sockets.update(pair)
    except OSError as err:
        raise LaunchFailed(err.errno or errno.EINVAL, Step.SPAWN) from err
    try:
        ours.settimeout(None)  # a host may have set another default
        yield ours
    finally:
        _close(ours)


def _environment(request: Launch) -> dict[bytes, bytes]:
    """Return the child's own environment, so that its mark can be read from the start, with our loader's variables."""
    theirs = (entry.split(b"=", 1) for entry in request.env)
    ours = {name: value for name, value in os.environb.items() if name.startswith(_LOADERS)}
    return {name: value for name, value in theirs if not name.startswith(_LOADERS)} | ours


def _open_pidfd(pid: int) -> int | None:
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as err:
        if err.errno in (errno.ENOSYS, errno.EPERM):  # an old kernel, a filter
            return None
        raise


def _payload(request: Launch, ticket: _Ticket) -> bytes:
    return marshal.dumps(
        {
            "path": request.path,
            "argv": list(request.argv),
            "env": list(request.env),
            "cwd": request.cwd,
            "descriptors": ticket.stash,
            "parent": os.getpid(),
            "parent_death": _plain(request.parent_death),
            "umask": _plain(request.umask),
            "uid": _plain(request.uid),
            "gid": _plain(request.gid),
            "groups": None if request.groups is None else [int(group) for group in request.groups],
            "limits": [(int(number), int(soft), int(hard)) for number, soft, hard in request.limits],
        }
    )


def _plain(number: int | None) -> int | None:
    """Return an int that is no member of an enumeration (signal.SIGTERM): marshal takes no other."""
    return None if number is None else int(number)


def _send(ours: socket.socket, payload: bytes) -> None:
    try:
        # The host may have given SIGPIPE its default back.
        ours.sendall(payload, getattr(socket, "MSG_NOSIGNAL", 0))
        ours.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # it is dead; its answer, or the lack of one, says so


def _read_answer(ours: socket.socket) -> None:
    """Return once the program runs. Waits for as long as its file system takes to produce it.

    Raises:
        LaunchFailed: A step failed, or the interpreter died before it reached the exec (ECHILD).
    """
    answer = b""
    try:
        while part := ours.recv(4096):
            answer += part
    except ConnectionResetError:
        pass  # end-of-file, with something unread
    _, failed, why = answer.partition(b"-")
    if failed:
        number, step = why.decode().split()
        raise LaunchFailed(int(number), step)
    if answer != b"+":
        raise LaunchFailed(errno.ECHILD, Step.SPAWN)
