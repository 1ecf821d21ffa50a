"""What other programs and the kernel print, as values: bytes and text in, values out.

Nothing here trusts its input: each parser answers *nothing* rather than guess.
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

_PID_LIMIT: Final = 2**32 - 1
_SIGNALABLE_LIMIT: Final = 2**31 - 1


class Stat(NamedTuple):
    """The fields of ``/proc/PID/stat`` we look at. Source: proc_pid_stat(5).

    `env_end` is None where the kernel hides addresses from us; 0 while no new image is in place.
    """

    state: str
    ppid: int
    pgid: int
    session: int
    flags: int
    threads: int
    start_ticks: int
    env_end: int | None


def parse_stat(text: bytes) -> Stat:
    """Read one line of ``/proc/PID/stat``.

    The command may hold spaces, newlines and brackets: fields are counted from the last ``)``.

    Raises:
        ValueError: It is not such a line.
    """
    end = text.rfind(b")")
    fields = text[end + 2 :].split()
    if end < 0 or len(fields) < 20:
        raise ValueError(f"not a line of /proc/PID/stat: {text[:80]!r}")
    # Without ptrace access every address reads as zero, but start_code as 1: then env_end says nothing.
    hidden = len(fields) <= 48 or fields[23] == b"1"
    # In their order: names would cost a third of what the whole line does, and every look reads one.
    return Stat(
        fields[0].decode("ascii", "replace"),
        int(fields[1]),
        int(fields[2]),
        int(fields[3]),
        int(fields[6]),
        int(fields[17]),
        int(fields[19]),
        None if hidden else int(fields[48]),
    )


def signalable_pid(pid: int) -> int | None:
    """Return the pid if a signal could name one process by it: 1 to 2**31-1; else None.

    Zero and negative numbers address groups, or everything.
    """
    if isinstance(pid, bool) or not isinstance(pid, int):
        raise TypeError(f"a pid is an int, not {type(pid).__name__}")
    return pid if 0 < pid <= _SIGNALABLE_LIMIT else None


def parse_lsof_pids(text: str) -> list[int]:
    """Read the pids ``lsof -t`` printed: one a line, ascending and unique; noise and 0 are dropped."""
    return sorted({pid for line in text.splitlines() if (pid := _strict_pid(line.strip()))})


def parse_netstat_listeners(text: str, port: int) -> list[int]:
    """Read the pids that listen on TCP `port` from ``netstat -ano -p TCP``, ascending and unique.

    A line counts only with exactly five fields, TCP, the whole port and the state LISTENING.
    """
    suffix = f":{port}"
    found = set()
    for line in text.splitlines():
        fields = line.split()
        if len(fields) != 5 or fields[0].upper() != "TCP" or fields[3].upper() != "LISTENING":
            continue
        if fields[1].endswith(suffix) and (pid := _strict_pid(fields[4])):
            found.add(pid)
    return sorted(found)


def _strict_pid(text: str) -> int:
    """Return an unsigned decimal, or 0: `int` would also take ``1_000`` and full-width digits."""
    digits = text.removeprefix("+")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 10:
        return 0
    value = int(digits)
    return value if value <= _PID_LIMIT else 0


def environ_from_procargs2(blob: bytes) -> bytes | None:
    """Cut the environment out of what macOS's ``KERN_PROCARGS2`` returns.

    Layout: a native 32-bit argc; the executable's path and NUL padding; argc arguments, counted,
    since they may be empty; the environment. The strings the loader gets (``ptr_munge=``,
    ``executable_path=`` and so on) come after one empty string and are not returned.

    Returns:
        The block, entries separated by NUL, or None when the blob is cut short or malformed.
    """
    if len(blob) < 4:
        return None
    argc = int.from_bytes(blob[:4], sys.byteorder, signed=True)
    path_end = blob.find(b"\0", 4)
    if argc < 0 or path_end < 0:
        return None
    at = path_end
    while at < len(blob) and blob[at] == 0:
        at += 1
    if at == len(blob):
        return None
    for _ in range(argc):
        end = blob.find(b"\0", at)
        if end < 0:
            return None
        at = end + 1
    # An empty string right away: no environment at all, which also is how the system withholds one.
    if blob[at : at + 1] == b"\0":
        return b""
    end = blob.find(b"\0\0", at)
    return blob[at:] if end < 0 else blob[at : end + 1]
