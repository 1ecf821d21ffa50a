"""What falls to the supervisor is reaped, and nobody's exit status with it. Real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from birthmark.children.command import Command, Stdio, mark_child, new_birth
from birthmark.children.installation import open_installation
from birthmark.children.spawning import Spawner
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import ExitStatus
from birthmark.platforms import load
from birthmark.supervisor.orphans import OrphanReaper
from tests.supervisor.household import WITHIN_S, python
from tests.supervisor.outpost import outpost

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="subreapers are Linux's")

# Lets a daemon go, which waits for a word on a fifo and ends.
ESCAPE = """
import os, sys, time
fifo, told = sys.argv[1], sys.argv[2]
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    with open(told, "w") as file: file.write(str(os.getpid()))
    os.write(2, b"escaped\\n")
    os.open(fifo, os.O_RDONLY)
    os._exit(9)
os.wait()
while True: time.sleep(60)
"""


def test_a_daemon_that_fell_to_the_supervisor_is_reaped_when_it_ends(tmp_path: Path) -> None:
    fifo, told = str(tmp_path / "fifo"), tmp_path / "pid"
    os.mkfifo(fifo)
    said: dict[str, object] = {
        "name": "one",
        "command": python(ESCAPE, fifo, str(told)),
        "says": "escaped",
    }
    with outpost([said]) as post:
        assert "up" in post.hear()
        pid = int(told.read_text())
        assert load().parent_of(pid) == post.process.pid
        os.close(os.open(fifo, os.O_WRONLY))
        until_reaped(pid)
        assert post.process.stdin is not None
        post.process.stdin.close()
        assert post.process.wait(WITHIN_S) == 0


def until_reaped(pid: int) -> None:
    """Wait until not even a zombie has that number; a pidfd tells of exits only, so it is looked for."""
    deadline = time.monotonic() + WITHIN_S
    while load().start_ticks_of(pid) is not None:
        assert time.monotonic() < deadline, "nobody reaps it"
        time.sleep(0.005)


def test_children_that_somebody_waits_for_are_left_to_them() -> None:
    reaper = OrphanReaper()
    birth = new_birth()
    with Spawner() as spawner:
        command = mark_child(
            Command("cat", stdin=Stdio.PIPE),
            ChildKind.MCP,
            "one",
            installation=open_installation().id,
            birth=birth,
        )
        with reaper.birth_under_way() as leaders:
            child = spawner.spawn_owned_supervised(command)
            leaders.add(child.pid)
        # Another's child, with no tag on it.
        with subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]) as theirs:
            child.close_stdin()
            until_zombies(child.pid, theirs.pid)
            assert reaper.reap() == 0
            assert child.poll() == ExitStatus(code=0)
            assert theirs.wait(WITHIN_S) == 7


def until_zombies(*pids: int) -> None:
    """Wait until all of them have exited, unreaped."""
    for pid in pids:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_tagged_child_that_nobody_claims_is_reaped_and_counted() -> None:
    reaper = OrphanReaper()
    with Spawner() as spawner:
        command = mark_child(
            Command("true"), ChildKind.MCP, "one", installation=open_installation().id, birth=new_birth()
        )
        with reaper.birth_under_way() as leaders:
            child = spawner.spawn_owned_supervised(command)
            leaders.add(child.pid)
        until_zombies(child.pid)
        assert reaper.reap() == 0
        reaper.forget(child.pid)
        assert reaper.reap() == 1
        assert reaper.reaped == 1
