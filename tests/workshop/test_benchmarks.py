"""The table of benchmarks is taken and printed; no time in it is looked at here. Real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.figures import Figure, missing, ratio
from benchmarks.rows import ROWS, row
from benchmarks.table import bar_of, table
from tests.conftest import LINUX

ROOT = Path(__file__).resolve().parent.parent.parent


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.skipif(not LINUX, reason="the figures are taken on Linux")
def test_two_cheap_rows_are_taken_and_told_as_values() -> None:
    done = bench("--quick", "--json", "--no-pure", "--only", "identity", "--only", "start")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["pure"] == []
    assert document["quick"] is True
    figures = [Figure.from_dict(each) for each in document["native"]]
    assert [(each.name, each.unit, each.at_most) for each in figures] == [
        ("identity check", "x", 0.3),
        ("identity check", "x", 5.0),
        ("liveness with a held pidfd", "x", 0.05),
        ("import birthmark", "ms", 40.0),
        ("birthmark --version", "ms", 60.0),
        ("birthmark run -- true", "ms", 80.0),
    ]
    for each in figures:
        assert (each.value is None) == bool(each.missing)
        assert not each.hard


def test_every_row_can_be_loaded() -> None:
    for name in ROWS:
        assert callable(row(name))


def test_an_unknown_row_is_named() -> None:
    done = bench("--only", "weather")
    assert done.returncode == 2
    assert "weather" in done.stderr


def test_a_ratio_is_one_of_medians() -> None:
    figure = ratio("name", [1, 2, 300], "base", [4, 4, 4], 0.5)
    assert figure.value == 0.5
    assert figure.met is True
    assert ratio("name", [9], "base", [4], 0.5).met is False


def test_a_missing_peer_is_neither_met_nor_missed() -> None:
    assert missing("name", "base", 0.5, "missing: no compiler").met is None


def test_the_table_marks_what_is_missed_and_what_is_wrong() -> None:
    figures = [
        Figure(name="met", base="base", at_most=1.0, value=0.5, ours_ns=500.0, base_ns=1_000.0),
        Figure(name="slow", base="base", at_most=1.0, value=1.5, ours_ns=1_500_000.0, base_ns=1e6),
        Figure(name="false", unit="count", at_most=0, value=1, hard=True),
        missing("gone", "lsof", 0.02, "missing: lsof"),
    ]
    pure = [Figure(name="slow", base="base", at_most=1.0, value=7.0)]
    lines = table(figures, pure).splitlines()
    assert lines[1].split() == ["met", "base", "0.5", "us", "1", "us", "0.5x", "<=", "1x", "ok"]
    assert lines[2].split() == ["slow", "base", "1.5", "ms", "1", "ms", "1.5x", "<=", "1x", "missed", "7x"]
    assert lines[3].split() == ["false", "1", "0", "WRONG"]
    assert lines[4].split()[-2:] == ["missing:", "lsof"]
    assert bar_of(figures[2]) == "0"


def test_a_figure_survives_its_way_through_json() -> None:
    figure = ratio("name", [1], "base", [2], 1.0)
    assert Figure.from_dict(json.loads(json.dumps(figure.to_dict()))) == figure
