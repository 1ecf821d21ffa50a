"""A file's new content, all of it or none, with the old one kept beside it."""

from __future__ import annotations

import errno
import os
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from birthmark.config.files import Unreadable, read_regular
from birthmark.errors import NotReplaced

LIMIT_BYTES: Final = 16 * 2**20
_SAME_SECOND: Final = 100
"""Backups of one file that one second may bring."""

_NO_ATTRIBUTES: Final = frozenset({errno.ENOTSUP, errno.EPERM, errno.ENODATA, errno.EINVAL})
"""What a file system says that keeps none, or keeps some to itself."""


def replace_content(path: Path, before: bytes, after: bytes, *, at: datetime | None = None) -> Path:
    """Give a file new content, if it still has the old one; returns the backup, which has the old one.

    A link is followed: the file it leads to gets the content, and the backup lies beside that. Mode, owner and group stay.
    A reader sees the old file or the new one, never a part.

    Args:
        path: The file.
        before: What it holds, as it was read.
        after: What it shall hold.
        at: The time in the backup's name; None: now.

    Raises:
        NotReplaced: It was changed meanwhile, has a second name, belongs to somebody else, or cannot be written.
            It is as it was, and there is no backup.
    """
    target = path.resolve()
    made: list[Path] = []
    try:
        found = os.stat(target)
        if found.st_nlink > 1:
            # The new file would have this name only, and the old content live on under the other.
            raise NotReplaced(
                str(target), "it has a second name (a hard link), which would keep the old content"
            )
        _require_unchanged(target, before)
        backup = _backup(target, before, found, at or datetime.now(UTC), made)
        new = target.with_name(f".{target.name}.birthmark-{os.urandom(8).hex()}")
        _write_new(new, after, found, made, attributes_of=target)
        # Between this look and the rename a few microseconds remain; no call replaces a file only if it is the same.
        _require_unchanged(target, before)
        os.replace(new, target)
    except BaseException as err:
        for each in made:
            each.unlink(missing_ok=True)
        if isinstance(err, OSError):
            raise NotReplaced(str(target), f"it cannot be replaced: {err.strerror or err}") from err
        raise
    _settle(target.parent)
    return backup


def _require_unchanged(target: Path, before: bytes) -> None:
    try:
        now = read_regular(target, LIMIT_BYTES)
    except Unreadable as err:
        raise NotReplaced(str(target), f"it cannot be read any more: {err}") from None
    if now != before:
        raise NotReplaced(str(target), "it was changed meanwhile; look at it and say it again")


def _backup(target: Path, content: bytes, like: os.stat_result, at: datetime, made: list[Path]) -> Path:
    stem = f"{target.name}.birthmark-backup-{at.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    for number in range(_SAME_SECOND):
        backup = target.with_name(stem if number == 0 else f"{stem}-{number}")
        try:
            _write_new(backup, content, like, made)
        except FileExistsError:
            continue
        return backup
    raise NotReplaced(str(target), "there are too many backups of this second")


def _write_new(
    path: Path, content: bytes, like: os.stat_result, made: list[Path], *, attributes_of: Path | None = None
) -> None:
    """Write a file that was not there, closed to others until it is as open as `like`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    fd = os.open(path, flags, 0o600)
    made.append(path)
    with open(fd, "wb") as file:
        file.write(content)
        file.flush()
        if sys.platform != "win32":
            ours = os.fstat(fd)
            if (ours.st_uid, ours.st_gid) != (like.st_uid, like.st_gid):
                os.fchown(fd, like.st_uid, like.st_gid)
            if attributes_of is not None:
                _copy_attributes(attributes_of, path)
            os.fchmod(fd, stat.S_IMODE(like.st_mode))
        os.fsync(fd)


def _copy_attributes(source: Path, target: Path) -> None:
    """Copy what the file system keeps beside the content: access lists, labels."""
    if sys.platform == "linux":
        try:
            for name in os.listxattr(source):
                os.setxattr(target, name, os.getxattr(source, name))
        except OSError as err:
            if err.errno not in _NO_ATTRIBUTES:
                raise


def _settle(folder: Path) -> None:
    """Have the new name outlive a loss of power; a folder that cannot be synced does without."""
    if sys.platform != "win32":
        try:
            fd = os.open(folder, os.O_RDONLY)
        except OSError:  # one may write into a folder that one may not read
            return
        try:
            os.fsync(fd)
        except OSError:
            pass
        finally:
            os.close(fd)
