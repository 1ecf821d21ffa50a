"""A real child for tests: it says when it is ready, and the kernel reports its death.

Its stdout is the lifeline. Descendants inherit it, so end-of-file arrives only when the last of
them is gone; a byte arrives when the script reaches ``ready()``. Nobody sleeps, and every wait has
a bound.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from birthmark.core.outcomes import Basis, ExitStatus, Warrant
from birthmark.errors import LookFailed, ProcessGone, SupervisionError
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned

__all__ = ["WITHIN_S", "Puppet", "puppet", "wait_exited"]

WITHIN_S: Final = 5.0
"""How long a puppet may take for anything, in seconds: far above what it takes, even under load."""

_KILL: Final = int(getattr(signal, "SIGKILL", 9))

_PRELUDE: Final = """\
import json, os, signal, sys, threading, time
def ready(): os.write(1, b"R")
def tell(value): os.write(1, b"T" + json.dumps(value).encode() + b"\\n")
def obey():
    for line in sys.stdin: ready()
def stay(): sys.stdin.read()
"""


class Puppet:
    """A child under our strings; made by `puppet`.

    `process` is the `subprocess.Popen`: leave its `wait` and `poll` alone as long as the puppet's
    group matters, since they give its number away. Platform: POSIX.
    """

    def __init__(self, process: subprocess.Popen[bytes], pinned: Pinned) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.pinned = pinned
        self._stdin = process.stdin
        self._lifeline = process.stdout.fileno()
        self._gone = False

    @property
    def pid(self) -> int:
        """Its pid, which nobody else can be given before `reap`, or the end of the `with` block."""
        return self.process.pid

    @property
    def pidfd(self) -> int:
        """Its pidfd, owned by the puppet.

        Raises:
            RuntimeError: This system has no pidfds.
        """
        if self.pinned.fd is None:
            raise RuntimeError("this system has no pidfds")
        return self.pinned.fd

    def wait_ready(self, *, within_s: float = WITHIN_S) -> None:
        """Wait until the script, or a fork of it, has called ``ready()`` once more.

        Raises:
            TimeoutError: It did not within `within_s` seconds.
            EOFError: It, and everybody it left behind, is gone.
        """
        self._expect(b"R", within_s)

    def hear(self, *, within_s: float = WITHIN_S) -> object:
        """Wait for the next value the script gives to ``tell(value)``, and return it.

        Raises:
            TimeoutError, EOFError: As `wait_ready`.
        """
        deadline = time.monotonic() + within_s
        self._expect(b"T", within_s)
        text = bytearray()
        while not text.endswith(b"\n"):
            text += self._byte(deadline)
        return json.loads(text)

    def hear_pid(self, *, within_s: float = WITHIN_S) -> int:
        """Wait for a number from ``tell(os.getpid())`` or the like."""
        value = self.hear(within_s=within_s)
        if not isinstance(value, int):
            raise AssertionError(f"the puppet told {value!r}, where a number was expected")
        return value

    def say(self, line: str) -> None:
        """Write one line to its stdin. Does not wait for anything.

        Raises:
            BrokenPipeError: Nobody is there to read it.
        """
        self._stdin.write(line.encode() + b"\n")
        self._stdin.flush()

    def ask(self, line: str = "?", *, within_s: float = WITHIN_S) -> None:
        """Say a line and wait for one ``ready()``: the proof that it lives and has come that far.

        ``obey()`` in the script answers every line.
        """
        self.say(line)
        self.wait_ready(within_s=within_s)

    def close_stdin(self) -> None:
        """Give it end-of-file. Harmless when done twice, and when nobody reads."""
        try:
            self._stdin.close()
        except BrokenPipeError:
            pass  # what was buffered has no reader any more

    def wait_exited(self, *, within_s: float = WITHIN_S) -> None:
        """Wait until the puppet itself has exited, without reaping it. What it started may live on.

        Raises:
            TimeoutError: It did not within `within_s` seconds.
        """
        wait_exited(self.pinned, within_s=within_s)

    def wait_tree_gone(self, *, within_s: float = WITHIN_S) -> None:
        """Wait until the puppet and every descendant that kept its stdout is gone, or in its very last steps.

        A process lets go of the lifeline microseconds before it counts as exited; `wait_exited` waits for that.

        Raises:
            TimeoutError: Somebody still holds the lifeline after `within_s` seconds.
        """
        deadline = time.monotonic() + within_s
        while not self._gone:
            _wait_readable(self._lifeline, deadline, "gone, with its whole tree")
            self._gone = not os.read(self._lifeline, 4096)

    def reap(self, *, within_s: float = WITHIN_S) -> ExitStatus:
        """Wait for its end and collect its exit status; from then on its number may be somebody else's.

        Raises:
            TimeoutError: It did not end within `within_s` seconds.
        """
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired as err:
            raise TimeoutError(f"puppet {self.pid} did not exit within {within_s:g} s") from err
        return ExitStatus(code=code) if code >= 0 else ExitStatus(signal=-code)

    def _expect(self, kind: bytes, within_s: float) -> None:
        found = self._byte(time.monotonic() + within_s)
        if found != kind:
            raise AssertionError(f"the puppet wrote {found!r} to its stdout, where {kind!r} was expected")

    def _byte(self, deadline: float) -> bytes:
        _wait_readable(self._lifeline, deadline, "ready")
        byte = os.read(self._lifeline, 1)
        if not byte:
            self._gone = True
            raise EOFError(f"puppet {self.pid} and all its tree are gone")
        return byte


@contextmanager
def puppet(
    script: str = "ready(); obey()",
    *,
    env: Mapping[str, str] | None = None,
    argv: Sequence[str] = (),
    under: Sequence[str] = (),
    session: bool = True,
    pass_fds: Sequence[int] = (),
    cwd: str | os.PathLike[str] | None = None,
) -> Iterator[Puppet]:
    """Run a Python script as a child that says when it is ready and whose death the kernel reports.

    The script finds ``json os signal sys threading time`` imported, and: ``ready()`` sends one byte that
    `Puppet.wait_ready` waits for; ``tell(value)`` sends what `Puppet.hear` returns; ``obey()`` answers every
    line with ``ready()`` until its stdin ends; ``stay()`` waits for that end. Its stdout belongs to these.

    When the block is left, the puppet's stdin is closed, its descendants and its group get SIGKILL, and only
    then is it reaped. Orphans in a group of their own must leave by themselves when their stdin ends
    (``stay()`` sees to that): whoever holds the lifeline five seconds later is a failure.

    Args:
        script: Python source.
        env: The whole environment; None: ours without the `BIRTHMARK_*` variables.
        argv: What the script finds in ``sys.argv[1:]``.
        under: Words put before the interpreter, such as ``("env", "-i")``; they keep stdin and stdout.
        session: Whether it leads a session of its own; else only a group of its own, in our session.
        pass_fds: Descriptors it inherits under the same numbers, beside 0, 1 and 2.
        cwd: Its working directory; None: ours.

    Raises:
        TimeoutError: On leaving: somebody of its tree is still there.

    Platform: POSIX.
    """
    if env is None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("BIRTHMARK_")}
    process = subprocess.Popen(
        [*under, sys.executable, "-c", _PRELUDE + script, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(env),
        pass_fds=pass_fds,
        cwd=cwd,
        start_new_session=session,
        process_group=None if session else 0,
    )
    # Unreaped, its number is its own, so that this pin cannot be of anybody else.
    child = Puppet(process, load().pin(process.pid))
    try:
        yield child
    finally:
        _end(child)


def _end(child: Puppet) -> None:
    """End the tree, then reap: as long as the leader is unreaped, nobody else can be given its numbers."""
    assert child.process.stdout is not None
    try:
        child.close_stdin()
        if child.process.returncode is None:
            _kill_descendants(child.pid, set())
            _deliver(child.pinned, Warrant(basis=Basis.CHILD, asked_by="the end of a puppet"), group=True)
            _deliver(child.pinned, Warrant(basis=Basis.CHILD, asked_by="the end of a puppet"))
            child.reap()
        child.wait_tree_gone()
    finally:
        child.process.stdout.close()
        child.pinned.close()


def _kill_descendants(pid: int, seen: set[int]) -> None:
    """Kill what descends from `pid`, deepest first, so that nobody becomes an orphan we cannot find."""
    for found in load().children_of(pid):
        if found in seen:
            continue
        seen.add(found)
        _kill_descendants(found, seen)
        try:
            pinned = load().pin(found)
        except (ProcessGone, LookFailed):
            continue
        with pinned:
            _deliver(pinned, Warrant(basis=Basis.DESCENT, parent=pid, asked_by="the end of a puppet"))


def _deliver(pinned: Pinned, warrant: Warrant, *, group: bool = False) -> None:
    try:
        load().deliver(pinned, _KILL, warrant, group=group)
    except SupervisionError:
        pass  # gone, re-parented or another user's by now; the lifeline tells whether anybody is left


def wait_exited(pinned: Pinned, *, within_s: float = WITHIN_S) -> None:
    """Wait until a pinned process has exited, reaped or not.

    Raises:
        TimeoutError: It did not within `within_s` seconds.
    """
    deadline = time.monotonic() + within_s
    platform = load()
    fd = platform.exit_fd(pinned)
    if fd is not None:
        _wait_readable(fd, deadline, f"exited ({pinned})")
        return
    while not platform.exited(pinned):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{pinned} has not exited in time")
        time.sleep(0.005)  # only where the kernel offers no descriptor to wait on


def _wait_readable(fd: int, deadline: float, what: str) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        # At least one look, also when the deadline has passed already.
        if not selector.select(max(0.0, deadline - time.monotonic())):
            raise TimeoutError(f"the puppet is not {what} in time")
