"""What is checked without running anything: format, lint rules, types."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from workshop.environment import ROOT, say

PLACES: Final = ("src", "tests", "benchmarks", "examples", "workshop")

PLATFORMS: Final = {"darwin": "birthmark.platforms.darwin", "win32": "birthmark.platforms.windows"}
"""What cannot run on Linux is at least read the way its own system would."""


def lint() -> int:
    """Run all checks, whichever fails; return 1 if one did."""
    places = [place for place in PLACES if any((ROOT / place).rglob("*.py"))]
    results = [
        run("ruff", "format", "--check", "."),
        run("ruff", "check", "."),
        run("mypy", "--strict", *places),
        *(elsewhere(platform, module) for platform, module in PLATFORMS.items()),
    ]
    return int(any(results))


def elsewhere(platform: str, module: str) -> int:
    """Check the types of a platform's module, and of what it imports, as that platform sees them."""
    # A cache of its own: what is known of one platform is wrong on the other.
    cache = f"--cache-dir=.mypy_cache/{platform}"
    return run("mypy", "--strict", f"--platform={platform}", cache, "--module", module)


def reformat() -> int:
    """Write the format and ruff's safe fixes into the files."""
    results = [run("ruff", "check", "--fix", "."), run("ruff", "format", ".")]
    return int(any(results))


def run(tool: str, *arguments: str) -> int:
    """Run a tool of the environment on the tree; return its exit code."""
    say(f"{tool} {' '.join(arguments)}")
    return subprocess.run([sys.executable, "-m", tool, *arguments], cwd=ROOT, check=False).returncode
