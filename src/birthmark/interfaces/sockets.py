"""The control socket: where it is, how it is reached, and who is at its other end."""

from __future__ import annotations

import _socket
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from birthmark.errors import InstallationBroken

# sockaddr_un holds 108 bytes on Linux and 104 elsewhere, the closing NUL among them.
_PATH_BYTES: Final = 107 if sys.platform == "linux" else 103
_UCRED: Final = struct.Struct("3i")


def control_socket(home: Path) -> Path:
    """Return the path of the control socket of the installation in `home`."""
    return home / "run" / "control.sock"


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """Yield an address by which the socket at `path` can be bound or reached while the context lasts.

    A path longer than a socket address is reached through a descriptor of its folder.

    Raises:
        InstallationBroken: It is too long, and this system has no such detour.
        OSError: Its folder cannot be opened.
    """
    if len(os.fsencode(path)) <= _PATH_BYTES:
        yield str(path)
        return
    if sys.platform != "linux":
        raise InstallationBroken(
            str(path), f"longer than {_PATH_BYTES} bytes; set BIRTHMARK_HOME to a shorter path"
        )
    # Not chdir: the working directory belongs to the whole process.
    folder_fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder_fd}/{path.name}"
    finally:
        os.close(folder_fd)


def peer_uid(connection: _socket.socket) -> int | None:
    """Return the uid of the process at the other end; None where the system does not tell.

    Source: unix(7), SO_PEERCRED: the credentials at the time of connect.
    """
    if sys.platform != "linux":
        return None
    raw = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _UCRED.size)
    uid: int = _UCRED.unpack(raw)[1]
    return uid
