"""Write a configuration, read it, and say what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from birthmark.config.load import load_files
from birthmark.config.model import Config, ServiceSpec
from birthmark.errors import ConfigError

FIXTURES = Path(__file__).parent / "fixtures"
NOTHING: Mapping[str, str] = {}


def write(path: Path, text: str) -> Path:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def load(
    path: Path,
    environ: Mapping[str, str] = NOTHING,
    *,
    allow_unset: bool = False,
    home: Path = Path("/home/ada"),
) -> Config:
    """Read one file."""
    return load_files([path], environ=environ, allow_unset=allow_unset, home=home)


def service(config: Config, name: str) -> ServiceSpec:
    """Return one service of a configuration."""
    return next(spec for spec in config.services if spec.name == name)


def refusal(path: Path, environ: Mapping[str, str] = NOTHING) -> str:
    """Read a file that cannot be used and return the sentence about it, the folder left out."""
    with pytest.raises(ConfigError) as caught:
        load(path, environ)
    return str(caught.value).replace(f"{path.parent}/", "")
