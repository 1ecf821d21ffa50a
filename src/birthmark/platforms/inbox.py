"""Signals as messages: who sent them and how, read from a descriptor instead of running a handler.

Platform: Linux. Source: signalfd(2).
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

# ssi_signo, ssi_errno, ssi_code, ssi_pid, ssi_uid; the rest of the 128 bytes is for other kinds of signal.
_INFO: Final = struct.Struct("@IiiII")
_INFO_BYTES: Final = 128
_SIGSET_BYTES: Final = 128


class Arrived(NamedTuple):
    """One signal that was sent to us."""

    number: int
    sender: int | None
    """The pid that called kill(2), which may be gone by now; None when it came from the kernel."""


class Inbox:
    """A descriptor (`fd`) that becomes readable when one of the signals has come.

    They stay blocked in this process from here on, so none of them interrupts anything. Owns the descriptor.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        """Block the signals and open the inbox.

        Raises:
            OSError: The kernel has no signalfd, or we have no descriptor left.
        """
        numbers = tuple(numbers)
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        mask = ctypes.create_string_buffer(_SIGSET_BYTES)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.sigemptyset(mask)
        for number in numbers:
            libc.sigaddset(mask, number)
        self.fd: int = libc.signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def take(self) -> list[Arrived]:
        """Return what has come since the last time, oldest first; never blocks."""
        try:
            raw = os.read(self.fd, _INFO_BYTES * 32)
        except BlockingIOError:
            return []
        found = []
        for offset in range(0, len(raw), _INFO_BYTES):
            number, _, code, sender, _ = _INFO.unpack_from(raw, offset)
            # kill, sigqueue and tgkill have codes of zero and below; everything else is the kernel's.
            found.append(Arrived(number, sender if code <= 0 else None))
        return found

    def close(self) -> None:
        """Close the descriptor; the signals stay blocked."""
        os.close(self.fd)
