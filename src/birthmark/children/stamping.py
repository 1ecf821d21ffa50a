"""Stamp the API server: give this very process the mark, in place."""

from __future__ import annotations

import os
import sys

from birthmark.core.markers import (
    ChildKind,
    environ_has_entries,
    environ_identifies_api_server,
    mark_entries,
    scrub,
)
from birthmark.core.outcomes import ApiServerStamp
from birthmark.core.service import InstallationId, api_server_service
from birthmark.platforms import load


def stamp_api_server(installation: InstallationId | None = None) -> ApiServerStamp:
    """Replace this process's image once, with the API server's mark in its environment.

    The pid stays, and so do the interpreter, its flags and the arguments, so a service manager
    sees nothing. Call it first of all: threads, sockets and open files would be lost or leak.
    It never loops: the replaced image finds the mark and returns.

    Args:
        installation: None means this user's.

    Returns:
        STAMPED when this process carries the mark. UNVERIFIABLE where nobody could read it, in
        which case nothing was replaced.

    Raises:
        OSError: The image could not be replaced; this process goes on unstamped.
        InstallationBroken: This user's state folder cannot be used.

    Platform: Linux, macOS. Elsewhere always UNVERIFIABLE.
    """
    name = api_server_service()
    block = load().own_environ()
    if block is None or not environ_has_entries(block):
        return ApiServerStamp.UNVERIFIABLE
    if installation is None:
        from birthmark.children.installation import open_installation

        installation = open_installation().id
    marks = mark_entries(kind=ChildKind.API, service=name, installation=installation, birth=None)
    wanted = [os.fsencode(f"{key}={value}") for key, value in marks.items()]
    entries = block.split(b"\0")
    if environ_identifies_api_server(block, name) and all(item in entries for item in wanted):
        return ApiServerStamp.STAMPED
    environment = {**marks, **scrub(dict(os.environ))}
    # Configuration that is ours (a state folder, a switch) is no mark: the new image needs it.
    for key in ("BIRTHMARK_HOME", "BIRTHMARK_CONFIG", "BIRTHMARK_NATIVE", "BIRTHMARK_DEBUG"):
        if key in os.environ:
            environment[key] = os.environ[key]
    arguments = [sys.orig_argv[0] or sys.executable, *sys.orig_argv[1:]]
    for stream in (sys.stdout, sys.stderr):
        # None where the descriptor was closed when we were started.
        if stream is not None:
            stream.flush()
    os.execve(sys.executable, arguments, environment)


def identity_verification_supported() -> bool:
    """Say whether this platform can tell who another process is: Linux and macOS can."""
    return sys.platform in ("linux", "darwin")


def is_zombie(pid: int) -> bool:
    """Say whether the process has exited and was not reaped. False on every failure; nothing is reaped."""
    return load().is_zombie(pid)
