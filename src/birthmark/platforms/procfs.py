"""procfs: what Linux tells about processes. Source: proc(5)."""

from __future__ import annotations

import errno
import os
import sys
from typing import Final

from birthmark.core.identity import EnvironState, HostFacts
from birthmark.core.parsers import Stat, parse_stat, signalable_pid
from birthmark.errors import LookFailed

assert sys.platform == "linux"

# include/linux/sched.h: forked, and no exec yet. Until then the block is the parent's.
_PF_FORKNOEXEC: Final = 0x40
_PF_EXITING: Final = 0x4
_PF_KTHREAD: Final = 0x00200000
# The mark is placed first, so one small read finds it; 32 KiB is what a fresh buffer still gets
# from the heap (128 KiB costs five times as much, since malloc maps new pages each time).
FIRST_READ_BYTES: Final = 32 * 1024
_STAT_BYTES: Final = 1024
# Errors that say something about us, and nothing about the process looked at.
_OURS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def read_stat(pid: int) -> Stat | None:
    """Read ``/proc/PID/stat``; None when there is no such process (or it is hidden)."""
    believe_procfs()
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        require_procfs()
        return None
    except (PermissionError, ProcessLookupError):
        # ESRCH: it was reaped in the middle of the open.
        return None
    except OSError as err:
        raise LookFailed(f"process {pid}", os.strerror(err.errno or 0)) from err
    try:
        return parse_stat(os.read(fd, _STAT_BYTES))
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)


def stat_of(pid: int) -> Stat | None:
    """Return the stat line of `pid` as values, or None when it is gone or hidden."""
    return read_stat(pid) if signalable_pid(pid) is not None else None


def start_ticks_of(pid: int) -> int | None:
    """Return field 22 of ``/proc/PID/stat``: clock ticks since boot. Source: proc_pid_stat(5)."""
    stat = read_stat(pid)
    return None if stat is None else stat.start_ticks


def parent_of(pid: int) -> int | None:
    """Return the parent's pid; 0 for a process whose parent is outside our pid namespace."""
    stat = read_stat(pid)
    return None if stat is None else stat.ppid


def environ_of(pid: int, stat: Stat) -> tuple[EnvironState, bytes]:
    """Read the environment block, given the stat line read just before."""
    if stat.flags & _PF_KTHREAD:
        return EnvironState.DESTROYED, b""
    try:
        block = read_environ(f"/proc/{pid}/environ")
    except PermissionError:
        # To an ordinary user a process without memory is denied like another's: one on its way out,
        # or a leader whose main thread has ended. Root gets ESRCH for these.
        again = read_stat(pid)
        if again is None or again.flags & _PF_EXITING:
            return _environ_of_threads(pid)
        return EnvironState.DENIED, b""
    except FileNotFoundError:
        return EnvironState.HIDDEN, b""
    except ProcessLookupError:
        return _environ_of_threads(pid)
    except OSError:
        return EnvironState.SETTLING, b""
    if stat.flags & _PF_FORKNOEXEC:
        return EnvironState.PARENTS, block
    if b"=" in block:
        return EnvironState.READABLE, block
    # Nothing in it. Either the new image is not in place yet, or it was started so, or wiped.
    # env_end tells: zero as long as there is no image, and the same twice when nothing moves.
    again = read_stat(pid)
    if again is None or stat.env_end is None:
        return EnvironState.SETTLING, b""
    if again.env_end != stat.env_end or stat.env_end == 0:
        return EnvironState.SETTLING, b""
    return EnvironState.DESTROYED, block


def _environ_of_threads(pid: int) -> tuple[EnvironState, bytes]:
    """Read the block through a thread that still has memory; SETTLING when none has: it is on its way out."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return EnvironState.SETTLING, b""
    for thread in threads:
        if thread == str(pid):
            continue
        try:
            block = read_environ(f"/proc/{pid}/task/{thread}/environ")
        except OSError:
            continue
        return (EnvironState.READABLE if b"=" in block else EnvironState.DESTROYED), block
    return EnvironState.SETTLING, b""


def read_environ(path: str) -> bytes:
    """Read an environment block, whole; the errors are the kernel's, and about the process.

    Raises:
        LookFailed: It is us who cannot look: out of descriptors, or of memory.
    """
    # Never kept across an exec: an open descriptor stays bound to the old image.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as err:
        if err.errno in _OURS:
            raise LookFailed("processes", os.strerror(err.errno)) from err
        raise
    try:
        block = os.read(fd, FIRST_READ_BYTES)
        if len(block) < FIRST_READ_BYTES:
            return block
        parts = [block]
        while block := os.read(fd, FIRST_READ_BYTES):
            parts.append(block)
        return b"".join(parts)
    finally:
        os.close(fd)


def own_environ() -> bytes | None:
    """Return our own block as the kernel shows it to others; None when it does not."""
    try:
        return read_environ("/proc/self/environ")
    except OSError:
        return None


_facts: tuple[int, HostFacts] | None = None


def facts() -> HostFacts:
    """Return host, boot and pid namespace; see `ProcessControl.facts`."""
    global _facts
    me = os.getpid()
    # A fork after unshare(CLONE_NEWPID) is in another namespace than its parent.
    if _facts is None or _facts[0] != me:
        require_procfs()
        try:
            namespace = os.stat("/proc/self/ns/pid").st_ino
            boot = _first_line("/proc/sys/kernel/random/boot_id")
        except OSError as err:
            raise LookFailed("this host", f"{err.filename}: {os.strerror(err.errno or 0)}") from err
        _facts = (me, HostFacts(_host_id(), boot, namespace))
    return _facts[1]


def _host_id() -> str:
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            if line := _first_line(path):
                return line
        except OSError:
            continue
    # A container image may have none; the boot id still tells hosts apart while they run.
    return os.uname().nodename


def _first_line(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.readline().strip()


_believed_by: int | None = None


def believe_procfs() -> None:
    """Check once that numbers in procfs mean what they mean to us; anew after a fork, which may enter a namespace.

    Raises:
        LookFailed: See `require_procfs`.
    """
    global _believed_by
    me = os.getpid()
    if _believed_by != me:
        require_procfs()
        _believed_by = me


def share_facts_with_parent() -> None:
    """Take what our parent found out about host and procfs as ours; for a fork that entered no namespace."""
    global _facts, _believed_by
    if _facts is not None:
        _facts = (os.getpid(), _facts[1])
        _believed_by = os.getpid()


def require_procfs() -> None:
    """Refuse to read numbers out of a procfs that is missing, or that shows another pid namespace.

    Raises:
        LookFailed: ``/proc/self`` is not us.
    """
    try:
        shown = os.readlink("/proc/self")
    except OSError as err:
        raise LookFailed("processes", "there is no procfs on /proc") from err
    if shown != str(os.getpid()):
        raise LookFailed("processes", "/proc shows another pid namespace; mount one of our own")


def all_pids() -> list[int]:
    """Return every pid procfs shows us, ascending."""
    require_procfs()
    try:
        names = os.listdir("/proc")
    except OSError as err:
        raise LookFailed("processes", f"/proc: {os.strerror(err.errno or 0)}") from err
    return sorted(int(name) for name in names if name.isdigit())


def children_of(pid: int) -> list[int]:
    """Return the direct children of `pid`, zombies included; every thread's children count."""
    believe_procfs()
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        require_procfs()
        return found
    except PermissionError:
        return _children_by_stat(pid)
    except OSError as err:
        raise LookFailed(f"process {pid}", os.strerror(err.errno or 0)) from err
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.extend(int(child) for child in file.read().split())
        except FileNotFoundError:
            # Without CONFIG_PROC_CHILDREN the kernel lists none; a thread that just ended has none.
            if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
                return _children_by_stat(pid)
        except (ProcessLookupError, PermissionError):
            continue
        except OSError as err:
            raise LookFailed(f"process {pid}", os.strerror(err.errno or 0)) from err
    return found


def _children_by_stat(pid: int) -> list[int]:
    return [child for child in all_pids() if parent_of(child) == pid]


def is_zombie(pid: int) -> bool:
    """Say whether the process has exited and was not reaped. A leader whose threads go on has not exited."""
    try:
        stat = stat_of(pid)
    except (LookFailed, TypeError):
        return False
    return stat is not None and stat.state == "Z" and stat.threads <= 1


def command_line(pid: int) -> str:
    """Return the command line for people: arguments joined by spaces, control characters escaped."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            raw = file.read(4096)
        if not raw:
            with open(f"/proc/{pid}/comm", "rb") as file:
                raw = b"[" + file.read(64).strip() + b"]"
    except OSError:
        return ""
    words = raw.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in words)
