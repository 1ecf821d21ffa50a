"""Which configuration a command means."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from birthmark.config.find import find_config
from birthmark.config.load import load_files
from birthmark.config.model import Config
from birthmark.errors import ConfigError


def load(files: Sequence[Path]) -> Config:
    """Read the files given, or those that are found from here.

    Raises:
        ConfigError: There is none, or it cannot be used.
    """
    try:
        here = Path.cwd()
    except OSError as err:
        if not files or not all(path.is_absolute() for path in files):
            hint = "Go to another folder, or name files by absolute paths with -f"
            raise ConfigError("the working directory", f"cannot be used: {err.strerror}", hint=hint) from err
        here = Path("/")
    return load_files(find_config(files, os.environ, here), environ=os.environ)
