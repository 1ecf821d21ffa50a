"""A server's command as it stands in a file: which characters are the program, which the arguments.

Hosts write their files by hand as often as by program, so a place is given only where it is certain. Whoever edits
by these places reads the text again afterwards and compares.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from birthmark.config.jsonc import Layout
from birthmark.config.spans import Array, Span
from birthmark.config.tomlfile import KeyPlace

Where = tuple[str | int, ...]

_BLANK: Final = " \t\r\n"
_TOML_STRING: Final = re.compile(r"""\"(?!\"\")(?:[^\"\\\n]|\\.)*\"|'(?!'')[^'\n]*'""")
_TOML_SPACE: Final = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_TOML_LINE_END: Final = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\r?\n|\Z)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Where one server's command stands.

    `args` is None where there are none, and a bare span where a null stands. Arguments that are new go to `args_at`,
    between `before_args` and ``]``; `args_follow` says that those there are stand just where new ones would.
    """

    command: Span | Array
    args: Array | Span | None
    args_at: int
    before_args: str
    args_follow: bool


def written_in_json(text: str, layout: Layout, command: Where, args: Where | None) -> Written:
    """Return where a server's command stands in JSON.

    Args:
        text: What was read.
        layout: Where everything in it stands.
        command: The way to the program, or to the array of everything.
        args: The way to the arguments; None: there are none.
    """
    program = _json_value(text, layout, command)
    ends_at = layout.values[command].end
    name_at = layout.names[command].start
    before = text[:name_at]
    # What separates the command's name from what is before it separates the new name too: a line's end and an indent.
    gap = before[len(before.rstrip(_BLANK)) :] or " "
    follow = args is not None and text[ends_at : layout.names[args].start].strip(_BLANK) == ","
    return Written(
        command=program,
        args=None if args is None else _json_value(text, layout, args),
        args_at=ends_at,
        before_args=f',{gap}"args": [',
        args_follow=follow,
    )


def _json_value(text: str, layout: Layout, where: Where) -> Span | Array:
    span = layout.values[where]
    if text[span.start] != "[":
        return span
    items: list[Span] = []
    while (item := layout.values.get((*where, len(items)))) is not None:
        items.append(item)
    return Array(span, tuple(items))


def written_in_toml(
    text: str, places: Mapping[tuple[str | int, ...], KeyPlace], command: Where, args: Where | None
) -> Written | None:
    """Return where a server's command stands in TOML; None where that is not certain.

    It is where command and arguments have a line of their own each, under a plain header.
    """
    place = places.get(command)
    program = _toml_value(text, place)
    if place is None or program is None:
        return None
    ends_at = (program.span if isinstance(program, Array) else program).end
    line_end = text.find("\n", ends_at)
    ended_by = text[line_end - 1 : line_end + 1] if line_end >= 0 else text  # the last line may lack its end
    newline = "\r\n" if "\r\n" in ended_by else "\n"
    args_at = len(text) if line_end < 0 else line_end - len(newline) + 1
    given = None if args is None else _toml_value(text, places.get(args))
    if args is not None and given is None:
        return None
    follow = False
    if args is not None and isinstance(given, Array):
        follow = places[args].starts_at == args_at + len(newline) and not text[
            given.span.end : _line_end(text, given.span.end)
        ].strip(_BLANK)
    return Written(
        command=program,
        args=given,
        args_at=args_at,
        before_args=f"{newline}{text[place.starts_at : place.name_at]}args = [",
        args_follow=follow,
    )


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _toml_value(text: str, place: KeyPlace | None) -> Span | Array | None:
    """Return a string's or an array of strings' place, if nothing but a comment follows it on its line."""
    if place is None or place.value_at is None:
        return None
    at = place.value_at
    while text.startswith((" ", "\t"), at):
        at += 1
    value = _toml_array(text, at) if text.startswith("[", at) else _toml_string(text, at)
    if value is None:
        return None
    end = (value.span if isinstance(value, Array) else value).end
    return value if _TOML_LINE_END.match(text, end) else None


def _toml_string(text: str, at: int) -> Span | None:
    found = _TOML_STRING.match(text, at)
    return Span(*found.span()) if found else None


def _toml_array(text: str, start: int) -> Array | None:
    items: list[Span] = []
    at = _past_space(text, start + 1)
    while not text.startswith("]", at):
        item = _toml_string(text, at)
        if item is None:
            return None
        items.append(item)
        at = _past_space(text, item.end)
        if text.startswith(",", at):
            at = _past_space(text, at + 1)
        elif not text.startswith("]", at):
            return None
    return Array(Span(start, at + 1), tuple(items))


def _past_space(text: str, at: int) -> int:
    found = _TOML_SPACE.match(text, at)
    return found.end() if found else at
