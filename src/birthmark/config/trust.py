"""Whose file it is: a project's file is somebody else's code until somebody here has looked at it."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from birthmark.config.find import home_of, user_config_folder
from birthmark.config.model import Config, ServiceSpec, Source
from birthmark.errors import ConfigError, InstallationBroken, NotTrusted

_VERSION_CONTROL: Final = (".git", ".hg", ".svn", ".jj", ".bzr", ".fossil", ".pijul")
_STORE: Final = "trusted.json"


def needs_trust(path: Path, *, home: Path | None = None) -> bool:
    """Say whether a file lies in a project: in or below a folder with version control.

    The user's own configuration does not need it, though the home or the configuration folder may be under version
    control too. `home` is the user's home; None: as the system says.
    """
    user = home or home_of(os.environ)
    homes = {user, user.resolve()}
    own = (user_config_folder(), user / ".config" / "birthmark")
    for seen in {Path(os.path.abspath(path)), path.resolve()}:
        if any(seen.is_relative_to(folder) for folder in own):
            continue
        for folder in seen.parents:
            if any(each.is_relative_to(folder) for each in homes):
                break
            if any(os.path.lexists(folder / name) for name in _VERSION_CONTROL):
                return True
    return False


def version_control_of(path: Path) -> Path | None:
    """Return the nearest folder with version control that a file lies in or below, by its name or where a link leads.

    Unlike `needs_trust` this holds for the user's own configuration too: what is kept there may be handed on.
    """
    for seen in (Path(os.path.abspath(path)), path.resolve()):
        for folder in seen.parents:
            if any(os.path.lexists(folder / name) for name in _VERSION_CONTROL):
                return folder
    return None


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a file, in hex.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError) as err:
        words = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise ConfigError(str(path), f"cannot be read: {words}") from None


def require_trust(config: Config, state: Path, *, home: Path | None = None) -> None:
    """Return if each file that needs trust has it, for the bytes that were read.

    Args:
        config: What was read, with the hashes of it.
        state: The installation's folder.
        home: The user's home; None: as the system says.

    Raises:
        NotTrusted: One has not; it names the file that was asked for and lists the commands.
        InstallationBroken: What was trusted cannot be read.
    """
    trusted = _read_store(state)
    for source in config.sources:
        if needs_trust(source.path, home=home) and trusted.get(str(source.path)) != source.sha256:
            raise NotTrusted(str(source.root), commands_of(config))


def grant_trust(config: Config, state: Path, *, home: Path | None = None) -> list[Source]:
    """Write down that the files of `config` are trusted as they were read; return those that needed it.

    Raises:
        InstallationBroken: It cannot be written down.
    """
    granted = [source for source in config.sources if needs_trust(source.path, home=home)]
    if granted:
        _write_store(state, _read_store(state) | {str(source.path): source.sha256 for source in granted})
    return granted


def commands_of(config: Config) -> list[str]:
    """Return a line for each service we would start: its name and its command, references not replaced."""
    return [_line(spec) for spec in config.services if spec.command and spec.enabled]


def _line(spec: ServiceSpec) -> str:
    return ascii_line(f"{spec.name}: {shlex.join(spec.written)}")


def ascii_line(text: str) -> str:
    """Return text on one line without control characters, which could hide a command from its reader."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "replace").decode() for each in text
    )


def _read_store(state: Path) -> dict[str, str]:
    path = state / _STORE
    try:
        stored = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as err:
        raise InstallationBroken(str(path), f"cannot be read: {err.strerror}") from None
    except (ValueError, RecursionError):
        stored = None
    files = stored.get("files") if isinstance(stored, dict) else None
    if not isinstance(files, dict):
        raise InstallationBroken(str(path), "not what was written here; remove it and trust the files anew")
    return {str(name): str(value) for name, value in files.items()}


def _write_store(state: Path, files: Mapping[str, str]) -> None:
    import tempfile  # which brings in shutil and random, and few starts write

    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Written beside and renamed: a reader sees the old file or the new one. mkstemp makes it 0600.
        handle, name = tempfile.mkstemp(prefix=_STORE, dir=state)
        try:
            with open(handle, "w", encoding="utf-8") as file:
                json.dump({"version": 1, "files": dict(sorted(files.items()))}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, state / _STORE)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as err:
        raise InstallationBroken(str(state / _STORE), f"cannot be written: {err.strerror}") from None
