"""The installation: one user's state folder and id, which is what *ours* means."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Final

from birthmark.core.records import dataclass
from birthmark.core.service import InstallationId, installation_id
from birthmark.errors import InstallationBroken

HOME_ENV: Final = "BIRTHMARK_HOME"
_FILE: Final = "installation"
_LOCK_WITHIN_S: Final = 5.0
_HOMELESS: Final = f"this user has no home folder to put it in; set {HOME_ENV} to an absolute path"


def state_home() -> Path:
    """Return the state folder: ``BIRTHMARK_HOME``, or the platform's place for state.

    Raises:
        InstallationBroken: ``BIRTHMARK_HOME`` is not an absolute path, or it is not set and there is no home.
    """
    chosen = os.environ.get(HOME_ENV)
    if chosen:
        if not os.path.isabs(chosen):
            raise InstallationBroken(chosen, f"{HOME_ENV} must be an absolute path")
        return Path(chosen)
    # Imported late: with the variable set, nothing has to know the platform's habits.
    import platformdirs

    try:
        place = platformdirs.user_state_path("birthmark", appauthor=False)
    except RuntimeError as err:
        raise InstallationBroken("~", f"{_HOMELESS} ({err})") from err
    if not place.is_absolute():
        # Older versions of the library: it would be made in the working directory.
        raise InstallationBroken(str(place), _HOMELESS)
    return place


@dataclass(frozen=True, slots=True)
class Installation:
    """A state folder with its id.

    `new_because` says why the id was made by this call, None when it was there before.
    """

    id: InstallationId
    home: Path
    new_because: str | None = None

    @property
    def registry_path(self) -> Path:
        """The SQLite registry's file."""
        return self.home / "registry.db"

    @property
    def births(self) -> Path:
        """The folder of the births' papers."""
        return self._folder("births")

    @property
    def run(self) -> Path:
        """The folder of sockets, closed to everybody else."""
        return self._folder("run")

    @property
    def locks(self) -> Path:
        """The folder of locks."""
        return self._folder("locks")

    @property
    def logs(self) -> Path:
        """The folder of the services' logs."""
        return self._folder("logs")

    def _folder(self, name: str) -> Path:
        folder = self.home / name
        _make_folder(folder)
        return folder


def open_installation(home: Path | None = None) -> Installation:
    """Return the installation in `home`, created atomically on first use.

    A folder that was copied (its device and inode are not those written down) gets a new id:
    the processes of the folder it was copied from are not ours.

    Args:
        home: The state folder; None means this user's (`state_home`).

    Raises:
        InstallationBroken: The folder or the id in it cannot be used; it says why and what to do.
    """
    folder = state_home() if home is None else home
    _make_folder(folder)
    path = folder / _FILE
    place = _place(folder)
    known = _read(path)
    if known is not None and known[1:] == place:
        return Installation(known[0], folder)
    with _locked(folder):
        known = _read(path)
        if known is not None and known[1:] == place:
            return Installation(known[0], folder)
        because = "first use" if known is None else f"the folder was copied from that of {known[0]}"
        fresh = installation_id(os.urandom(16).hex())
        _write(path, {"id": fresh, "device": place[0], "inode": place[1]})
        return Installation(fresh, folder, because)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as err:
        raise InstallationBroken(str(folder), f"the state folder cannot be made: {err.strerror}") from err
    if found.st_uid != os.geteuid():
        raise InstallationBroken(
            str(folder),
            f"it belongs to uid {found.st_uid}, and we are uid {os.geteuid()}; choose another with {HOME_ENV}",
        )
    if found.st_mode & 0o022:
        raise InstallationBroken(str(folder), "others may write to it; say: chmod go-w on it")


def _place(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino


def _read(path: Path) -> tuple[InstallationId, int, int] | None:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as err:
        raise InstallationBroken(str(path), f"the installation's id cannot be read: {err.strerror}") from err
    try:
        record = json.loads(text)
        return installation_id(record["id"]), int(record["device"]), int(record["inode"])
    except (ValueError, KeyError, TypeError) as err:
        # Guessing here would make strangers of our own processes, or the other way round.
        raise InstallationBroken(
            str(path),
            "the installation's id cannot be decoded; restore the file from a backup, or remove it to begin anew "
            "(what runs of the old installation is then nobody's)",
        ) from err


def _write(path: Path, record: dict[str, object]) -> None:
    draft = path.with_name(f"{_FILE}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            text = json.dumps(record).encode() + b"\n"
            # The end of the disk cuts a write short before it refuses one.
            if os.write(fd, text) != len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(draft, path)
    except OSError as err:
        draft.unlink(missing_ok=True)
        raise InstallationBroken(
            str(path), f"the installation's id cannot be written: {err.strerror}"
        ) from err


class _locked:  # noqa: N801 - reads as a verb where it is used
    """Hold the folder's lock while its id is made, so that two first uses agree on one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = -1

    def __enter__(self) -> None:
        import fcntl

        self._fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        deadline = time.monotonic() + _LOCK_WITHIN_S
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as err:
                late = time.monotonic() >= deadline
                if err.errno not in (errno.EAGAIN, errno.EACCES) or late:
                    os.close(self._fd)
                    raise InstallationBroken(
                        str(self._folder), f"the folder's lock was not to be had: {err.strerror}"
                    ) from err
                # flock(2) offers no bounded wait, and the holder needs about a millisecond.
                time.sleep(0.002)

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
