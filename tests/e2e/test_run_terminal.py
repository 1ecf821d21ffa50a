"""`birthmark run` at a terminal: what is typed does what it would do without us, and a hang-up leaves nothing.

Real pseudo-terminals; the shell is a puppet that does what shells do: a group for the job, the terminal for the
group, and waiting for its stops and its end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from birthmark.platforms import load
from birthmark.testing import Puppet, puppet, wait_exited
from tests.e2e.fronts import (
    DEAF,
    RUN,
    SETSID_DEAF,
    STAYS,
    TELLS_SIGNALS,
    command,
    environment,
    pinned,
    send_to,
    until,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="`birthmark run` needs Linux's subreaper")

SHELL: Final = """\
import fcntl, subprocess, termios
tty = int(sys.argv[1])
fcntl.ioctl(tty, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = subprocess.Popen(sys.argv[2:], stdin=tty, process_group=0)
os.tcsetpgrp(tty, job.pid)
tell(job.pid)
while True:
    _, status = os.waitpid(job.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        break
    os.tcsetpgrp(tty, os.getpgrp())
    tell("stopped")
    sys.stdin.readline()
    os.tcsetpgrp(tty, job.pid)
    os.killpg(job.pid, signal.SIGCONT)
tell(["ended", os.waitstatus_to_exitcode(status)])
stay()
"""

ANSWERS: Final = "signal.signal(signal.SIGUSR2, lambda *_: ready())\n"
"""Script line: SIGUSR2 is answered, which proves life by way of the front."""

INTERRUPT: Final = b"\x03"
SUSPEND: Final = b"\x1a"
QUIT: Final = b"\x1c"


class Terminal:
    """The side of a terminal where the keyboard is."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def type(self, keys: bytes) -> bool:
        os.write(self._fd, keys)
        return False

    def hang_up(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextmanager
def terminal() -> Iterator[tuple[Terminal, int]]:
    """Open a terminal; yields the keyboard and the descriptor for those who sit at it."""
    keyboard, tty = os.openpty()
    ours = Terminal(keyboard)
    try:
        yield ours, tty
    finally:
        ours.hang_up()
        os.close(tty)


@contextmanager
def shell(script: str, *options: str) -> Iterator[tuple[Puppet, Terminal, int]]:
    """Run a puppet's script under `birthmark run` as a shell's foreground job; yields job, keyboard and the front's pid."""
    with terminal() as (keyboard, tty):
        words = [str(tty), *command(script, *options)]
        with puppet(SHELL, argv=words, pass_fds=[tty], env=environment()) as found:
            yield found, keyboard, found.hear_pid()


def test_an_interrupt_reaches_the_command_once_and_is_its_own_to_understand() -> None:
    # With no grace at all, a stop would show at once.
    with shell(TELLS_SIGNALS + ANSWERS + "ready()" + STAYS, "--grace", "0s") as (job, keyboard, pid):
        job.wait_ready()
        keyboard.type(INTERRUPT)
        assert job.hear() == "SIGINT"
        with pinned(pid) as the_front:
            for _ in range(2):
                send_to(the_front, signal.SIGUSR2)
                job.wait_ready()  # and no second SIGINT was told in between


def test_an_interrupt_does_not_follow_a_command_that_left_the_terminal() -> None:
    script = TELLS_SIGNALS + ANSWERS + "os.setsid(); ready()" + STAYS
    with shell(script) as (job, keyboard, pid):
        job.wait_ready()
        keyboard.type(INTERRUPT)
        with pinned(pid) as the_front:
            for _ in range(2):
                send_to(the_front, signal.SIGUSR2)
                job.wait_ready()  # and no SIGINT was told in between


def test_an_interrupt_ends_a_command_that_does_not_hear_it_with_all_it_started() -> None:
    with shell(
        SETSID_DEAF + "signal.signal(signal.SIGINT, signal.SIG_DFL); ready()" + STAYS, "--grace", "50ms"
    ) as (
        job,
        keyboard,
        _,
    ):
        with pinned(job.hear_pid()) as daemon:
            job.wait_ready()
            keyboard.type(INTERRUPT)
            wait_exited(daemon)
        assert job.hear() == ["ended", 130]


def test_a_second_interrupt_shortens_the_grace_and_still_leaves_nothing() -> None:
    script = SETSID_DEAF + "signal.signal(signal.SIGINT, signal.SIG_DFL); tell(os.getpid())" + STAYS
    with shell(script, "--grace", "1h") as (job, keyboard, _):
        with pinned(job.hear_pid()) as daemon, pinned(job.hear_pid()) as leader:
            keyboard.type(INTERRUPT)
            wait_exited(leader)
            # One that comes before the front has read the first is the same signal to the kernel: press again.
            until(lambda: keyboard.type(INTERRUPT) or load().exited(daemon))
        assert job.hear() == ["ended", 130]


def test_quit_is_the_commands_own_too() -> None:
    with shell(TELLS_SIGNALS + ANSWERS + "ready()" + STAYS, "--grace", "0s") as (job, keyboard, pid):
        job.wait_ready()
        keyboard.type(QUIT)
        assert job.hear() == "SIGQUIT"
        with pinned(pid) as the_front:
            send_to(the_front, signal.SIGUSR2)
            job.wait_ready()


def test_suspend_stops_the_job_and_foreground_continues_it() -> None:
    script = "signal.signal(signal.SIGCONT, lambda *_: tell('continued'))\n" + ANSWERS + "ready()" + STAYS
    with shell(script) as (job, keyboard, pid):
        job.wait_ready()
        with pinned(pid) as the_front:
            for _ in range(2):
                keyboard.type(SUSPEND)
                assert job.hear() == "stopped"
                job.say("fg")
                assert job.hear() == "continued"
                send_to(the_front, signal.SIGUSR2)
                job.wait_ready()


def test_a_command_that_suspends_itself_suspends_the_job() -> None:
    # As full-screen programs do: ^Z is caught, the screen put back, and only then the program stops.
    script = """\
def suspended(*_):
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, suspended)
    tell("back")
signal.signal(signal.SIGTSTP, suspended)
ready()
"""
    with shell(script + STAYS) as (job, keyboard, _):
        job.wait_ready()
        keyboard.type(SUSPEND)
        assert job.hear() == "stopped"
        job.say("fg")
        assert job.hear() == "back"


def test_a_command_that_ignores_suspend_goes_on_in_the_foreground() -> None:
    with shell("signal.signal(signal.SIGTSTP, signal.SIG_IGN)\n" + ANSWERS + "ready()" + STAYS) as (
        job,
        keyboard,
        pid,
    ):
        job.wait_ready()
        keyboard.type(SUSPEND)
        with pinned(pid) as the_front:
            send_to(the_front, signal.SIGUSR2)
            job.wait_ready()  # "stopped" would have come first


def test_a_closed_terminal_leaves_nothing() -> None:
    with shell(SETSID_DEAF + DEAF + "ready()" + STAYS, "--grace", "50ms") as (job, keyboard, pid):
        with pinned(job.hear_pid()) as daemon, pinned(pid) as the_front:
            job.wait_ready()
            keyboard.hang_up()
            wait_exited(daemon)
            wait_exited(the_front)
        job.wait_tree_gone()


def test_a_front_that_leads_the_session_passes_the_hang_up_on() -> None:
    # A window that runs the command without a shell: the kernel tells the hang-up to the session's leader alone.
    takes_terminal = """\
import fcntl, os, sys, termios
fcntl.ioctl(int(sys.argv[1]), termios.TIOCSCTTY, 0)
os.dup2(int(sys.argv[1]), 0)
os.execv(sys.argv[2], sys.argv[2:])
"""
    script = (
        "signal.signal(signal.SIGHUP, lambda *_: (tell('SIGHUP'), os._exit(0))); tell(os.getsid(0))" + STAYS
    )
    with terminal() as (keyboard, tty):
        under = (sys.executable, "-c", takes_terminal, str(tty), *RUN, "--")
        with puppet(script, under=under, pass_fds=[tty], env=environment()) as child:
            assert child.hear() == child.pid
            keyboard.hang_up()
            assert child.hear() == "SIGHUP"
            child.wait_tree_gone()
            assert child.reap().code == 0
