"""Windows: a held process handle is the pidfd, a job object is the group, psutil is the process table.

An identity is a pid and its creation time in units of 100 ns (`start_ticks`). A handle keeps the number from
being given away, so a pin is exact. There is no zombie, no group and no signal: whatever asks to leave ends
the process at once, through the held handle. `os.kill` is never called: there, signal 0 is a Ctrl-C.

Type-checked, and its pure parts tested with stubs; not executed on Windows by us.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psutil

from birthmark.core.identity import EnvironState, HostFacts, Sighting
from birthmark.core.lineage import Born, descendants
from birthmark.core.markers import entry
from birthmark.core.outcomes import Basis, Delivery, ExitStatus, Scope, SignalRecord, Warrant, signal_name
from birthmark.core.parsers import signalable_pid
from birthmark.errors import (
    LookFailed,
    NotPermitted,
    NotSignalable,
    ProcessGone,
    SignalFailed,
    SupervisionError,
)
from birthmark.platforms import contract, winapi
from birthmark.platforms.contract import Capabilities, Pinned

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
    "hold_in_job",
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

_SYSTEM_PID: Final = 4
_ENDED_BY_US: Final = 1
"""The exit code of what we end; Windows has no other way to say so."""

_ENDS: Final = frozenset(
    int(getattr(signal, name, number)) for name, number in (("SIGTERM", 15), ("SIGKILL", 9), ("SIGINT", 2))
)

_jobs: dict[tuple[int, int], int] = {}
"""The job each process was placed in by `hold_in_job`, by pid and creation time."""


class Held(Pinned):
    """One process by an open handle, which keeps its number from being given away."""

    __slots__ = ("handle",)

    def __init__(self, pid: int, handle: int, start_ticks: int) -> None:
        super().__init__(pid, None, start_ticks)
        self.handle = handle

    def __enter__(self) -> Held:
        return self

    def close(self) -> None:
        handle, self.handle = self.handle, 0
        if handle:
            winapi.kernel32().CloseHandle(handle)


def _open(pid: int) -> int:
    """Open a handle to `pid`, with the right to end it where that is granted.

    Raises:
        ProcessGone, LookFailed: See `ProcessControl.pin`.
    """
    api = winapi.kernel32()
    looking = winapi.PROCESS_QUERY_LIMITED_INFORMATION | winapi.SYNCHRONIZE
    error = 0
    for rights in (looking | winapi.PROCESS_TERMINATE | winapi.PROCESS_SET_QUOTA, looking):
        if handle := api.OpenProcess(rights, False, pid):
            return int(handle)
        error = winapi.last_error()
        if error != winapi.ERROR_ACCESS_DENIED:
            break
    if error == winapi.ERROR_INVALID_PARAMETER:
        raise ProcessGone(pid)
    raise LookFailed(f"process {pid}", f"Windows error {error}")


def _created(handle: int) -> int:
    created, ended, kernel, user = (ctypes.c_uint64() for _ in range(4))
    done = winapi.kernel32().GetProcessTimes(
        handle, ctypes.byref(created), ctypes.byref(ended), ctypes.byref(kernel), ctypes.byref(user)
    )
    if not done:
        raise LookFailed("a process", f"Windows error {winapi.last_error()}")
    return int(created.value)


def _ended(handle: int) -> bool:
    return bool(winapi.kernel32().WaitForSingleObject(handle, 0) == winapi.WAIT_OBJECT_0)


def capabilities() -> Capabilities:
    return Capabilities(
        platform="win32",
        pidfd=False,
        pidfs_inode=False,
        group_signal=False,
        environ=True,
        tag=False,
        parent_death=False,
        subreaper=False,
        sock_diag=False,
        native_spawner=False,
        notes=(
            "Windows has no signals: whatever asks a process to leave ends it at once",
            "a tree is reached as a whole only where it was born in a job of ours",
        ),
    )


def facts() -> HostFacts:
    if sys.platform != "win32":
        raise LookFailed("this host", "it is not Windows")
    import winreg

    return HostFacts(
        str(_registered(winreg.HKEY_LOCAL_MACHINE, r"SOFTWARE\Microsoft\Cryptography", "MachineGuid")),
        str(
            _registered(
                winreg.HKEY_LOCAL_MACHINE,
                r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters",
                "BootId",
            )
        ),
        0,
    )


def _registered(root: int, path: str, name: str) -> object:
    if sys.platform != "win32":
        raise LookFailed("this host", "it is not Windows")
    import winreg

    try:
        with winreg.OpenKey(root, path) as key:
            return winreg.QueryValueEx(key, name)[0]
    except OSError as err:
        raise LookFailed("this host", f"{path}\\{name}: {err.strerror}") from err


def pin(pid: int) -> Held:
    if signalable_pid(pid) is None:
        raise ValueError(f"{pid} is no pid: 1 to 2**31-1 are")
    handle = _open(pid)
    try:
        held = Held(pid, handle, _created(handle))
    except LookFailed:
        winapi.kernel32().CloseHandle(handle)
        raise
    if _ended(handle):
        # Somebody's handle keeps the number, and nothing runs under it.
        held.close()
        raise ProcessGone(pid)
    return held


hold = pin


def adopt_pidfd(pid: int, fd: int) -> Held:
    """Take over a process handle from a spawn; `fd` is the handle."""
    return Held(pid, fd, _created(fd))


def _held(pinned: Pinned) -> Held:
    if not isinstance(pinned, Held) or not pinned.handle:
        raise ValueError(f"{pinned!r} holds no handle")
    return pinned


def observe(pinned: Pinned, *, environ: bool = True) -> Sighting | None:
    held = _held(pinned)
    here = facts()
    if _ended(held.handle):
        return None
    state, block = _environ(held.pid) if environ else (EnvironState.UNSUPPORTED, b"")
    ppid = parent_of(held.pid) or 0
    # The open handle keeps the number, so what was read by it is about this process while it runs.
    if _ended(held.handle):
        return None
    return Sighting(
        facts=here,
        pid=held.pid,
        start_ticks=held.start_ticks,
        inode=None,
        exited=False,
        ppid=ppid,
        pgid=0,
        session=0,
        state="R",
        threads=1,
        environ_state=state,
        environ=block,
        tag=None,
    )


def _environ(pid: int) -> tuple[EnvironState, bytes]:
    """Read the environment as psutil shows it: empty says nothing about a mark."""
    try:
        found = psutil.Process(pid).environ()
    except psutil.AccessDenied:
        return EnvironState.DENIED, b""
    except (psutil.Error, OSError):
        return EnvironState.UNSUPPORTED, b""
    if not found:
        return EnvironState.UNSUPPORTED, b""
    return EnvironState.READABLE, b"".join(entry(name, value) + b"\0" for name, value in found.items())


def exited(pinned: Pinned) -> bool:
    return _ended(_held(pinned).handle)


def exit_fd(pinned: Pinned) -> int | None:
    """Return None: a handle is no descriptor; poll `exited`."""
    return None


def start_ticks_of(pid: int) -> int | None:
    """Return its creation time in units of 100 ns since 1601."""
    try:
        with pin(pid) as held:
            return held.start_ticks
    except ProcessGone:
        return None


def parent_of(pid: int) -> int | None:
    """Return the number its parent had at its birth; whether that is still its parent, its age says."""
    try:
        return psutil.Process(pid).ppid()
    except psutil.NoSuchProcess:
        return None
    except (psutil.Error, OSError) as err:
        raise LookFailed(f"process {pid}", str(err)) from err


def group_of(pid: int) -> int | None:
    return None


def session_of(pid: int) -> int | None:
    return None


def all_pids() -> list[int]:
    try:
        return sorted(pid for pid in psutil.pids() if pid > 0)
    except (psutil.Error, OSError) as err:
        raise LookFailed("processes", str(err)) from err


def table() -> list[Born]:
    """Return the process table as rows; what ended or is hidden while we look is left out."""
    rows = []
    for pid in all_pids():
        try:
            ppid, born = parent_of(pid), start_ticks_of(pid)
        except LookFailed:
            continue
        if ppid is not None and born is not None:
            rows.append(Born(pid, ppid, born))
    return rows


def children_of(pid: int) -> list[int]:
    born = start_ticks_of(pid)
    if born is None:
        return []
    rows = [row for row in table() if row.ppid == pid]
    return [row.pid for row in descendants(Born(pid, 0, born), rows)]


def group_members(pgid: int) -> list[int]:
    """Return the process and what descends from it: the nearest thing to a group here."""
    born = start_ticks_of(pgid)
    if born is None:
        return []
    return [pgid, *(row.pid for row in descendants(Born(pgid, 0, born), table()))]


def group_lives(leader: Pinned) -> bool:
    return not exited(leader)


def glance(pid: int) -> tuple[int | None, bytes]:
    return None, _environ(pid)[1]


def command_line(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        words = process.cmdline() or [f"[{process.name()}]"]
    except (psutil.Error, OSError):
        return ""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in " ".join(words))


def is_zombie(pid: int) -> bool:
    return False


def is_our_child(pid: int) -> bool:
    try:
        mine, its = start_ticks_of(os.getpid()), start_ticks_of(pid)
        return mine is not None and its is not None and its >= mine and parent_of(pid) == os.getpid()
    except (LookFailed, ValueError):
        return False


def reap(pid: int) -> ExitStatus | None:
    """Return None while it runs; afterwards its status is unknown here: it was with the handle of its birth."""
    return None if start_ticks_of(pid) is not None else ExitStatus()


def own_environ() -> bytes | None:
    """Return None: what we show to others is not what we were started with."""
    return None


def become_subreaper() -> bool:
    """Say no: an orphan falls to nobody here."""
    return False


def hold_in_job(held: Held) -> bool:
    """Place a process, best before its first instruction, in a job that ends with us. Descendants are born in it.

    Returns:
        False when an outer job, or the system, does not allow it.
    """
    api = winapi.kernel32()
    job = api.CreateJobObjectW(None, None)
    if not job:
        return False
    limits = winapi.JobLimits()
    # No break-away of any kind: a grandchild could leave silently.
    limits.basic.limit_flags = winapi.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
    size = ctypes.sizeof(limits)
    what = winapi.JOB_OBJECT_EXTENDED_LIMIT_INFORMATION
    if not api.SetInformationJobObject(job, what, ctypes.byref(limits), size) or not (
        api.AssignProcessToJobObject(job, held.handle)
    ):
        api.CloseHandle(job)
        return False
    _jobs[held.pid, held.start_ticks] = int(job)
    return True


def deliver(target: Pinned, sig: int, warrant: Warrant, *, group: bool = False) -> Delivery:
    """End a process through its held handle; with `group`, its job, or without one its tree as it is now.

    Signal 0 asks whether it runs. See `ProcessControl.deliver`.
    """
    held = _held(target)
    refusal = _refusal(held, warrant)
    if refusal is not None:
        _record(held, sig, warrant, group, Delivery.REFUSED, refusal)
        raise NotSignalable(held.pid, refusal)
    if sig != 0 and sig not in _ENDS:
        _record(held, sig, warrant, group, Delivery.REFUSED, "Windows has no such signal")
        raise SignalFailed(held.pid, signal_name(sig), 22)
    api = winapi.kernel32()
    code = ctypes.c_uint32(_ENDED_BY_US)
    job = _jobs.get((held.pid, held.start_ticks)) if group else None
    if sig == 0:
        result = Delivery.GONE if _ended(held.handle) else Delivery.SENT
    elif job is not None:
        done = api.TerminateJobObject(ctypes.c_void_p(job), code)
        result = Delivery.SENT if done else Delivery.NOT_PERMITTED
    else:
        # Every handle is opened, and its age compared, before the first is ended: a number that has
        # changed hands since the table was read is let go.
        with _tree(held, whole=group) as members:
            result = Delivery.GONE
            for member in members:
                if _ended(member.handle):
                    continue
                if api.TerminateProcess(ctypes.c_void_p(member.handle), code) or _ended(member.handle):
                    result = Delivery.SENT
                elif result is Delivery.GONE:
                    result = Delivery.NOT_PERMITTED
    _record(held, sig, warrant, group, result)
    if result is Delivery.NOT_PERMITTED:
        raise NotPermitted(held.pid, f"send {signal_name(sig)} to")
    return result


@contextmanager
def _tree(leader: Held, *, whole: bool) -> Iterator[list[Held]]:
    """Hold the leader and, if `whole`, what descends from it now; parents before children."""
    opened: list[Held] = []
    try:
        for row in descendants(Born(leader.pid, 0, leader.start_ticks), table()) if whole else ():
            try:
                member = pin(row.pid)
            except SupervisionError:
                continue
            opened.append(member)
            if member.start_ticks != row.born:
                # Somebody else has the number since the table was read.
                opened.pop().close()
        yield [leader, *opened]
    finally:
        for each in opened:
            each.close()


def _refusal(target: Held, warrant: Warrant) -> str | None:
    """Return the rule that forbids it, or None."""
    pid = target.pid
    if pid == os.getpid():
        return "it is ourselves"
    if pid == _SYSTEM_PID:
        return "it is the system's own process"
    if pid in _ancestors():
        return "it is an ancestor of ours"
    if not warrant.covers(pid):
        return "it is not proven ours" if warrant.proof is None else f"it is not proven ours: {warrant.proof}"
    if warrant.basis is Basis.CHILD and not is_our_child(pid):
        return "it is not our child"
    if warrant.basis is Basis.DESCENT and parent_of(pid) != warrant.parent:
        return "its parent is not the one it was found under"
    return None


def _ancestors() -> set[int]:
    """Return our living ancestors. A parent's number that a younger process has now is no ancestor."""
    chain: set[int] = set()
    pid = os.getpid()
    born = start_ticks_of(pid)
    while born is not None:
        parent = parent_of(pid)
        if not parent or parent in chain:
            break
        try:
            before = start_ticks_of(parent)
        except LookFailed:
            # Not ours to look at: spared, rather than ended on a guess.
            chain.add(parent)
            break
        if before is None or before > born:
            break
        chain.add(parent)
        pid, born = parent, before
    return chain


def _record(
    target: Held, sig: int, warrant: Warrant, group: bool, result: Delivery, detail: str = ""
) -> None:
    record = SignalRecord(
        pid=target.pid,
        signal=sig,
        scope=Scope.GROUP if group else Scope.PROCESS,
        basis=warrant.basis,
        asked_by=warrant.asked_by,
        result=result,
        detail=detail,
    )
    for sink in contract.sinks():
        sink(record)
