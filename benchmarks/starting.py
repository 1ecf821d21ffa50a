"""What a Python start costs: the import, the version, and `run` in front of a command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.sampling import in_turns, median, timed


def starts(quick: bool) -> list[Figure]:
    """Each from start to end of its process, beyond a bare interpreter that does nothing."""
    python = [sys.executable, "-I"]
    script = Path(sys.executable).parent / "birthmark"
    # Without the installed command the module is what there is.
    command = [str(script)] if os.access(script, os.X_OK) else [*python, "-m", "birthmark"]
    bare = [*python, "-S", "-c", "pass"]
    commands = {
        "bare": bare,
        "site": [*python, "-c", "pass"],
        "import": [*python, "-c", "import birthmark"],
        "version": [*command, "--version"],
        "true": ["/bin/true"],
        "run": [*command, "run", "--", "true"],
    }
    for each in commands.values():
        subprocess.run(each, stdout=subprocess.DEVNULL, check=True)
    found = in_turns(
        {name: timed(partial(_run, words)) for name, words in commands.items()},
        5 if quick else 40,
        warm=1,
    )
    base = "python -I -S -c pass"
    return [
        _beyond("import birthmark", found["import"], base, found["bare"], 40.0),
        _beyond("birthmark --version", found["version"], base, found["bare"], 60.0),
        _beyond("birthmark run -- true", found["run"], base, found["bare"], 80.0),
    ]


def _run(words: Sequence[str]) -> None:
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)


def _beyond(name: str, ours: list[int], base: str, theirs: list[int], at_most: float) -> Figure:
    return Figure(
        name=name,
        base=base,
        unit="ms",
        at_most=at_most,
        value=(median(ours) - median(theirs)) / 1e6,
        ours_ns=median(ours),
        base_ns=median(theirs),
    )
