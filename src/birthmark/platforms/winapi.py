"""The few calls of kernel32 that are made, with their types; loaded when first needed."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import Final

from birthmark.errors import Unsupported

PROCESS_TERMINATE: Final = 0x0001
PROCESS_SET_QUOTA: Final = 0x0100
PROCESS_QUERY_LIMITED_INFORMATION: Final = 0x1000
SYNCHRONIZE: Final = 0x00100000

ERROR_ACCESS_DENIED: Final = 5
ERROR_INVALID_PARAMETER: Final = 87
WAIT_OBJECT_0: Final = 0
JOB_OBJECT_EXTENDED_LIMIT_INFORMATION: Final = 9
JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE: Final = 0x2000


class _BasicLimits(ctypes.Structure):
    _fields_ = (
        ("per_process_user_time", ctypes.c_int64),
        ("per_job_user_time", ctypes.c_int64),
        ("limit_flags", ctypes.c_uint32),
        ("minimum_working_set", ctypes.c_size_t),
        ("maximum_working_set", ctypes.c_size_t),
        ("active_processes", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t),
        ("priority_class", ctypes.c_uint32),
        ("scheduling_class", ctypes.c_uint32),
    )


class JobLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = (
        ("basic", _BasicLimits),
        ("io_counters", ctypes.c_uint64 * 6),
        ("process_memory", ctypes.c_size_t),
        ("job_memory", ctypes.c_size_t),
        ("peak_process_memory", ctypes.c_size_t),
        ("peak_job_memory", ctypes.c_size_t),
    )


@lru_cache(maxsize=1)
def kernel32() -> ctypes.CDLL:
    """Return kernel32 with the types of what we call.

    Raises:
        Unsupported: This is not Windows.
    """
    if sys.platform != "win32":
        raise Unsupported("kernel32", sys.platform)
    library = ctypes.WinDLL("kernel32", use_last_error=True)
    handle, number, boolean = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int
    time = ctypes.POINTER(ctypes.c_uint64)
    # Without these a handle is cut to 32 bits.
    library.OpenProcess.restype, library.OpenProcess.argtypes = handle, (number, boolean, number)
    library.CloseHandle.restype, library.CloseHandle.argtypes = boolean, (handle,)
    library.WaitForSingleObject.restype = number
    library.WaitForSingleObject.argtypes = (handle, number)
    library.GetProcessTimes.restype, library.GetProcessTimes.argtypes = (
        boolean,
        (handle, time, time, time, time),
    )
    library.GetExitCodeProcess.restype = boolean
    library.GetExitCodeProcess.argtypes = (handle, ctypes.POINTER(number))
    library.CreateJobObjectW.restype, library.CreateJobObjectW.argtypes = handle, (handle, ctypes.c_wchar_p)
    library.SetInformationJobObject.restype = boolean
    library.SetInformationJobObject.argtypes = (handle, boolean, ctypes.c_void_p, number)
    library.AssignProcessToJobObject.restype = boolean
    library.AssignProcessToJobObject.argtypes = (handle, handle)
    return library


def last_error() -> int:
    """Return the error of the last call on this thread."""
    if sys.platform != "win32":
        return 0
    return ctypes.get_last_error()
