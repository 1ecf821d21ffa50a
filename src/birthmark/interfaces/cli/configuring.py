"""Which configuration a command means: found, read, and printed where it was found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from birthmark.config.load import load_files
from birthmark.config.model import Config
from birthmark.errors import ConfigError

CONFIG_ENV: Final = "BIRTHMARK_CONFIG"
FILE: Final = "birthmark.toml"
_NEARBY: Final = (".mcp.json", ".cursor/mcp.json", ".vscode/mcp.json")


def find(files: Sequence[Path]) -> list[Path]:
    """Return the files a command means: those given, BIRTHMARK_CONFIG, the nearest birthmark.toml, the user's own.

    Raises:
        ConfigError: There is none; a host's file nearby is named, and not taken.
    """
    if files:
        return list(files)
    if named := os.environ.get(CONFIG_ENV):
        return [Path(part) for part in named.split(os.pathsep) if part]
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / FILE).is_file():
            return [folder / FILE]
    own = config_folder() / FILE
    if own.is_file():
        return [own]
    nearby = next((here / name for name in _NEARBY if (here / name).is_file()), None)
    if nearby is not None:
        hint = f"There is {nearby}: birthmark up -f {nearby.relative_to(here)}"
    else:
        hint = f"Say -f FILE, set {CONFIG_ENV}, or write {own}"
    raise ConfigError(str(here), f"no {FILE} here or above, and none of your own", hint=hint)


def load(files: Sequence[Path]) -> Config:
    """Read the configuration that `find` finds."""
    return load_files(find(files), environ=os.environ)


def config_folder() -> Path:
    """Return the user's configuration folder."""
    # Imported late: `-f` needs no habits of the platform.
    import platformdirs

    return platformdirs.user_config_path("birthmark", appauthor=False)
