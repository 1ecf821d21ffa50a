"""What is checked without running anything: format, lint rules, types."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from workshop.environment import ROOT, say

PLACES: Final = ("src", "tests", "benchmarks", "examples", "workshop")


def lint() -> int:
    """Run all three checks, whichever fails; return 1 if one did."""
    places = [place for place in PLACES if any((ROOT / place).rglob("*.py"))]
    results = [
        run("ruff", "format", "--check", "."),
        run("ruff", "check", "."),
        run("mypy", "--strict", *places),
    ]
    return int(any(results))


def reformat() -> int:
    """Write the format and ruff's safe fixes into the files."""
    results = [run("ruff", "check", "--fix", "."), run("ruff", "format", ".")]
    return int(any(results))


def run(tool: str, *arguments: str) -> int:
    """Run a tool of the environment on the tree; return its exit code."""
    say(f"{tool} {' '.join(arguments)}")
    return subprocess.run([sys.executable, "-m", tool, *arguments], cwd=ROOT, check=False).returncode
