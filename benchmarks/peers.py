"""What we are held against, where it is there: psutil (among the workshop's tools), lsof, a C compiler's programs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parent / "c"
PROGRAMS_ENV: Final = "BENCHMARKS_PROGRAMS"
"""Where the C programs were built; unset or empty where there is no compiler."""

NO_COMPILER: Final = "missing: no compiler"
NO_PSUTIL: Final = "missing: psutil is not installed"
NO_LSOF: Final = "missing: lsof is not on the PATH"


def psutil_is_there() -> bool:
    """Say whether psutil can be imported by this interpreter."""
    return importlib.util.find_spec("psutil") is not None


def lsof() -> str | None:
    """Return where lsof is, or None."""
    return shutil.which("lsof")


def build(folder: Path) -> bool:
    """Build the C programs into `folder`; False, with the reason on stderr, where that is not possible."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return False
    for source in sorted(SOURCES.glob("*.c")):
        target = folder / source.stem
        done = subprocess.run(
            [compiler, "-O2", "-o", str(target), str(source)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            print(f"bench: {source.name} was not built:\n{done.stderr}", file=sys.stderr)
            return False
    return True


def program(name: str) -> str | None:
    """Return where a C program of ours was built, or None."""
    folder = os.environ.get(PROGRAMS_ENV)
    return os.path.join(folder, name) if folder else None


def sample_c(*command: str) -> list[int]:
    """Run a C program that prints nanoseconds, one a line; return them."""
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return [int(line) for line in done.stdout.split()]
