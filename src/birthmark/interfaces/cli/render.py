"""From values to lines: tables, lengths of time, JSON. Decides nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import click

NONE: Final = "-"
"""What a cell without a value shows."""


def print_json(value: object) -> None:
    """Print one value as JSON; indented for a person at a terminal, on one line for a program."""
    indent = 2 if _on_terminal() else None
    click.echo(json.dumps(value, ensure_ascii=False, indent=indent))


def coloured() -> bool:
    """Say whether colours are wanted: on a terminal, unless NO_COLOR is set to something (no-color.org)."""
    return _on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _on_terminal() -> bool:
    # Closed by whoever started us, it is None. mypy does not know.
    stream: object = sys.stdout
    return stream is not None and sys.stdout.isatty()


def tint(text: str, colour: str | None) -> str:
    """Return the text in a colour, where colours are wanted."""
    return click.style(text, fg=colour) if colour and coloured() else text


def one_line(text: str) -> str:
    """Return text that cannot break a line or drive a terminal: control characters are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    colour: Callable[[str, str], str | None] | None = None,
) -> str:
    """Return rows under their heads, aligned by spaces; the last column is as wide as it likes.

    `colour` is asked with a head and a cell, and names a colour or None.
    """
    cells = [[one_line(cell) or NONE for cell in row] for row in rows]
    widths = [max(_width(head), *(_width(row[i]) for row in cells), 0) for i, head in enumerate(heads)]
    lines = ["  ".join(_pad(head, width) for head, width in zip(heads, widths, strict=True)).rstrip()]
    for row in cells:
        padded = [_pad(cell, width) for cell, width in zip(row, widths, strict=True)]
        padded[-1] = padded[-1].rstrip()
        if colour is not None:
            padded = [
                tint(text, colour(head, cell)) for text, head, cell in zip(padded, heads, row, strict=True)
            ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _width(text: str) -> int:
    """Return how many columns a terminal gives the text: wide scripts take two a character."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def length(seconds: float | None) -> str:
    """Return a length of time in its two largest units; NONE for None."""
    if seconds is None:
        return NONE
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    if minutes:
        return f"{minutes}m {left}s"
    return f"{left}s"


def receipt_lines(receipt: Mapping[str, object]) -> list[str]:
    """Return a receipt, as JSON carries it, as lines for a person."""
    ended = str(receipt.get("termination", "unknown")).replace("_", " ")
    lines = [f"{one_line(str(receipt.get('service')))}: {ended} in {receipt.get('took_ms', 0)} ms"]
    members = receipt.get("members")
    for member in members if isinstance(members, list) else []:
        sent = ", ".join(f"{each['signal']} at {each['after_ms']} ms" for each in member.get("sent") or [])
        end = member.get("end") or "still alive"
        why = f" ({member['why']})" if member.get("why") else ""
        what = f"  {member['pid']}  {member['found']}  {sent or 'nothing sent'}: {end}{why}"
        lines.append(f"{what}  {one_line(str(member.get('command') or ''))}".rstrip())
    notes = receipt.get("notes")
    lines += [f"  note: {one_line(str(note))}" for note in (notes if isinstance(notes, list) else [])]
    return lines


def has_survivors(receipt: Mapping[str, object]) -> bool:
    """Say whether a receipt, as JSON carries it, names a member that still lives."""
    members = receipt.get("members")
    return any(member.get("end") is None for member in (members if isinstance(members, list) else []))
