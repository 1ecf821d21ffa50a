"""TOML with the lines of its keys.

The standard library's reader keeps no lines. A small scanner finds them again by looking at headers and keys; it
gives a line only for what it has seen exactly once, and no line where it is not sure.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Final, NamedTuple

Where = tuple[str | int, ...]

_PART: Final = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_DOTTED: Final = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER: Final = re.compile(rf"[ \t]*\[[ \t]*({_DOTTED})[ \t]*\][ \t]*(?:#.*)?$")
_KEY: Final = re.compile(rf"[ \t]*({_DOTTED})[ \t]*=")
_PARTS: Final = re.compile(_PART)
_TOKEN: Final = re.compile(r"""\"{3}|'{3}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|#.*|[\[\]{}]""")
_AT_LINE: Final = re.compile(r" \(at line (\d+), column \d+\)$")


_DEPTH: Final = 100


class TomlError(Exception):
    """The text is not TOML; `line` counts from 1, None when not known."""

    def __init__(self, problem: str, line: int | None) -> None:
        super().__init__(problem, line)
        self.problem, self.line = problem, line


def parse_toml(text: str) -> tuple[dict[str, object], dict[Where, int]]:
    """Return the table and the lines of those keys and headers whose line is certain.

    Raises:
        TomlError: It is not TOML.
    """
    try:
        data: dict[str, object] = tomllib.loads(text)
    except RecursionError:
        raise TomlError("nested too deeply; this is no configuration", None) from None
    except ValueError as err:
        message = str(err)
        found = _AT_LINE.search(message)
        if found:
            raise TomlError(message[: found.start()], int(found.group(1))) from None
        last = text.count("\n") + 1 if message.endswith("(at end of document)") else None
        raise TomlError(message.removesuffix(" (at end of document)"), last) from None
    if _deeper_than(_DEPTH, data):
        raise TomlError(f"nested more than {_DEPTH} deep; this is no configuration", None)
    return data, key_lines(text)


def _deeper_than(depth: int, data: object) -> bool:
    """Say so without a call per level: dotted keys nest deeper than Python's stack."""
    level = [data]
    for _ in range(depth):
        inner: list[object] = []
        for each in level:
            inner += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        level = inner
    return any(isinstance(each, (dict, list)) and each for each in level)


class KeyPlace(NamedTuple):
    """Where a key stands: its way from the top, its line from 1, where that line begins, where its last part does, and
    what is behind its equals sign; a header has its line alone."""

    way: Where
    line: int
    starts_at: int
    name_at: int
    value_at: int | None


def key_lines(text: str) -> dict[Where, int]:
    """Return the line of each header and key of a valid TOML text that stands where a person would look."""
    return {way: place.line for way, place in key_places(text).items()}


def key_places(text: str) -> dict[Where, KeyPlace]:
    """Return the place of each header and key of a valid TOML text that stands where a person would look."""
    places: dict[Where, KeyPlace] = {}
    twice: set[Where] = set()
    for place in _walk(text):
        if places.setdefault(place.way, place) != place:
            twice.add(place.way)
    return {way: place for way, place in places.items() if way not in twice}


def _walk(text: str) -> Iterator[KeyPlace]:
    table: Where | None = ()
    fence = ""
    depth = 0
    at = 0
    for number, line in enumerate(text.split("\n"), 1):
        starts_at, at = at, at + len(line) + 1
        inside = bool(fence) or depth > 0
        if not inside:
            line_text = line.rstrip("\r")
            if line_text.lstrip().startswith("[["):
                table = None  # one of several tables of that name: which one, we do not count
                continue
            if header := _HEADER.match(line_text):
                table = _parts(header.group(1))
                yield KeyPlace(table, number, starts_at, starts_at + header.start(1), None)
                continue
            if (key := _KEY.match(line_text)) and table is not None:
                way = table + _parts(key.group(1))
                *_, last = _PARTS.finditer(key.group(1))
                name_at = starts_at + key.start(1) + last.start()
                yield KeyPlace(way, number, starts_at, name_at, starts_at + key.end())
        fence, depth = _rest(line, fence, depth)


def _parts(text: str) -> Where:
    parts = []
    for part in _PARTS.findall(text):
        if part[0] == "'":
            parts.append(part[1:-1])
        elif part[0] == '"':
            # A basic string means the same as a value, escapes included.
            parts.append(str(tomllib.loads(f"k = {part}")["k"]))
        else:
            parts.append(part)
    return tuple(parts)


def _rest(line: str, fence: str, depth: int) -> tuple[str, int]:
    """Return the multi-line quote, if any, and the open brackets after this line."""
    at = 0
    while True:
        if fence:
            end = line.find(fence, at)
            while fence == '"""' and end > 0 and _escaped(line, end):
                end = line.find(fence, end + 1)
            if end < 0:
                return fence, depth
            at = end + 3
            while line[at : at + 1] == fence[0]:  # up to two quotes may stand before the closing three
                at += 1
            fence = ""
            continue
        found = _TOKEN.search(line, at)
        if found is None:
            return "", depth
        at = found.end()
        token = found.group()
        if token in {'"""', "'''"}:
            fence = token
        elif token in {"[", "{"}:
            depth += 1
        elif token in {"]", "}"}:
            depth = max(0, depth - 1)


def _escaped(line: str, at: int) -> bool:
    before = line[:at]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1
