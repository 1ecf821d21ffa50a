"""`python -m benchmarks`, which is what `./dev bench` runs."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure
from benchmarks.peers import PROGRAMS_ENV, build, lsof, psutil_is_there
from benchmarks.progress import say
from benchmarks.rows import ROWS
from benchmarks.table import table

ROOT: Final = Path(__file__).resolve().parent.parent


def main(words: Sequence[str] | None = None) -> int:
    """Take the figures and print them; 1 when one about being right is wrong, or a row could not be taken."""
    asked = _arguments(words)
    names = asked.only or list(ROWS)
    if sys.platform != "linux":
        print("bench: the figures are taken on Linux", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="birthmark-bench-") as folder:
        programs = Path(folder, "programs")
        programs.mkdir()
        environ = {**os.environ, "BIRTHMARK_HOME": os.path.join(folder, "home")}
        environ[PROGRAMS_ENV] = str(programs) if build(programs) else ""
        environ.pop("BIRTHMARK_NATIVE", None)
        native = _take(names, environ, "native", quick=asked.quick)
        pure = (
            []
            if asked.no_pure
            else _take(names, {**environ, "BIRTHMARK_NATIVE": "0"}, "pure", quick=asked.quick)
        )
    if asked.json:
        print(json.dumps(_document(native, pure, quick=asked.quick), indent=1))
    else:
        print(_heading())
        print(table(native, pure))
    failed = len(native) == 0 or any(figure.hard and figure.met is False for figure in [*native, *pure])
    return 1 if failed or FAILED else 0


FAILED: Final[list[str]] = []
"""Rows that could not be taken at all."""


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev bench", description="Take birthmark's figures and print the table."
    )
    parser.add_argument("--quick", action="store_true", help="few samples: minutes become seconds")
    parser.add_argument(
        "--only", action="append", choices=list(ROWS), metavar="ROW", help=f"one of {', '.join(ROWS)}"
    )
    parser.add_argument(
        "--no-pure", action="store_true", help="leave out the same figures without the native spawner"
    )
    parser.add_argument("--json", action="store_true", help="print values instead of a table")
    return parser.parse_args(words)


def _take(names: Sequence[str], environ: dict[str, str], way: str, *, quick: bool) -> list[Figure]:
    found: list[Figure] = []
    for name in names:
        say(f"{name} ({way} path)")
        began = time.monotonic()
        command = [sys.executable, "-m", "benchmarks.one", name, *(["--quick"] if quick else [])]
        done = subprocess.run(command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            say(f"{name} ({way} path) ended with {done.returncode}")
            FAILED.append(name)
            continue
        found += [Figure.from_dict(record) for record in json.loads(done.stdout)]
        say(f"{name} took {time.monotonic() - began:.1f} s")
    return found


def _document(native: Sequence[Figure], pure: Sequence[Figure], *, quick: bool) -> dict[str, object]:
    return {
        "quick": quick,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "load": list(os.getloadavg()),
        "native": [figure.to_dict() for figure in native],
        "pure": [figure.to_dict() for figure in pure],
    }


def _heading() -> str:
    peers = [
        "psutil: the workshop's own" if psutil_is_there() else "psutil: missing",
        "lsof: there" if lsof() else "lsof: missing",
    ]
    return (
        f"Python {platform.python_version()}, Linux {platform.release()}, {os.cpu_count()} CPUs, "
        f"load {os.getloadavg()[0]:.1f}; {', '.join(peers)}\n"
        "Medians, ours and the base in turns; VALUE is held against BAR.\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
