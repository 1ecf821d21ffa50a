"""The client: whoever started us, and the end of what it writes to us."""

from __future__ import annotations

import os
import select
from contextlib import suppress

from birthmark.errors import LookFailed, ProcessGone
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned


class ClientGone(Exception):
    """The client died while we were starting."""


def hold_client() -> Pinned | None:
    """Take hold of our parent, whoever that is; None when it is in another pid namespace or cannot be held.

    A parent that was gone before we looked was replaced by init or a subreaper, which nobody can tell from a
    client; that one is held then, and seldom ends before us.

    Raises:
        ClientGone: It ended while we took hold of it.
    """
    parent = os.getppid()
    if parent == 0:
        return None
    try:
        pinned = load().pin(parent)
    except ProcessGone:
        raise ClientGone from None
    except LookFailed:
        return None
    # Asked again with the process held: had it died before it was pinned, we would have another parent now.
    if os.getppid() != parent:
        pinned.close()
        raise ClientGone
    return pinned


def client_is_gone(client: Pinned) -> bool:
    """Say whether the client has ended; needed only where it has no descriptor to wait on."""
    return os.getppid() != client.pid or load().exited(client)


def hangs_up(fd: int) -> bool:
    """Say whether `fd` is something that can hang up: not a file, and not /dev/null."""
    with suppress(OSError):
        kind = os.fstat(fd).st_mode & 0o170000
        return kind in (0o010000, 0o140000) or os.isatty(fd)  # a pipe, a socket, a terminal
    return False


HANG_UP = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
"""What ends an input. A half-closed socket pair gives only the last. Nothing is read to find out."""
