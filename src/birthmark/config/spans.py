"""Places in a text, and changes of it that leave all else as it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Span(NamedTuple):
    """The characters from `start` up to, not including, `end`."""

    start: int
    end: int

    def of(self, text: str) -> str:
        """Return what stands there."""
        return text[self.start : self.end]


class Array(NamedTuple):
    """An array of strings: its brackets are the first and the last character of its span."""

    span: Span
    items: tuple[Span, ...]


class Edit(NamedTuple):
    """`text` in place of what stands in `span`; an empty span means between two characters."""

    span: Span
    text: str


def apply(text: str, edits: Iterable[Edit]) -> str:
    """Return the text with the edits made. Spans refer to the text as it was; they may not overlap.

    Raises:
        ValueError: Two of them overlap.
    """
    parts = []
    at = 0
    for span, new in sorted(edits, key=lambda edit: edit.span):
        if span.start < at:
            raise ValueError("two edits of one place")
        parts += [text[at : span.start], new]
        at = span.end
    return "".join([*parts, text[at:]])
