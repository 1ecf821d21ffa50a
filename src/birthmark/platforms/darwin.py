"""macOS: psutil for the process table, libproc for start times, sysctl for environments, kqueue for exits.

An identity is a pid and its start in microseconds since 1970 (`start_ticks`); there is nothing like a pidfs
inode. The system withholds the environment of its own and other protected programs, silently and from
root too: an empty one is therefore *unknown*, never *unmarked*.

Type-checked, and its pure parts tested with bytes and stubs; not executed on a Mac by us.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import sys
from functools import lru_cache
from typing import Final, NamedTuple

import psutil

from birthmark.core.identity import EnvironState, HostFacts, Sighting
from birthmark.core.parsers import environ_from_procargs2, signalable_pid
from birthmark.errors import LookFailed, ProcessGone
from birthmark.platforms import posix
from birthmark.platforms.contract import Capabilities, Pinned
from birthmark.platforms.posix import deliver, group_lives, group_of, is_our_child, reap

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
    "reap",
    "session_of",
    "start_ticks_of",
]

_PROC_PIDTBSDINFO: Final = 3
_INCLUDING_ZOMBIES: Final = 1
_SZOMB: Final = 5
_CTL_KERN: Final = 1
_KERN_ARGMAX: Final = 8
_KERN_PROCARGS2: Final = 49

# struct proc_bsdinfo of <sys/proc_info.h>: twelve words, two names, six words, two instants.
_BSDINFO: Final = struct.Struct("=12I16s32s6I2Q")
_GLANCE_BYTES: Final = 32 * 1024


class BsdInfo(NamedTuple):
    """What libproc says of one process. `start_us` counts microseconds since 1970, as set at its birth."""

    status: int
    pid: int
    ppid: int
    pgid: int
    start_us: int


def parse_bsdinfo(raw: bytes) -> BsdInfo | None:
    """Read a ``struct proc_bsdinfo``; None when it is not one, whole."""
    if len(raw) != _BSDINFO.size:
        return None
    fields = _BSDINFO.unpack(raw)
    return BsdInfo(
        status=fields[1],
        pid=fields[3],
        ppid=fields[4],
        pgid=fields[15],
        start_us=fields[20] * 1_000_000 + fields[21],
    )


def environ_state(blob: bytes | None) -> tuple[EnvironState, bytes]:
    """Judge what ``KERN_PROCARGS2`` gave; without an entry it says nothing about a mark."""
    block = None if blob is None else environ_from_procargs2(blob)
    if block is None or b"=" not in block:
        return EnvironState.UNSUPPORTED, b""
    return EnvironState.READABLE, block


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _bsdinfo(pid: int) -> BsdInfo | None:
    """Ask libproc about `pid`, zombies included; None when there is no such process.

    Raises:
        LookFailed: It is another user's, or libproc answers something we do not understand.
    """
    buffer = ctypes.create_string_buffer(_BSDINFO.size)
    ctypes.set_errno(0)
    size = _libc().proc_pidinfo(
        ctypes.c_int(pid),
        ctypes.c_int(_PROC_PIDTBSDINFO),
        ctypes.c_uint64(_INCLUDING_ZOMBIES),
        buffer,
        ctypes.c_int(_BSDINFO.size),
    )
    if size <= 0:
        number = ctypes.get_errno()
        if number == errno.ESRCH:
            return None
        raise LookFailed(f"process {pid}", os.strerror(number))
    found = parse_bsdinfo(buffer.raw[:size])
    if found is None or found.pid != pid:
        raise LookFailed(f"process {pid}", "libproc answered in a layout we do not know")
    return found


def _procargs2(pid: int) -> bytes | None:
    """Return what ``KERN_PROCARGS2`` gives for `pid`; None when it is refused or the process is gone."""
    most = ctypes.c_int(0)
    size = ctypes.c_size_t(ctypes.sizeof(most))
    if _sysctl((_CTL_KERN, _KERN_ARGMAX), ctypes.byref(most), ctypes.byref(size)) != 0:
        return None
    buffer = ctypes.create_string_buffer(most.value)
    size = ctypes.c_size_t(most.value)
    # A vanished process and another user's both give EINVAL.
    if _sysctl((_CTL_KERN, _KERN_PROCARGS2, pid), buffer, ctypes.byref(size)) != 0:
        return None
    return buffer.raw[: size.value]


def _sysctl(name: tuple[int, ...], into: object, size: object) -> int:
    mib = (ctypes.c_int * len(name))(*name)
    return int(_libc().sysctl(mib, ctypes.c_uint(len(name)), into, size, None, ctypes.c_size_t(0)))


def _sysctl_text(name: bytes) -> str:
    buffer = ctypes.create_string_buffer(256)
    size = ctypes.c_size_t(len(buffer))
    if _libc().sysctlbyname(name, buffer, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        raise LookFailed("this host", f"sysctl {name.decode()}: {os.strerror(ctypes.get_errno())}")
    return buffer.value.decode("ascii", "replace")


def capabilities() -> Capabilities:
    return Capabilities(
        platform="darwin",
        pidfd=False,
        pidfs_inode=False,
        group_signal=False,
        environ=own_environ() is not None,
        tag=False,
        parent_death=False,
        subreaper=False,
        sock_diag=False,
        native_spawner=False,
        notes=(
            "macOS has no pidfds: identities are compared right before each signal",
            "macOS withholds the environment of protected programs: those are unknown, and never signalled",
            "nothing survives exec here that would end a child with its parent",
        ),
    )


_facts: HostFacts | None = None


def facts() -> HostFacts:
    global _facts
    if _facts is None:
        _facts = HostFacts(_host_id(), _sysctl_text(b"kern.bootsessionuuid"), 0)
    return _facts


def _host_id() -> str:
    class Timespec(ctypes.Structure):
        _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

    raw = ctypes.create_string_buffer(16)
    wait = Timespec(1, 0)
    if _libc().gethostuuid(raw, ctypes.byref(wait)) == 0:
        return raw.raw.hex()
    return os.uname().nodename


def pin(pid: int) -> Pinned:
    if signalable_pid(pid) is None:
        raise ValueError(f"{pid} is no pid: 1 to 2**31-1 are")
    fd = _exit_descriptor(pid)
    # Registered first, read second: should the process have ended in between, the descriptor tells.
    try:
        info = _bsdinfo(pid)
    except LookFailed:
        os.close(fd)
        raise
    if info is None:
        os.close(fd)
        raise ProcessGone(pid)
    return Pinned(pid, fd, info.start_us)


hold = pin


def adopt_pidfd(pid: int, fd: int) -> Pinned:
    return Pinned(pid, fd, start_ticks_of(pid) or -1)


def _exit_descriptor(pid: int) -> int:
    """Return a descriptor that is readable once the process has exited. Source: kqueue(2), NOTE_EXIT."""
    if sys.platform == "darwin":
        queue = select.kqueue()
        try:
            event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, fflags=select.KQ_NOTE_EXIT)
            queue.control([event], 0)
            # Our own copy: the queue object closes its descriptor when it is collected.
            return os.dup(queue.fileno())
        except ProcessLookupError:
            pass  # a zombie, or nobody: it has exited
        except OSError as err:
            raise LookFailed(f"process {pid}", os.strerror(err.errno or 0)) from err
        finally:
            queue.close()
    reading, writing = os.pipe()
    os.close(writing)
    return reading


def observe(pinned: Pinned, *, environ: bool = True) -> Sighting | None:
    pid = pinned.pid
    here = facts()
    info = _bsdinfo(pid)
    if info is None or info.start_us != pinned.start_ticks:
        return None
    state, block = environ_state(_procargs2(pid)) if environ else (EnvironState.UNSUPPORTED, b"")
    # Asked last: a process still there after the read is the one that was read.
    again = _bsdinfo(pid)
    if again is None or again.start_us != info.start_us:
        return None
    return Sighting(
        facts=here,
        pid=pid,
        start_ticks=info.start_us,
        inode=None,
        exited=again.status == _SZOMB,
        ppid=again.ppid,
        pgid=again.pgid,
        session=session_of(pid) or 0,
        state="Z" if again.status == _SZOMB else "S",
        threads=1,
        environ_state=state,
        environ=block,
        tag=None,
    )


def exited(pinned: Pinned) -> bool:
    info = _bsdinfo(pinned.pid)
    return info is None or info.start_us != pinned.start_ticks or info.status == _SZOMB


def exit_fd(pinned: Pinned) -> int | None:
    return pinned.fd


def start_ticks_of(pid: int) -> int | None:
    """Return its start in microseconds since 1970, as fixed at its birth."""
    info = _bsdinfo(pid)
    return None if info is None else info.start_us


def parent_of(pid: int) -> int | None:
    # psutil asks a sysctl that shows other users' processes too; libproc does not.
    try:
        return psutil.Process(pid).ppid()
    except psutil.NoSuchProcess:
        return None
    except (psutil.Error, OSError) as err:
        raise LookFailed(f"process {pid}", str(err)) from err


def session_of(pid: int) -> int | None:
    if sys.platform == "win32" or signalable_pid(pid) is None:
        return None
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def all_pids() -> list[int]:
    # pid 0 is the kernel's; no signal can name it.
    try:
        return sorted(pid for pid in psutil.pids() if pid > 0)
    except (psutil.Error, OSError) as err:
        raise LookFailed("processes", str(err)) from err


def children_of(pid: int) -> list[int]:
    return [other for other in all_pids() if _parent_or_none(other) == pid]


def _parent_or_none(pid: int) -> int | None:
    try:
        return parent_of(pid)
    except LookFailed:
        return None


def group_members(pgid: int) -> list[int]:
    return [pid for pid in all_pids() if posix.group_of(pid) == pgid]


def glance(pid: int) -> tuple[int | None, bytes]:
    return None, environ_state(_procargs2(pid))[1][:_GLANCE_BYTES]


def command_line(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        words = process.cmdline() or [f"[{process.name()}]"]
    except (psutil.Error, OSError):
        return ""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in " ".join(words))


def is_zombie(pid: int) -> bool:
    try:
        if signalable_pid(pid) is None:
            return False
        info = _bsdinfo(pid)
    except (LookFailed, TypeError):
        return False
    return info is not None and info.status == _SZOMB


def own_environ() -> bytes | None:
    state, block = environ_state(_procargs2(os.getpid()))
    return block if state is EnvironState.READABLE else None


def become_subreaper() -> bool:
    """Say no: orphans always fall to launchd here."""
    return False
