"""One value and where it stands, and the readers that turn it into what a service needs.

A reader returns the value or raises `ConfigError` with file, line, key and the way out; it never guesses a unit or
a type. No message repeats a value of the environment.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Final, TypeVar

from birthmark.config.documents import Document, Where
from birthmark.errors import ConfigError

_E = TypeVar("_E", bound=StrEnum)
_T = TypeVar("_T")

_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LENGTH: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?) ?(ms|s|min|m|h|d)")
_UNITS_BYTES: Final = {
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}
_SIZE: Final = re.compile(r"([0-9]{1,12}) ?(B|KiB|MiB|GiB|kB|MB|GB)")
_RANGE: Final = re.compile(r"([0-9]{1,5}) ?- ?([0-9]{1,5})")
_LONGEST_S: Final = 10 * 365 * 86400.0
_STOP_SIGNALS: Final = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "KILL")


@dataclass(frozen=True, slots=True)
class Said:
    """A value as a file says it, and where."""

    value: object
    document: Document
    where: Where

    def error(self, problem: str, hint: str | None = None) -> ConfigError:
        """Return the error to raise about this value."""
        return self.document.error(self.where, problem, hint)

    def wrong(self, expected: str, hint: str | None = None) -> ConfigError:
        """Return the error that says what it is and what was expected."""
        return self.error(f"{kind_of(self.value)}; {expected} is expected", hint)

    @property
    def line(self) -> int | None:
        """The line it stands on, None when not known."""
        return self.document.line(self.where)

    def members(self) -> dict[str, Said]:
        """Return the members of a table."""
        if not isinstance(self.value, dict):
            raise self.wrong("a table")
        return {name: Said(value, self.document, (*self.where, name)) for name, value in self.value.items()}

    def items(self) -> list[Said]:
        """Return the items of an array."""
        if not isinstance(self.value, list):
            raise self.wrong("an array")
        return [Said(value, self.document, (*self.where, at)) for at, value in enumerate(self.value)]


def optional(said: Mapping[str, Said], key: str, reader: Callable[[Said], _T], default: _T) -> _T:
    """Return what `reader` makes of the value under `key`, or `default` when nobody has said it."""
    return reader(said[key]) if key in said else default


def kind_of(value: object) -> str:
    """Return what a value is, for a person; never the value itself."""
    match value:
        case None:
            return "this is null"
        case bool():
            return "this is true or false"
        case int() | float():
            return "this is a number"
        case str():
            return "this is a string"
        case list():
            return "this is an array"
        case dict():
            return "this is a table"
        case _:
            return "this is a date or a time"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return a hint with the known words nearest to `word`, or with all of them when none is near."""
    words = sorted(known)
    if near := get_close_matches(word, words, n=1, cutoff=0.6):
        return f"Did you mean {near[0]!r}?"
    return f"Known are {', '.join(words)}" if words else None


def text(said: Said) -> str:
    """Return a string that a process can be given: no NUL, no half of a surrogate pair that no byte stands for."""
    if not isinstance(said.value, str):
        raise said.wrong("a string")
    check_text(said, said.value)
    return said.value


def check_text(said: Said, value: str) -> None:
    """Refuse what no argument and no variable can hold."""
    if "\0" in value:
        raise said.error("a NUL character, which no argument and no variable can hold")
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise said.error("not valid Unicode: half of a surrogate pair") from None


def full_text(said: Said) -> str:
    """Return a string that is not empty."""
    value = text(said)
    if not value.strip():
        raise said.error("this is empty")
    return value


def flag(said: Said) -> bool:
    """Return true or false."""
    if not isinstance(said.value, bool):
        raise said.wrong("true or false")
    return said.value


def count(said: Said) -> int:
    """Return a whole number from 1 to 1,000,000."""
    if isinstance(said.value, bool) or not isinstance(said.value, int):
        raise said.wrong("a whole number")
    if not 1 <= said.value <= 1_000_000:
        raise said.error("out of range: 1 to 1000000 is expected")
    return said.value


def share(said: Said) -> float:
    """Return a number from 0 to 1."""
    if isinstance(said.value, bool) or not isinstance(said.value, (int, float)):
        raise said.wrong("a number from 0 to 1")
    if not 0 <= said.value <= 1:
        raise said.error("out of range: 0 to 1 is expected")
    return float(said.value)


def duration_s(said: Said) -> float:
    """Return the seconds of ``"10s"``, ``"500ms"``, ``"2m"``, ``"1m 30s"``; at most ten years."""
    value = said.value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise said.error(f"{value} has no unit", f'Write "{value}s" or "{value}ms"')
    if not isinstance(value, str):
        raise said.wrong('a length of time such as "10s"')
    seconds = _sum(value, _LENGTH, _UNITS_S)
    if seconds is None:
        raise said.error(
            f"{value[:40]!r} is no length of time", 'Write for example "500ms", "10s", "2m" or "1h"'
        )
    if seconds > _LONGEST_S:
        raise said.error("longer than ten years")
    return seconds


def size_bytes(said: Said) -> int:
    """Return the bytes of ``"10MiB"``."""
    if not isinstance(said.value, str):
        raise said.wrong('a size such as "10MiB"')
    found = _SIZE.fullmatch(said.value.strip())
    if found is None or found.group(1).strip("0") == "":
        raise said.error(
            f"{said.value[:40]!r} is no size", f'Write for example "10MiB"; units: {", ".join(_UNITS_BYTES)}'
        )
    return int(found.group(1)) * _UNITS_BYTES[found.group(2)]


def _sum(value: str, pattern: re.Pattern[str], units: Mapping[str, float]) -> float | None:
    at, total, stripped = 0, 0.0, value.strip()
    while at < len(stripped):
        found = pattern.match(stripped, at)
        if found is None:
            return None
        total += float(found.group(1)) * units[found.group(2)]
        at = found.end()
        while stripped[at : at + 1] == " ":
            at += 1
    return total if stripped else None


def strings(said: Said) -> tuple[str, ...]:
    """Return an array of strings."""
    return tuple(text(item) for item in said.items())


def one_of(kinds: type[_E]) -> Callable[[Said], _E]:
    """Return the reader of one of a few words."""

    def read(said: Said) -> _E:
        known = [member.value for member in kinds]
        if not isinstance(said.value, str):
            raise said.wrong(f"one of {', '.join(known)}")
        try:
            return kinds(said.value)
        except ValueError:
            raise said.error(f"{said.value[:40]!r} is not known", nearest(said.value, known)) from None

    return read


def stop_signal(said: Said) -> int:
    """Return the number of a signal that asks a process to leave: ``"TERM"`` or ``"SIGTERM"`` and its like."""
    name = full_text(said).upper().removeprefix("SIG")
    number = getattr(signal, f"SIG{name}", None) if name in _STOP_SIGNALS else None
    if number is None:
        raise said.error(f"{name[:40]!r} is no signal to stop with", nearest(name, _STOP_SIGNALS))
    return int(number)


def port_number(said: Said) -> int:
    """Return a port: 1 to 65535."""
    if isinstance(said.value, bool) or not isinstance(said.value, int):
        raise said.wrong('a port, a range such as "8900-8999", or "auto"')
    if not 1 <= said.value <= 65535:
        raise said.error(f"{said.value} is no port: 1 to 65535 is expected")
    return said.value


def port_range(said: Said) -> tuple[int, int]:
    """Return both ends of ``"8900-8999"``."""
    found = _RANGE.fullmatch(full_text(said).strip())
    if found is None:
        raise said.error(f"{str(said.value)[:40]!r} is no range of ports", 'Write for example "8900-8999"')
    first, last = int(found.group(1)), int(found.group(2))
    if not (1 <= first <= 65535 and 1 <= last <= 65535):
        raise said.error("out of range: ports are 1 to 65535")
    if first > last:
        raise said.error(f"{first} is beyond {last}", f'Write "{last}-{first}"')
    return first, last


def pattern(said: Said) -> str:
    """Return a regular expression."""
    value = full_text(said)
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError) as err:
        raise said.error(f"not a regular expression: {err}") from None
    return value


def variable_name(said: Said, name: str) -> str:
    """Return the name of an environment variable.

    Raises:
        ConfigError: It is empty, or holds ``=`` or NUL.
    """
    check_text(said, name)
    if not name or "=" in name:
        raise said.error(f"{name!r} cannot name a variable: it is empty or holds '='")
    return name
