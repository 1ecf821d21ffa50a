"""The page of holes says the truth: every number is there once, and every test it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "holes.md").read_text()


def test_every_hole_has_one_row() -> None:
    numbers = [int(n) for n in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)]
    assert numbers == list(range(1, 59))


def test_every_test_named_on_the_page_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    there = set(re.findall(r"def (test_\w+)\(", source))
    assert named - there == set()


def test_a_hole_is_closed_by_a_test_or_says_what_will_close_it() -> None:
    for row in re.findall(r"^\| \d+ \|.*$", PAGE, re.MULTILINE):
        _, number, _, state, by, _ = row.split("|")
        if "closed" in state:
            assert "test_" in by or number.strip() == "58", row
