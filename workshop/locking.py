"""Write dev.lock anew: one file for every system and every Python from 3.11 on, with hashes, without addresses."""

from __future__ import annotations

import subprocess
import sys

from workshop.environment import LOCK, ROOT, say


def relock(arguments: list[str]) -> int:
    """Resolve pyproject.toml into dev.lock; return uv's exit code.

    Args:
        arguments: Passed to `uv pip compile`, such as `--upgrade-package NAME` (then the others stay as they are).
    """
    command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml"]
    command += ["--group", "dev", "--all-extras", "--universal", "--python-version", "3.11"]
    command += [
        "--generate-hashes",
        "--no-annotate",
        "--no-header",
        "--no-emit-index-url",
        "--no-emit-find-links",
    ]
    command += ["--quiet", "--output-file", LOCK.name]
    say("resolving pyproject.toml into dev.lock")
    return subprocess.run([*command, *(arguments or ["--upgrade"])], cwd=ROOT, check=False).returncode
