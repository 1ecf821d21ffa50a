"""Which configuration a command means."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from birthmark.config.find import find_config
from birthmark.config.load import load_files
from birthmark.config.model import Config


def load(files: Sequence[Path]) -> Config:
    """Read the files given, or those that are found from here.

    Raises:
        ConfigError: There is none, or it cannot be used.
    """
    return load_files(find_config(files, os.environ, Path.cwd()), environ=os.environ)
