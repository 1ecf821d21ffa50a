"""The examples do what they say, as a reader runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from birthmark.config.load import load_files

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"
WITHIN_S: Final = 20

linux = pytest.mark.skipif(sys.platform != "linux", reason="a worker that leaves its group is found on Linux")


def run(name: str) -> list[str]:
    """Run an example that has to succeed; return the lines it printed."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


@linux
def test_spawn_and_stop_ends_the_worker_that_left_its_group_too() -> None:
    born, proof, *stopped, end = run("spawn_and_stop.py")
    assert born.startswith("born: process ")
    assert proof.startswith("proof: ")
    assert "same" in proof
    leader, worker = stopped
    assert leader.endswith("found as leader: exited")
    assert worker.endswith(("found as descendant: exited", "found as mark: exited"))
    assert end == "the child's exit status: signal 15 (SIGTERM)"


@linux
def test_stop_owned_refuses_a_stranger_and_stops_its_own_once() -> None:
    question, refused, stopped, again = run("stop_owned.py")
    assert question.endswith("our greeter? True")
    # Its parent is this process.
    assert refused.startswith(f"{os.getpid()} was not touched: ")
    assert stopped.endswith("was stopped: exited")
    assert again.endswith("does not run")


def test_the_configuration_names_three_servers_and_warns_of_nothing() -> None:
    config = load_files([EXAMPLES / "birthmark.toml"], environ={"PATH": os.defpath})
    assert [str(each.name) for each in config.services] == ["time", "fetch", "time-over-http"]
    assert config.warnings == ()
    fetch = config.services[1]
    assert (fetch.restart.value, fetch.stop.term_grace_s) == ("always", 10.0)


def test_a_host_reads_the_same_file_alone() -> None:
    config = load_files([EXAMPLES / "mcp.json"], environ={"PATH": os.defpath})
    assert [str(each.name) for each in config.services] == ["time", "fetch"]


def test_every_example_is_run_or_read_here() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == {
        "spawn_and_stop.py",
        "stop_owned.py",
        "birthmark.toml",
        "mcp.json",
    }
