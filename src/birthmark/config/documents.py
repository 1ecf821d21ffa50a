"""A file as data that knows on which line each value stands."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from birthmark.config.files import IsFolder, NoSuchFile, Unreadable, read_regular
from birthmark.config.jsonc import JsonError, parse_jsonc
from birthmark.config.tomlfile import TomlError, parse_toml
from birthmark.errors import ConfigError

Key = str | int
Where = tuple[Key, ...]
"""The way from the top of a file to a value: names of tables, positions in arrays."""

_LIMIT_BYTES: Final = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Document:
    """One file's content. `lines` count from 1; a value without one stands on its table's line, or nobody knows."""

    path: Path
    format: str
    data: dict[str, object]
    lines: Mapping[Where, int]
    sha256: str

    def line(self, where: Where) -> int | None:
        """Return the line of a value, else of the first thing in it, else of what is around it; None when not known."""
        if where in self.lines:
            return self.lines[where] if where else None
        # TOML's [mcp.x] makes a table mcp that has no line of its own.
        if where and (inside := [line for way, line in self.lines.items() if way[: len(where)] == where]):
            return min(inside)
        return self.line(where[:-1]) if where else None

    def error(self, where: Where, problem: str, hint: str | None = None) -> ConfigError:
        """Return the error to raise about the value at `where`."""
        return ConfigError(str(self.path), problem, self.line(where), dotted(where) or None, hint)

    def place(self, where: Where) -> str:
        """Return ``file:line``, or the file alone."""
        line = self.line(where)
        return str(self.path) if line is None else f"{self.path}:{line}"


def dotted(where: Where) -> str:
    """Return the way to a value as a person writes it: ``mcp.time.args[0]``."""
    text = ""
    for key in where:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            plain = key.replace("_", "").replace("-", "").isalnum()
            text += ("." if text else "") + (
                key if plain else ascii(key) if not key.isprintable() else f'"{key}"'
            )
    return text


def read_document(path: Path) -> Document:
    """Read a file as JSON (comments and trailing commas allowed) or TOML.

    Raises:
        ConfigError: It cannot be read, is empty, is neither, or holds no table.
    """
    return parse_document(path, _read(path))


def parse_document(path: Path, raw: bytes) -> Document:
    """Return the content `raw` of the file `path`; its suffix, else its first character, says which format it is.

    Raises:
        ConfigError: It is empty, not valid, or holds no table.
    """
    source = str(path)
    text = _decode(source, raw)
    if not text.strip():
        raise ConfigError(source, "the file is empty", hint="Name a service in it, or leave the file away")
    suffix = path.suffix.lower()
    if suffix in {".yaml", ".yml"}:
        raise ConfigError(
            source, "YAML is not read", hint="Write a birthmark.toml, or an mcpServers file in JSON"
        )
    is_toml = suffix == ".toml" or (
        not suffix.startswith(".json") and not text.lstrip().startswith(("{", "/*", "//"))
    )
    try:
        data, lines = parse_toml(text) if is_toml else parse_jsonc(text)
    except TomlError as err:
        raise ConfigError(source, f"not valid TOML: {err.problem}", err.line) from None
    except JsonError as err:
        raise ConfigError(source, err.problem, err.line, hint=err.hint) from None
    if not isinstance(data, dict):
        raise ConfigError(source, "an object is expected at the top of the file", 1)
    return Document(path, "toml" if is_toml else "json", data, lines, hashlib.sha256(raw).hexdigest())


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, _LIMIT_BYTES)
    except NoSuchFile:
        raise ConfigError(str(path), "there is no such file") from None
    except IsFolder:
        raise ConfigError(str(path), "this is a folder", hint="Name the file in it") from None
    except Unreadable as err:
        raise ConfigError(str(path), f"cannot be read: {err}") from None


def _decode(source: str, raw: bytes) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError(source, "the file is UTF-16", 1, hint="Save it as UTF-8")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        line = raw.count(b"\n", 0, err.start) + 1
        raise ConfigError(source, "the file is not UTF-8", line, hint="Save it as UTF-8") from None
