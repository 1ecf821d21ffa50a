"""The suites of control, stops and field cases once more, on a kernel that gives no pidfds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNNER = """
import sys
from tests.seccomp import forbid_pidfds
forbid_pidfds()
import os, pytest
try: os.close(os.pidfd_open(os.getpid()))
except OSError: pass
else: sys.exit("the filter forbids nothing")
sys.exit(pytest.main(sys.argv[1:]))
"""
SUITES = ["children", *(f"field/test_{letter}.py" for letter in "bcefg")]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="pidfds are Linux's")
def test_every_outcome_is_the_same_where_the_kernel_gives_no_pidfds(tmp_path: Path) -> None:
    paths = [str(ROOT / "tests" / suite) for suite in SUITES]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            RUNNER,
            "-q",
            "-p",
            "no:cacheprovider",
            f"--basetemp={tmp_path / 'inner'}",
            *paths,
        ],
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
