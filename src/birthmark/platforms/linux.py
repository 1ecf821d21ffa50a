"""Linux: pidfds, procfs and resource limits. Complete from 5.3; better from 6.9, where pidfds have inodes."""

from __future__ import annotations

import errno
import os
import resource
import select
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from birthmark.core.identity import EnvironState, HostFacts, Sighting
from birthmark.core.markers import TAG_RESOURCE, is_tag
from birthmark.core.parsers import signalable_pid
from birthmark.errors import LookFailed, ProcessGone
from birthmark.platforms import posix
from birthmark.platforms.contract import Capabilities, Pinned
from birthmark.platforms.native_look import native_look
from birthmark.platforms.posix import deliver, group_lives, group_of, is_our_child, reap
from birthmark.platforms.procfs import (
    all_pids,
    children_of,
    command_line,
    environ_of,
    facts,
    is_zombie,
    own_environ,
    parent_of,
    read_environ,
    read_stat,
    start_ticks_of,
    stat_of,
)

if TYPE_CHECKING:
    import ctypes

assert sys.platform == "linux"

__all__ = [
    "adopt_pidfd",
    "all_pids",
    "become_subreaper",
    "capabilities",
    "children_of",
    "command_line",
    "deliver",
    "exit_fd",
    "exited",
    "facts",
    "glance",
    "group_lives",
    "group_members",
    "group_of",
    "hold",
    "is_our_child",
    "is_zombie",
    "observe",
    "own_environ",
    "parent_of",
    "pin",
    "read_tag",
    "reap",
    "session_of",
    "start_ticks_of",
    "stat_of",
]

_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_GET_CHILD_SUBREAPER: Final = 37


_no_pidfd: bool = False


def pin(pid: int) -> Pinned:
    """Take hold of whatever process has `pid` now; see `ProcessControl.pin`. Source: pidfd_open(2)."""
    if signalable_pid(pid) is None:
        raise ValueError(f"{pid} is no pid: 1 to 2**31-1 are")
    fd = _open_pidfd(pid)
    # Open first, read second: what is read may be about a later owner of the number only if the
    # one we hold is gone, and whoever uses the pin asks the descriptor again.
    try:
        ticks = start_ticks_of(pid)
    except LookFailed:
        # Without procfs a pidfd still is that process for ever; a bare number would be a guess.
        if fd is None:
            raise
        ticks = -1
    if ticks is None:
        if fd is not None:
            hidden = Pinned(pid, fd, -1)
            if not posix.reaped(hidden):
                # hidepid: it is there, and procfs does not show it.
                return hidden
            hidden.close()
        raise ProcessGone(pid)
    return Pinned(pid, fd, ticks)


def hold(pid: int) -> Pinned:
    """Take hold of `pid` without reading when it started; see `ProcessControl.hold`."""
    if signalable_pid(pid) is None:
        raise ValueError(f"{pid} is no pid: 1 to 2**31-1 are")
    fd = _open_pidfd(pid)
    return pin(pid) if fd is None else Pinned(pid, fd, -1)


def adopt_pidfd(pid: int, fd: int) -> Pinned:
    """Wrap a pidfd opened at spawn; see `ProcessControl.adopt_pidfd`."""
    return Pinned(pid, fd, start_ticks_of(pid) or -1)


def _open_pidfd(pid: int) -> int | None:
    global _no_pidfd
    if _no_pidfd:
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError as err:
        raise ProcessGone(pid) from err
    except OSError as err:
        # ENOSYS: an old kernel, or gVisor. EPERM: a container's seccomp filter; pidfd_open itself
        # asks for no permission, so EPERM never means that the process is another's.
        if err.errno in (errno.ENOSYS, errno.EPERM):
            _no_pidfd = True
            return None
        # The number is a thread's, not a process's (EINVAL; ENOENT from 6.9 on).
        if err.errno in (errno.EINVAL, errno.ENOENT):
            raise ProcessGone(pid) from err
        raise LookFailed(f"process {pid}", os.strerror(err.errno or 0)) from err


def observe(pinned: Pinned, *, environ: bool = True) -> Sighting | None:
    """Look once at a pinned process; see `ProcessControl.observe`."""
    pid = pinned.pid
    here = facts()
    if environ and (usual := _observe_natively(pinned, here)) is not None:
        return usual
    # The order is the proof: stat before environ, since a block read while PF_FORKNOEXEC is set
    # is the parent's; and the descriptor last, since only then do we know whom we have read.
    stat = read_stat(pid)
    if stat is None:
        if pinned.fd is not None and not posix.reaped(pinned):
            return _hidden(pinned, here)
        return None
    state, block = environ_of(pid, stat) if environ else (EnvironState.UNSUPPORTED, b"")
    tag = read_tag(pid) if environ else None
    inode = _inode(pinned.fd)
    if pinned.fd is not None:
        exited_ = exited(pinned)
        if exited_ and posix.reaped(pinned):
            return None
    else:
        exited_ = stat.state in "ZX" and stat.threads <= 1
        again = read_stat(pid)
        if again is None or again.start_ticks != stat.start_ticks:
            return None
        if pinned.start_ticks not in (-1, stat.start_ticks):
            # The number is somebody else's by now.
            return None
    if pinned.start_ticks == -1:
        pinned.start_ticks = stat.start_ticks
    return Sighting(
        facts=here,
        pid=pid,
        start_ticks=stat.start_ticks,
        inode=inode,
        exited=exited_,
        ppid=stat.ppid,
        pgid=stat.pgid,
        session=stat.session,
        state=stat.state,
        threads=stat.threads,
        environ_state=state,
        environ=block,
        tag=tag,
    )


def _observe_natively(pinned: Pinned, here: HostFacts) -> Sighting | None:
    """Look at a running process with an environment of its own, in one call; None asks for the whole procedure."""
    look = native_look()
    if look is None or pinned.fd is None:
        return None
    seen = look(pinned.pid, pinned.fd)
    if seen is None:
        return None
    ticks, inode, ppid, pgid, session, state, threads, block, tag = seen
    if pinned.start_ticks == -1:
        pinned.start_ticks = ticks
    return Sighting(
        facts=here,
        pid=pinned.pid,
        start_ticks=ticks,
        inode=inode if _inodes_differ() else None,
        exited=False,
        ppid=ppid,
        pgid=pgid,
        session=session,
        state=state,
        threads=threads,
        environ_state=EnvironState.READABLE,
        environ=block,
        tag=tag,
    )


def _hidden(pinned: Pinned, here: HostFacts) -> Sighting:
    """Return what can be said of a process that exists and that procfs does not show."""
    return Sighting(
        facts=here,
        pid=pinned.pid,
        start_ticks=pinned.start_ticks,
        inode=_inode(pinned.fd),
        exited=exited(pinned),
        ppid=0,
        pgid=group_of(pinned.pid) or 0,
        session=0,
        state="?",
        threads=1,
        environ_state=EnvironState.HIDDEN,
        tag=read_tag(pinned.pid),
    )


def exited(pinned: Pinned) -> bool:
    """Say whether it has exited, reaped or not. Source: pidfd_open(2), "poll"."""
    # Read once: whoever reaps it in another thread closes it.
    fd = pinned.fd
    if fd is not None:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        # Ready when the whole thread group has exited, which a leader in state Z has not always.
        return bool(poller.poll(0))
    stat = read_stat(pinned.pid)
    if stat is None or stat.start_ticks != pinned.start_ticks:
        return True
    return stat.state in "ZX" and stat.threads <= 1


def exit_fd(pinned: Pinned) -> int | None:
    """Return the pidfd; None without one."""
    return pinned.fd


def glance(pid: int) -> tuple[int | None, bytes]:
    """Return the tag's resource limit, or the environment; see `ProcessControl.glance`."""
    tag = read_tag(pid)
    if tag is not None and is_tag(tag):
        return tag, b""
    try:
        return None, read_environ(f"/proc/{pid}/environ")
    except OSError:
        return None, b""


def read_tag(pid: int) -> int | None:
    """Return the soft value that may hold a tag; None when it may not be read. Source: prlimit(2)."""
    try:
        return resource.prlimit(pid, TAG_RESOURCE)[0]
    except (OSError, ValueError):
        return None


def tag_possible(value: int) -> bool:
    """Say whether our own hard limit leaves room for the tag `value`."""
    hard = resource.getrlimit(TAG_RESOURCE)[1]
    return is_tag(value) and (hard == resource.RLIM_INFINITY or hard >= value)


def _inode(fd: int | None) -> int | None:
    if fd is None or not _inodes_differ():
        return None
    return os.fstat(fd).st_ino


@lru_cache(maxsize=1)
def _inodes_differ() -> bool:
    """Detect pidfs: before 6.9 all pidfds share one anonymous inode, so equal would prove nothing."""
    pids = [os.getpid(), os.getppid()]
    try:
        fds = [os.pidfd_open(pid) for pid in pids if pid > 0]
    except OSError:
        return False
    try:
        if len(fds) == 2:
            return os.fstat(fds[0]).st_ino != os.fstat(fds[1]).st_ino
        # Our parent is outside our namespace: pidfs has a file system type of its own.
        return _file_system_type(fds[0]) == _PIDFS_MAGIC
    finally:
        for fd in fds:
            os.close(fd)


_PIDFS_MAGIC: Final = 0x50494446


def _file_system_type(fd: int) -> int:
    """Return ``f_type`` of fstatfs(2), which `os.statvfs` leaves out."""
    import ctypes

    buffer = ctypes.create_string_buffer(256)
    if _libc().fstatfs(fd, buffer) != 0:
        return 0
    return int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder)


def session_of(pid: int) -> int | None:
    """Return the session of `pid`, zombies included. Source: getsid(2)."""
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def group_members(pgid: int) -> list[int]:
    """Return the pids whose group is `pgid`, zombies included; getpgid(2) costs a tenth of a look at stat."""
    members = []
    for pid in all_pids():
        try:
            if os.getpgid(pid) == pgid:
                members.append(pid)
        except (ProcessLookupError, PermissionError):
            continue
    return members


def become_subreaper() -> bool:
    """Have orphaned descendants fall to us; True when the kernel agreed. Source: prctl(2), Linux 3.4."""
    return bool(_libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    # Late: most commands call nothing of it, and it is no cheap import.
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


@lru_cache(maxsize=1)
def capabilities() -> Capabilities:
    """Ask this kernel what it can do; see `ProcessControl.capabilities`."""
    notes: list[str] = []
    group = False
    try:
        fd = os.pidfd_open(os.getpid())
    except OSError as err:
        notes.append(
            f"no pidfd ({os.strerror(err.errno or 0)}): identities are compared right before each signal"
        )
    else:
        group = posix.group_flag_works(fd)
        os.close(fd)
    inodes = _inodes_differ()
    if not inodes:
        notes.append("pidfds have no inodes of their own (they do from Linux 6.9): mark and tag must decide")
    hard = resource.getrlimit(TAG_RESOURCE)[1]
    tag = hard == resource.RLIM_INFINITY
    if not tag:
        notes.append("a finite hard limit on RLIMIT_RTTIME leaves no room for the tag")
    from birthmark.platforms.launch import why_pure

    return Capabilities(
        platform="linux",
        pidfd=not _pidfd_missing(),
        pidfs_inode=inodes,
        group_signal=group,
        environ=own_environ() is not None,
        tag=tag,
        parent_death=True,
        subreaper=True,
        sock_diag=True,
        native_spawner=why_pure() is None,
        notes=tuple(notes),
    )


def _pidfd_missing() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return True
    return False
