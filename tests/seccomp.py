"""Take pidfds away from this process and all its children, the way old kernels and container filters do."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Final

_LOAD, _EQUAL, _ANY, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_PIDFD_SEND_SIGNAL, _PIDFD_OPEN, _CLONE3 = 424, 434, 435
_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_CLONE_PIDFD: Final = 0x1000


def forbid_pidfds(error: int = errno.ENOSYS) -> None:
    """Install a filter under which no pidfd can be had; `error` is what pidfd_open then gives. For good.

    Source: seccomp(2), PR_SET_SECCOMP in prctl(2).
    """
    rules = [(_LOAD, 0, 0, 0)]
    for number in (_PIDFD_OPEN, _PIDFD_SEND_SIGNAL):
        rules += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error)]
    rules += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    rules += [(_EQUAL, 0, 3, _CLONE[os.uname().machine]), (_LOAD, 0, 0, 16)]
    rules += [(_ANY, 0, 1, _CLONE_PIDFD), (_RETURN, 0, 0, _ERRNO | errno.EINVAL), (_RETURN, 0, 0, _ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = struct.pack("HL", len(rules), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the filter could not be installed")
