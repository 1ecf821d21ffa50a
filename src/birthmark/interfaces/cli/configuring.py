"""Which configuration a command means."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from birthmark.config.find import find_config
from birthmark.config.load import load_files
from birthmark.config.model import Config
from birthmark.errors import ConfigError

_F = TypeVar("_F", bound=Callable[..., object])


def allow_unset_option(command: _F) -> _F:
    """Give a command the switch for references to unset variables: --allow-unset, as `allow_unset`."""
    return click.option(
        "--allow-unset",
        "allow_unset",
        is_flag=True,
        help="Leave a reference to an unset variable as it is written, rather than refuse it.",
    )(command)


def load(files: Sequence[Path], *, allow_unset: bool = False) -> Config:
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
    return load_files(find_config(files, os.environ, here), environ=os.environ, allow_unset=allow_unset)
