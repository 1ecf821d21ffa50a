"""Which file is read when, and whose it is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from birthmark.errors import ConfigError

CONFIG_ENV: Final = "BIRTHMARK_CONFIG"
FILE_NAME: Final = "birthmark.toml"
_OFFERED: Final = (
    ".mcp.json",
    "mcp.json",
    ".cursor/mcp.json",
    ".vscode/mcp.json",
    ".codex/config.toml",
    "opencode.json",
)


def find_config(explicit: Sequence[Path] | None, environ: Mapping[str, str], cwd: Path) -> list[Path]:
    """Return the files to read: those given, else of ``BIRTHMARK_CONFIG``, else the nearest ``birthmark.toml`` upwards, else
    the one in the user's configuration folder.

    Args:
        explicit: What the caller was given; relative paths start at `cwd`. They need not exist: reading them says so.
        environ: Our variables. ``BIRTHMARK_CONFIG`` may hold several paths, separated as in PATH.
        cwd: Where the search upwards begins.

    Raises:
        ConfigError: There is none. A host's file nearby is offered in the hint, never used.
    """
    if explicit:
        return [cwd / path for path in explicit]
    if named := [part for part in environ.get(CONFIG_ENV, "").split(os.pathsep) if part]:
        return [cwd / Path(part).expanduser() for part in named]
    for folder in (cwd, *cwd.parents):
        if (folder / FILE_NAME).is_file():
            return [folder / FILE_NAME]
    own = user_config_folder() / FILE_NAME
    if own.is_file():
        return [own]
    offered = next((cwd / name for name in _OFFERED if (cwd / name).is_file()), None)
    if offered is not None:
        hint = f"{offered} lies here: to use it, say `birthmark up -f {os.path.relpath(offered, cwd)}`"
    else:
        hint = f"Name a file with -f, or write {own}"
    raise ConfigError(str(cwd), f"no {FILE_NAME} here, in a folder above, or in {own.parent}", hint=hint)


def user_config_folder() -> Path:
    """Return the folder of the user's own configuration.

    Raises:
        ConfigError: This user has no home, as in a container that runs under a number nobody gave a name.
    """
    from platformdirs import user_config_path  # 8 ms that a start with -f does not need

    try:
        return user_config_path("birthmark", appauthor=False)
    except RuntimeError as err:
        hint = "Set HOME or XDG_CONFIG_HOME to an absolute path"
        raise ConfigError("~", "this user has no home folder", hint=hint) from err


def home_of(environ: Mapping[str, str]) -> Path:
    """Return the user's home folder."""
    named = environ.get("HOME") or environ.get("USERPROFILE")
    try:
        return Path(named) if named else Path.home()
    except RuntimeError:  # no entry for our uid
        return Path("/")
