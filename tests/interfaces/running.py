"""Run a command inside the test's process, or as a process of its own, and keep all it said."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from birthmark.interfaces.cli.app import run_command


class Said(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, object]:
        """Its standard output as one JSON object."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


def command(*words: str) -> Said:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command(words)
    return Said(int(code), out.getvalue(), err.getvalue())


def process(
    *words: str, cwd: Path | None = None, environ: Mapping[str, str] | None = None, timeout_s: float = 30
) -> Said:
    """Run a command as a process of its own, without a terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "birthmark", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **(environ or {})},
        timeout=timeout_s,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)
