"""`birthmark run` in front of a puppet: the puppet is the command, its process is the front."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from birthmark.core.outcomes import Basis, Warrant
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned
from birthmark.testing import Puppet, puppet

RUN: Final = (sys.executable, "-I", "-m", "birthmark", "run")

DEAF: Final = "[signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]\n"
"""Script line: asks to leave are not heard."""

TELLS_SIGNALS: Final = """\
def heard(number, _): tell(signal.Signals(number).name)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT):
    signal.signal(number, heard)
"""
"""Script lines: every signal is told, and outlived."""

STAYS: Final = "\nwhile True: signal.pause()\n"
"""Script line: neither the end of input nor a heard signal ends it."""

SETSID_DEAF: Final = """\
if os.fork() == 0:
    os.setsid()
    [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    daemon = os.fork()
    if daemon:
        tell(daemon)
        os._exit(0)
    while True: signal.pause()
os.wait()
"""
"""Script lines: a double-forked daemon in a session of its own, deaf to all but SIGKILL, tells its pid."""


def environment(**more: str) -> dict[str, str]:
    """Return our environment with the test's own state folder, and no mark."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "BIRTHMARK_HOME" or not name.startswith("BIRTHMARK_")
    }
    return {**kept, **more}


@contextmanager
def front(
    script: str,
    *options: str,
    env: dict[str, str] | None = None,
    argv: Sequence[str] = (),
    pass_fds: Sequence[int] = (),
    session: bool = True,
) -> Iterator[Puppet]:
    """Run a puppet's script under `birthmark run`. Its `pid` is the front's, its stdout and stdin the command's."""
    with puppet(
        script,
        under=(*RUN, *options, "--"),
        env=environment() if env is None else env,
        argv=argv,
        pass_fds=pass_fds,
        session=session,
    ) as child:
        yield child


def send(child: Puppet, sig: int) -> None:
    """Send one signal to the puppet's process alone."""
    load().deliver(child.pinned, sig, Warrant(basis=Basis.CHILD, asked_by="a test"))


def send_group(child: Puppet, sig: int) -> None:
    """Send one signal to the group the puppet's process leads."""
    load().deliver(child.pinned, sig, Warrant(basis=Basis.CHILD, asked_by="a test"), group=True)


def send_to(target: Pinned, sig: int) -> None:
    """Send one signal to a process we hold."""
    load().deliver(target, sig, Warrant(basis=Basis.CALLER, asked_by="a test"))


@contextmanager
def pinned(pid: int) -> Iterator[Pinned]:
    """Hold a process that a script told us about, to see it end."""
    found = load().pin(pid)
    try:
        yield found
    finally:
        if not load().exited(found):
            load().deliver(found, signal.SIGKILL, Warrant(basis=Basis.CALLER, asked_by="the end of a test"))
        found.close()


def until(holds: Callable[[], bool]) -> None:
    """Wait for what no descriptor tells, at most five seconds."""
    for _ in range(500):
        if holds():
            return
        signal.sigtimedwait([], 0.01)
    raise TimeoutError("it did not come true in time")


HOST: Final = """\
import subprocess
front = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
tell(front.pid)
stay()
"""
"""Script of a client: starts what its arguments say, with a pipe for its stdin and the lifeline as its stdout."""


def command(script: str, *options: str) -> list[str]:
    """Return the words that run a puppet's script under `birthmark run`, for a client to start."""
    from birthmark.testing.puppet import _PRELUDE

    return [*RUN, *options, "--", sys.executable, "-c", _PRELUDE + script]
