"""Reading what a configuration refers to: regular files only, bounded in size, never waiting."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class Unreadable(Exception):
    """A file that cannot be read; the message says why, in words."""


class NoSuchFile(Unreadable):
    """There is none."""


class IsFolder(Unreadable):
    """It is a folder."""


def read_regular(path: Path, limit_bytes: int) -> bytes:
    """Return a file's content.

    Raises:
        Unreadable: It is missing, closed to us, no regular file, or longer than `limit_bytes`.
    """
    try:
        # A FIFO without a writer would hold us at open; a project's file may name one.
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISDIR(mode):
                raise IsFolder("it is a folder")
            if not stat.S_ISREG(mode):
                raise Unreadable("it is no regular file")
            with open(fd, "rb", closefd=False) as file:
                raw = file.read(limit_bytes + 1)
        finally:
            os.close(fd)
    except FileNotFoundError as err:
        raise NoSuchFile(err.strerror or str(err)) from None
    except OSError as err:
        raise Unreadable(err.strerror or str(err)) from None
    except ValueError:
        raise Unreadable("its name holds a NUL") from None
    if len(raw) > limit_bytes:
        raise Unreadable(f"it is longer than {limit_bytes // 2**20} MiB")
    return raw
