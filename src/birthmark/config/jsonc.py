"""JSON as hosts write it, comments and trailing commas included, with the line of every value.

The standard library's reader keeps no lines, takes the last of two equal names without a word and knows no
comments. This one keeps the first promise of each: it says where, it refuses twins, it skips what is no data.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple, NoReturn

from birthmark.config.spans import Span

_DEPTH: Final = 100
"""Deeper than any configuration, shallower than Python's own stack."""

_SPACE: Final = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)+", re.DOTALL)
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]+|\\.)*+"')
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS: Final = {"true": True, "false": False, "null": None}
_WORD: Final = re.compile(r"[A-Za-z_]+")


class JsonError(Exception):
    """The text is not JSON; `line` counts from 1."""

    def __init__(self, problem: str, line: int, hint: str | None = None) -> None:
        super().__init__(problem, line, hint)
        self.problem, self.line, self.hint = problem, line, hint


def parse_jsonc(text: str) -> tuple[object, dict[tuple[str | int, ...], int]]:
    """Return the value and the line of every value in it, by its way from the top; members count from their name.

    Raises:
        JsonError: It is not JSON, one object has a name twice (both lines are named), or it is nested too deeply.
    """
    scanner = _Scanner(text)
    value = scanner.whole()
    return value, scanner.lines


class Layout(NamedTuple):
    """Where each value stands, and the name of each member with its quotes, by their way from the top."""

    values: dict[tuple[str | int, ...], Span]
    names: dict[tuple[str | int, ...], Span]


def locate_jsonc(text: str) -> Layout:
    """Return where everything in the text stands.

    Raises:
        JsonError: As `parse_jsonc`.
    """
    scanner = _Scanner(text)
    scanner.whole()
    return Layout(scanner.spans, scanner.names)


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[tuple[str | int, ...], int] = {}
        self.spans: dict[tuple[str | int, ...], Span] = {}
        self.names: dict[tuple[str | int, ...], Span] = {}
        self._counted_to = 0
        self._line = 1

    def line(self) -> int:
        # Positions only grow, so each newline is counted once.
        self._line += self.text.count("\n", self._counted_to, self.at)
        self._counted_to = self.at
        return self._line

    def fail(self, problem: str, hint: str | None = None) -> NoReturn:
        raise JsonError(problem, self.line(), hint)

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def skip(self) -> None:
        if found := _SPACE.match(self.text, self.at):
            self.at = found.end()
        if self.text.startswith("/*", self.at):
            self.fail("not valid JSON: a comment that begins here has no end")

    def whole(self) -> object:
        self.skip()
        value = self.value(())
        self.skip()
        if self.at < len(self.text):
            self.fail("not valid JSON: something follows the end")
        return value

    def value(self, where: tuple[str | int, ...]) -> object:
        if len(where) > _DEPTH:
            self.fail(f"nested more than {_DEPTH} deep; this is no configuration")
        self.lines.setdefault(where, self.line())
        start = self.at
        value = self.data(where)
        self.spans[where] = Span(start, self.at)
        return value

    def data(self, where: tuple[str | int, ...]) -> object:
        character = self.peek()
        if character == "{":
            return self.members(where)
        if character == "[":
            return self.items(where)
        if character == '"':
            return self.string()
        if found := _NUMBER.match(self.text, self.at):
            return self.number(found.group())
        if (found := _WORD.match(self.text, self.at)) and found.group() in _WORDS:
            self.at = found.end()
            return _WORDS[found.group()]
        if not character:
            self.fail("not valid JSON: it ends in the middle")
        if character == "'":
            self.fail("not valid JSON: a string in single quotes", 'Use "double quotes"')
        self.fail("not valid JSON: a value is expected here")

    def number(self, text: str) -> int | float:
        try:
            number = json.loads(text)
        except ValueError:  # more digits than Python turns into an int
            self.fail("a number with too many digits")
        assert isinstance(number, (int, float))
        self.at += len(text)
        return number

    def string(self) -> str:
        found = _STRING.match(self.text, self.at)
        if found is None:
            self.fail("not valid JSON: a string that does not end on its line")
        try:
            text = json.loads(found.group())
        except ValueError:
            self.fail("not valid JSON: an unknown escape in a string", r"Write a backslash twice: \\")
        self.at = found.end()
        return str(text)

    def members(self, where: tuple[str | int, ...]) -> dict[str, object]:
        members: dict[str, object] = {}
        self.at += 1
        self.skip()
        while self.peek() != "}":
            if self.peek() != '"':
                self.fail('not valid JSON: a name in "double quotes" is expected here')
            line, start = self.line(), self.at
            name = self.string()
            if name in members:
                self.fail(
                    f"{name!r} stands twice in one object: on lines {self.lines[(*where, name)]} and {line}"
                )
            self.lines[(*where, name)] = line
            self.names[(*where, name)] = Span(start, self.at)
            self.skip()
            if self.peek() != ":":
                self.fail("not valid JSON: a colon is expected here")
            self.at += 1
            self.skip()
            members[name] = self.value((*where, name))
            self.separator("}")
        self.at += 1
        return members

    def items(self, where: tuple[str | int, ...]) -> list[object]:
        items: list[object] = []
        self.at += 1
        self.skip()
        while self.peek() != "]":
            items.append(self.value((*where, len(items))))
            self.separator("]")
        self.at += 1
        return items

    def separator(self, end: str) -> None:
        self.skip()
        if self.peek() == ",":
            self.at += 1
            self.skip()
        elif self.peek() != end:
            self.fail(f"not valid JSON: a comma or {end} is expected here")
