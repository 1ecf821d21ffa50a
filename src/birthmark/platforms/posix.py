"""What all POSIX systems share, and the one function through which a signal leaves."""

from __future__ import annotations

import errno
import os
import signal
import sys
from contextlib import suppress
from typing import Final

from birthmark.core.outcomes import Basis, Delivery, ExitStatus, Scope, SignalRecord, Warrant, signal_name
from birthmark.core.parsers import signalable_pid
from birthmark.errors import NotPermitted, NotSignalable, SignalFailed
from birthmark.platforms import contract
from birthmark.platforms.contract import Pinned

assert sys.platform != "win32"  # birthmark.platforms.windows stands on its own

PIDFD_SIGNAL_PROCESS_GROUP: Final = 4

# A stopped process cannot act on a signal that asks it to leave (all but KILL stay pending).
_ASKS_TO_LEAVE: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})

_WALKS: Final = 10

_ancestry: tuple[int, frozenset[int]] = (0, frozenset())
_group_flag: bool | None = None


def deliver(target: Pinned, sig: int, warrant: Warrant, *, group: bool = False) -> Delivery:
    """Send one signal to a pinned process, or to the group it leads. No other function signals.

    Never signalled: pid 0 and below, pid 1 unless proven, ourselves, our ancestors, our own
    group as a group, and whatever the warrant does not cover. A signal that asks to leave is
    followed by CONT.

    Returns:
        SENT, or GONE when nothing was left to receive it.

    Raises:
        NotSignalable: A rule above holds.
        NotPermitted: The kernel says it is another's.
        SignalFailed: Any other errno.
    """
    scope = Scope.GROUP if group else Scope.PROCESS
    refusal = _exclusion(target.pid, warrant, group=group)
    if refusal is None:
        refusal = _lost_ground(target.pid, warrant)
        # A child that was reaped is nobody's child any more: that it is gone is the whole answer.
        if refusal is not None and reaped(target):
            _record(target, sig, scope, warrant, Delivery.GONE)
            return Delivery.GONE
    if refusal is not None:
        _record(target, sig, scope, warrant, Delivery.REFUSED, refusal)
        raise NotSignalable(target.pid, refusal)
    try:
        _send(target, sig, group)
    except ProcessLookupError:
        _record(target, sig, scope, warrant, Delivery.GONE)
        return Delivery.GONE
    except PermissionError as err:
        # It exists and is not ours to signal. It never means that it is gone.
        _record(target, sig, scope, warrant, Delivery.NOT_PERMITTED)
        raise NotPermitted(target.pid, f"send {signal_name(sig)} to", err.errno) from err
    except OSError as err:
        _record(target, sig, scope, warrant, Delivery.REFUSED, os.strerror(err.errno or 0))
        raise SignalFailed(target.pid, signal_name(sig), err.errno or 0) from err
    if sig in _ASKS_TO_LEAVE:
        # It may have left at once, or changed its credentials in the meantime: the request arrived.
        with suppress(ProcessLookupError, PermissionError):
            _send(target, signal.SIGCONT, group)
    _record(target, sig, scope, warrant, Delivery.SENT)
    return Delivery.SENT


def _send(target: Pinned, sig: int, group: bool) -> None:
    """Make the system call, through the pidfd where there is one."""
    # Read once: whoever reaps it in another thread closes it.
    fd = target.fd
    # Elsewhere the descriptor tells of the exit, and nothing can be sent through it.
    if sys.platform == "linux" and fd is not None:
        if not group:
            signal.pidfd_send_signal(fd, sig)
            return
        if _knows_group_flag(fd):
            signal.pidfd_send_signal(fd, sig, None, PIDFD_SIGNAL_PROCESS_GROUP)
            return
    # By number: while the process it was pinned as is there, even unreaped, nobody else can be
    # given the number. The gap between this look and the call is what a pidfd closes.
    if not _still_there(target):
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    if group:
        os.killpg(target.pid, sig)
    else:
        os.kill(target.pid, sig)


def _knows_group_flag(fd: int) -> bool:
    """Say whether this kernel knows the flag; Linux before 6.9 does not. Asked once, on any pidfd."""
    global _group_flag
    if sys.platform != "linux":
        return False
    if _group_flag is None:
        try:
            # Signal 0: with another, EINVAL might be about the signal.
            signal.pidfd_send_signal(fd, 0, None, PIDFD_SIGNAL_PROCESS_GROUP)
        except OSError as err:
            # ESRCH and EPERM are answers about the process, by a kernel that knows the flag.
            _group_flag = err.errno in (errno.ESRCH, errno.EPERM)
        else:
            _group_flag = True
    return _group_flag


def _still_there(target: Pinned) -> bool:
    from birthmark.platforms import load

    return load().start_ticks_of(target.pid) == target.start_ticks


def _exclusion(pid: int, warrant: Warrant, *, group: bool) -> str | None:
    """Return the rule that forbids this signal whatever becomes of the target, or None."""
    if signalable_pid(pid) is None:
        return "no process has such a pid"
    if pid == os.getpid():
        return "it is ourselves"
    if pid == 1 and warrant.basis is not Basis.PROOF:
        return "pid 1 is signalled only when proven ours"
    if pid in _ancestors():
        # The number may have been given away since the chain was read.
        refresh_ancestors()
        if pid in _ancestors():
            return "it is an ancestor of ours"
    if group:
        if pid == os.getpgrp():
            return "it is our own process group"
        if any(group_of(ancestor) == pid for ancestor in _ancestors()):
            return "an ancestor of ours is in that group"
    if not warrant.covers(pid):
        return "it is not proven ours" if warrant.proof is None else f"it is not proven ours: {warrant.proof}"
    return None


def _lost_ground(pid: int, warrant: Warrant) -> str | None:
    """Return why the warrant's ground, asked again right now, does not hold; None when it does."""
    from birthmark.platforms import load

    if warrant.basis is Basis.CHILD and not load().is_our_child(pid):
        return "it is not our unreaped child"
    if warrant.basis is Basis.DESCENT and load().parent_of(pid) != warrant.parent:
        return "its parent is not the one it was found under"
    return None


def _ancestors() -> frozenset[int]:
    """Return our ancestors' pids.

    The chain is read once: a dead ancestor is replaced by another that was in the chain
    already (a subreaper, or init). What it holds too much, a fresh walk takes out.
    """
    global _ancestry
    me = os.getpid()
    if _ancestry[0] != me:
        _ancestry = (me, _all_ancestors())
    return _ancestry[1]


def refresh_ancestors() -> None:
    """Forget the chain of ancestors, so that the next signal walks it anew."""
    global _ancestry
    _ancestry = (0, frozenset())


def _all_ancestors() -> frozenset[int]:
    """Walk up until two walks agree: a parent that dies under us would end the chain early, for ever."""
    found: set[int] = set()
    before: list[int] | None = None
    for _ in range(_WALKS):
        chain = _walk_up()
        # One ancestor too many refuses a signal; one too few sends it.
        found.update(chain)
        if chain == before:
            break
        before = chain
    return frozenset(found)


def _walk_up() -> list[int]:
    from birthmark.platforms import load

    platform = load()
    chain: list[int] = []
    parent: int | None = os.getppid()
    while parent and parent not in chain:
        chain.append(parent)
        parent = platform.parent_of(parent)
    return chain


def _record(
    target: Pinned, sig: int, scope: Scope, warrant: Warrant, result: Delivery, detail: str = ""
) -> None:
    for sink in contract.sinks():
        sink(
            SignalRecord(
                pid=target.pid,
                signal=sig,
                scope=scope,
                basis=warrant.basis,
                asked_by=warrant.asked_by,
                result=result,
                detail=detail,
            )
        )


def reaped(target: Pinned) -> bool:
    """Say whether a pinned process was reaped: signal 0, which delivers nothing, reaches zombies too."""
    return not _reaches(target, group=False)


def group_lives(target: Pinned) -> bool:
    """Say whether the group that `target` led has any member, zombies included.

    While it has, its number belongs to it, even after the leader was reaped. Without a pidfd,
    or before Linux 6.9, only an unreaped leader can vouch for the number.
    """
    return _reaches(target, group=True)


def _reaches(target: Pinned, *, group: bool) -> bool:
    try:
        _send(target, 0, group)
    except ProcessLookupError:
        return False
    except OSError:
        # Not permitted: it is there.
        return True
    return True


def group_flag_works(fd: int) -> bool:
    """Say whether this kernel knows the process-group flag, asked with signal 0 on a pidfd of ours."""
    with suppress(OSError):
        _send(Pinned(os.getpid(), fd, 0), 0, True)
    return bool(_group_flag)


def group_of(pid: int) -> int | None:
    """Return the process group of `pid`, zombies included; None when it is gone or no pid at all."""
    if signalable_pid(pid) is None:
        return None
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):
        return None


if sys.platform == "linux":

    def is_our_child(pid: int) -> bool:
        """Say whether `pid` is our child, unreaped. Nothing is reaped by asking: WNOWAIT."""
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except (ChildProcessError, ProcessLookupError):
            return False
        return True

    def reap(pid: int) -> ExitStatus | None:
        """Collect the exit status of our child `pid`, which frees its number; None while it lives.

        Exactly one owner does this, after the set has been dealt with. When somebody else was
        faster (SIGCHLD ignored in the host, a waitpid elsewhere) the status is unknown.
        """
        try:
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
        except (ChildProcessError, ProcessLookupError):
            return ExitStatus()
        return None if found is None else _status(found.si_code, found.si_status)

    def exited_child() -> int | None:
        """Return a child of ours that has exited and is unreaped, whichever; None when there is none.

        For a process that reaps whoever ends: while a dead child is held back, that one may be returned for ever.
        """
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        return None if found is None else found.si_pid

    def peek(pid: int) -> ExitStatus | None:
        """Return the exit status of our child `pid` and leave it unreaped; None while it lives."""
        try:
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except (ChildProcessError, ProcessLookupError):
            return ExitStatus()
        return None if found is None else _status(found.si_code, found.si_status)

    def _status(code: int, status: int) -> ExitStatus:
        if code == os.CLD_EXITED:
            return ExitStatus(code=status)
        return ExitStatus(signal=status, core_dumped=code == os.CLD_DUMPED)

else:

    def is_our_child(pid: int) -> bool:
        """Say whether `pid` is our child, unreaped, by its parent's number: here nobody can ask without reaping."""
        from birthmark.platforms import load

        return signalable_pid(pid) is not None and load().parent_of(pid) == os.getpid()

    def reap(pid: int) -> ExitStatus | None:
        """Collect the exit status of our child `pid`, which frees its number; None while it lives."""
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except (ChildProcessError, ProcessLookupError):
            return ExitStatus()
        if found == 0:
            return None
        if os.WIFSIGNALED(status):
            return ExitStatus(signal=os.WTERMSIG(status), core_dumped=os.WCOREDUMP(status))
        return ExitStatus(code=os.WEXITSTATUS(status))

    def peek(pid: int) -> ExitStatus | None:
        """Say an unknown status for a child that has exited, since it cannot be read unreaped; None while it lives."""
        from birthmark.platforms import load

        return ExitStatus() if load().is_zombie(pid) or not is_our_child(pid) else None
