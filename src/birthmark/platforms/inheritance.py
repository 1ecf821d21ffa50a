"""What whoever started this process gave to it, before Python changed any of it."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Container
from contextlib import suppress
from typing import Final

# Python itself ignores these two from its start, so what they were before is not to be known.
_PYTHONS_OWN: Final = frozenset({int(signal.SIGPIPE), int(signal.SIGXFSZ)})


def environ_entries() -> list[bytes]:
    """Return our environment as it was given: in order, and without what Python adds (``LC_CTYPE`` in the C locale).

    An entry without a name and repetitions of a name are left out: getenv(3) finds the first.
    """
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        entries = [name + b"=" + value for name, value in os.environb.items()]
    found: dict[bytes, bytes] = {}
    for entry in entries:
        name, equals, _ = entry.partition(b"=")
        if name and equals:
            found.setdefault(name, entry)
    return list(found.values())


def descriptors() -> list[int]:
    """Return the descriptors that were given to us, ascending: those that the next program would get as well."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        numbers = list(range(64))
    return sorted(fd for fd in numbers if _given(fd))


def _given(fd: int) -> bool:
    # Python opens everything close-on-exec; what came through an exec cannot be.
    try:
        return not fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    except OSError:
        return False


def ignored_signals() -> frozenset[int]:
    """Return the signals we were started with as ignored (``nohup``, a background job of a script)."""
    found = {
        number
        for number in signal.valid_signals()
        if number not in _PYTHONS_OWN and signal.getsignal(number) is signal.SIG_IGN
    }
    return frozenset(int(number) for number in found)


def close_all_but(keep: Container[int]) -> None:
    """Close every descriptor of this process that is not in `keep`, whatever in it still uses the number.

    For a fork that goes another way than its parent: a socket kept open by accident hides an end-of-file.
    """
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in keep:
            with suppress(OSError):  # the listing's own is closed already
                os.close(fd)
