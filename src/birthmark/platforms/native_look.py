"""The native look: a thin door to `birthmark._native.spawn.look`, where that is built and not turned off."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache

Seen = tuple[int, int, int, int, int, str, int, bytes, int | None]
"""start_ticks, inode, ppid, pgid, session, state, threads, environ, tag."""

Look = Callable[[int, int], Seen | None]
"""(pid, its pidfd) to what was seen; None for anything but a running process with a readable environment of its own."""


@lru_cache(maxsize=1)
def native_look() -> Look | None:
    """Return the native look, or None; BIRTHMARK_NATIVE=0 in our environment turns it off, as it does launches.

    It gives the GIL away once, where the same calls from Python do so ten times: in a host whose other threads are busy
    that is the difference between one time slice and ten.
    """
    if os.environ.get("BIRTHMARK_NATIVE") == "0":
        return None
    try:
        from birthmark._native.spawn import look
    except ImportError:
        return None
    return look
