"""One supervisor for one installation: a lock the kernel lets go of when its holder dies."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from pathlib import Path
from typing import Final

from birthmark.children.installation import Installation
from birthmark.errors import InstallationBroken, InstallationLocked, Unsupported

LOCK_FILE: Final = "supervisor.lock"

_PID_LINE: Final = re.compile(rb"([1-9][0-9]{0,9})\n")


class InstallationLock:
    """Held from `acquire` until `release`, or until this process ends, however it ends.

    The file stays: whoever removed it would let a second holder lock a new one. What is in it is
    for people; only the kernel's lock decides.
    """

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd: int | None = fd

    @classmethod
    def acquire(cls, installation: Installation) -> InstallationLock:
        """Take the lock, or say at once who has it.

        Raises:
            InstallationLocked: Another supervisor holds it; the error carries its pid where it is known.
            InstallationBroken: The file cannot be opened or locked.

        Platform: POSIX.
        """
        if sys.platform == "win32":
            raise Unsupported("locking an installation", sys.platform)
        import fcntl

        path = installation.locks / LOCK_FILE
        while True:
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as err:
                raise InstallationBroken(str(path), f"the lock cannot be opened: {err.strerror}") from err
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                ours = os.fstat(fd)
                # Somebody may have removed the file between our open and our lock; then what we
                # hold has no name any more, and the next starter would lock another file.
                if _same_file(path, ours):
                    _write_pid(fd)
                    return cls(path, fd)
            except OSError as err:
                pid = _read_pid(fd)
                os.close(fd)
                if err.errno in (errno.EAGAIN, errno.EACCES):
                    raise InstallationLocked(str(installation.home), pid) from err
                raise InstallationBroken(str(path), f"the lock cannot be taken: {err.strerror}") from err
            os.close(fd)

    def release(self) -> None:
        """Let go of the lock. Releasing twice is harmless."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def holder_pid(installation: Installation) -> int | None:
    """Return the pid written in the lock's file, for people: None when there is none. It proves nothing."""
    try:
        fd = os.open(installation.locks / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _read_pid(fd)
    finally:
        os.close(fd)


def remove_stale_socket(path: Path) -> bool:
    """Remove a socket file that a dead supervisor left behind; True when there was one.

    Only for the holder of the installation's lock: nobody else can be listening there.

    Raises:
        InstallationBroken: Something else than a socket has that name.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise InstallationBroken(str(path), "it is no socket, and stands where ours belongs; move it away")
    path.unlink(missing_ok=True)
    return True


def _same_file(path: Path, ours: os.stat_result) -> bool:
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)


def _write_pid(fd: int) -> None:
    line = f"{os.getpid()}\n".encode()
    # Written first and cut afterwards: a reader in between sees our line and the rest of an older
    # one, never a number made of both, since the line's end comes with it.
    os.pwrite(fd, line, 0)
    os.ftruncate(fd, len(line))


def _read_pid(fd: int) -> int | None:
    try:
        found = _PID_LINE.match(os.pread(fd, 32, 0))
    except OSError:
        return None
    return int(found.group(1)) if found else None
