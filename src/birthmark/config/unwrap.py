"""A command that already runs under ``birthmark run``, and the command under it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from birthmark.core.markers import ChildKind

_PYTHON: Final = re.compile(r"(?:pythonw?|pypy)[0-9.]*(?:\.exe)?", re.IGNORECASE)
_OURS: Final = re.compile(r"birthmark(?:\.exe)?", re.IGNORECASE)
_FLAG: Final = re.compile(r"-[bBdEiIOPqRsSuvx]+|-[WX].*", re.DOTALL)
_MODULE: Final = re.compile(r"-[bBdEiIOPqRsSuvx]*m")
_TAKES_VALUE: Final = frozenset({"--name", "--kind", "--grace", "--eof-grace"})


def unwrap(command: Sequence[str]) -> tuple[tuple[str, ...], ChildKind | None] | None:
    """Return the command under ``birthmark run`` and the kind it was given, or None when there is no such wrapper.

    ``…/python -I -m birthmark run [options] [--] CMD…``, ``birthmark run …`` and ``uvx birthmark run …`` count. A service
    under a supervisor needs no second keeper, which would also hide the service's own process from it.
    """
    kind: ChildKind | None = None
    rest = tuple(command)
    while (start := _after_run(rest)) is not None:
        inner, said = _after_options(rest[start:])
        if not inner:
            return None
        rest, kind = inner, kind or said
    return None if len(rest) == len(command) else (rest, kind)


def _after_run(command: Sequence[str]) -> int | None:
    """Return where the arguments of ``birthmark run`` begin."""
    if not command:
        return None
    program = re.split(r"[/\\]", command[0])[-1]
    at = 1
    if _PYTHON.fullmatch(program):
        while at < len(command) and _FLAG.fullmatch(command[at]):
            at += 2 if command[at] in {"-W", "-X"} else 1
        if at + 1 >= len(command) or not _MODULE.fullmatch(command[at]) or command[at + 1] != "birthmark":
            return None
        at += 2
    elif program.removesuffix(".exe") == "uvx":
        if tuple(command[at : at + 1]) != ("birthmark",):
            return None
        at += 1
    elif not _OURS.fullmatch(program):
        return None
    return at + 1 if tuple(command[at : at + 1]) == ("run",) else None


def _after_options(args: Sequence[str]) -> tuple[tuple[str, ...], ChildKind | None]:
    kind: ChildKind | None = None
    at = 0
    while at < len(args) and args[at].startswith("-"):
        word, equals, value = args[at].partition("=")
        at += 1
        if word == "--":
            break
        if word in _TAKES_VALUE and not equals:
            value = args[at] if at < len(args) else ""
            at += 1
        if word == "--kind" and value in {ChildKind.MCP.value, ChildKind.AGENT.value}:
            kind = ChildKind(value)
    return tuple(args[at:]), kind
