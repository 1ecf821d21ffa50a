"""The native path: a thin door to `birthmark._native.spawn`. Importing it fails where that is not built."""

from __future__ import annotations

from birthmark._native.spawn import launch as _launch
from birthmark.platforms.launch import Born, Launch, LaunchFailed, end_unclaimed


def launch(request: Launch) -> Born:
    """Start the program from the native thread; see `birthmark.platforms.launch.launch`.

    The GIL is kept for the first 50 ms of the wait, so that a busy host does not delay it, and given away
    then: the exec may wait for a file system that this very process serves.

    Platform: Linux.
    """
    claimed: list[Born] = []
    try:
        failed = _launch(
            request.path,
            list(request.argv),
            list(request.env),
            request.cwd,
            list(request.descriptors),
            request.parent_death,
            request.session,
            request.umask,
            request.uid,
            request.gid,
            None if request.groups is None else list(request.groups),
            list(request.limits),
            claimed,
        )
        if failed is not None:
            raise LaunchFailed(*failed)
        # No call between here and the caller's assignment: CPython looks for signals at calls only, so an
        # exception from a handler comes before this line, and is seen below, or after the caller has both.
        return claimed[0]
    except BaseException:
        for pid, pidfd in claimed:
            end_unclaimed(pid, pidfd)
        raise
