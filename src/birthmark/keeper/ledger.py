"""Which child is whose, known to the nursery also after a keeper was killed: one number a keeper, in shared memory."""

from __future__ import annotations

import os
import struct
import sys
from typing import Final

assert sys.platform == "linux"

_PID: Final = struct.Struct("=q")


class Ledger:
    """One slot: the pid of a keeper's child, zero before it is there and after it was reaped.

    Written by the keeper, read by the nursery once the keeper is gone. A memory file, since a message could be
    lost with the keeper, and a socket would be one more thing to read.
    """

    def __init__(self, fd: int, slot: int) -> None:
        """Use slot number `slot` of the book `fd`, which stays its owner's."""
        self.fd = fd
        self.slot = slot

    def write(self, pid: int) -> None:
        """Put the number in."""
        os.pwrite(self.fd, _PID.pack(pid), self.slot * _PID.size)

    def read(self) -> int:
        """Return the number; zero where none was put in."""
        raw = os.pread(self.fd, _PID.size, self.slot * _PID.size)
        return int(_PID.unpack(raw)[0]) if len(raw) == _PID.size else 0


class Book:
    """All slots of one nursery. Owns the memory file."""

    def __init__(self) -> None:
        """Open an empty one."""
        self.fd = os.memfd_create("birthmark-ledger", os.MFD_CLOEXEC)
        self._free: list[int] = []
        self._used = 0

    def open(self) -> Ledger:
        """Return an empty slot."""
        if self._free:
            slot = self._free.pop()
        else:
            slot, self._used = self._used, self._used + 1
        ledger = Ledger(self.fd, slot)
        ledger.write(0)
        return ledger

    def close(self, ledger: Ledger) -> None:
        """Give a slot back; its keeper is gone."""
        self._free.append(ledger.slot)
