"""What the demo says while it plays, for people line by line, for programs as one object at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import click

from birthmark.interfaces.cli.render import one_line, tint

_INDENT: Final = "    "


class DemoFailed(Exception):
    """The demo did not show what it promises. `reason` is a sentence, `lines` are what a person looks at next."""

    def __init__(self, reason: str, lines: Iterable[str] = ()) -> None:
        self.reason, self.lines = reason, tuple(lines)
        super().__init__(reason, self.lines)

    def __str__(self) -> str:
        return self.reason


class Survivors(DemoFailed):
    """Something the demo started could not be ended; its folder holds the only proof of whose it is."""


@dataclass(slots=True)
class Teller:
    """Says chapters, commands, what they printed and what that shows. Words go to standard error with `as_json`."""

    as_json: bool
    chapters: list[dict[str, object]] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    """What the object at the end holds beside the chapters."""
    short: dict[str, str] = field(default_factory=dict)
    """Long paths, and what stands for them in what was printed."""
    _began: float = field(default_factory=time.monotonic)
    _since: float = field(default_factory=time.monotonic)
    _title: str = ""

    def chapter(self, title: str) -> None:
        """Begin a chapter; its time runs from here."""
        self._title, self._since = title, time.monotonic()
        self._say("")
        self._say(tint(title, "cyan"))

    def command(self, line: str) -> None:
        """Say what a user would type."""
        self._say(f"  $ {one_line(line)}")

    def lines(self, lines: Iterable[str]) -> None:
        """Say something that was printed or found."""
        for line in lines:
            for path, name in self.short.items():
                line = line.replace(path, name)
            self._say(f"{_INDENT}{line}".rstrip())

    def shown(self, result: str) -> None:
        """Say what the chapter has shown, and how long it took."""
        took_s = time.monotonic() - self._since
        self.chapters.append({"title": self._title, "shown": result, "took_s": round(took_s, 3)})
        self._say(f"  {tint(_mark('✓', 'ok'), 'green')} {result}  ({took_s:.1f} s)")

    def failed(self, failure: DemoFailed) -> None:
        """Say why the demo ends here."""
        self.chapters.append({"title": self._title, "failed": failure.reason})
        self._say(f"  {tint(_mark('✗', 'FAILED'), 'red')} {failure.reason}")
        self.lines(failure.lines)

    def end(self, line: str) -> None:
        """Say the last line."""
        self._say("")
        self._say(line)

    def to_dict(self) -> dict[str, object]:
        """Return the whole demo as plain values for JSON."""
        failed = next((each["failed"] for each in self.chapters if "failed" in each), None)
        took_s = round(time.monotonic() - self._began, 3)
        return {
            "ok": failed is None,
            "reason": failed,
            "took_s": took_s,
            "chapters": self.chapters,
        } | self.facts

    @property
    def took_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def _say(self, line: str) -> None:
        click.echo(line, err=self.as_json)


def _mark(sign: str, word: str) -> str:
    """Return the sign, or the word where the terminal's encoding has no such sign."""
    try:
        sign.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return word
    return sign
