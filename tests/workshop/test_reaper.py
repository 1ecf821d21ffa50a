"""The init that every pass of the suite runs under: a pass that leaves a process is not a pass. Real processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import LINUX

pytestmark = pytest.mark.skipif(not LINUX, reason="the reaper is Linux's")

IN_A_SESSION_OF_ITS_OWN = (
    "import os, sys\nif os.fork() == 0:\n    os.setsid()\n    os.execvp('sleep', ['sleep', '60'])\n"
)


def under_the_reaper(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program under the reaper, to its end."""
    command = [sys.executable, "-m", "workshop.reaper", *options, "--", sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


@pytest.mark.parametrize("code", [0, 1, 5, 77])
def test_the_exit_code_is_the_commands(code: int) -> None:
    assert under_the_reaper(f"raise SystemExit({code})").returncode == code


def test_a_command_ended_by_a_signal_gives_128_and_its_number() -> None:
    assert under_the_reaper("import os, signal; os.kill(os.getpid(), signal.SIGTERM)").returncode == 128 + 15


def test_a_process_left_behind_fails_a_command_that_ended_well_and_is_ended() -> None:
    reading, writing = os.pipe()
    try:
        program = f"import os; os.set_inheritable({writing}, True)\n" + IN_A_SESSION_OF_ITS_OWN
        command = [sys.executable, "-m", "workshop.reaper", "--", sys.executable, "-c", program]
        done = subprocess.run(
            command, pass_fds=[writing], capture_output=True, text=True, timeout=20, check=False
        )
        os.close(writing)
        writing = -1
        assert done.returncode == 1
        assert "sleep 60" in done.stdout
        assert os.read(reading, 1) == b""  # the last holder of the other end is gone
    finally:
        os.close(reading)
        if writing != -1:
            os.close(writing)


def test_a_command_without_end_is_aborted_in_time() -> None:
    done = under_the_reaper("import time; time.sleep(60)", "--within", "1")
    assert done.returncode == 128 + 6
    assert "still running after 1 s" in done.stdout
