"""Job control: being one process of a job that a terminal's user stops and continues."""

from __future__ import annotations

import os
import signal
import sys

assert sys.platform != "win32"

JOB_SIGNALS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


def stopped_by(pid: int) -> int | None:
    """Return the signal that stopped our child since the last time we asked; None when none did.

    A stop that was undone in the meantime is not told. Nothing is reaped.
    """
    try:
        found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
    except (ChildProcessError, ProcessLookupError):
        return None
    return found.si_status if found is not None and found.si_code == os.CLD_STOPPED else None


def in_a_job() -> bool:
    """Say whether our parent looks after us the way a shell does: same session, another process group.

    Only then somebody notices that we have stopped, and continues us.
    """
    parent = os.getppid()
    try:
        return parent > 0 and os.getsid(parent) == os.getsid(0) and os.getpgid(parent) != os.getpgrp()
    except (ProcessLookupError, PermissionError):
        return False


def leads_session() -> bool:
    """Say whether the terminal's hang-up is told to us alone, as to every session leader."""
    return os.getsid(0) == os.getpid()


def suspend_ourselves() -> None:
    """Stop like any job that ^Z was typed at, and return when we are continued.

    The kernel discards the request where nobody could continue us (an orphaned process group), so that we
    never sleep for ever.
    """
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
    try:
        # Sent while blocked: should the terminal's own be here already, or come now, both are one stop. What is
        # still pending when we are continued, the kernel drops.
        signal.raise_signal(signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGTSTP, before)
