"""Field cases: parent-death traps. Hosts are really killed, at seeded random moments."""

from __future__ import annotations

import ctypes
import os
import random
import select
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from birthmark import (
    BirthId,
    Child,
    ChildKind,
    Command,
    Spawner,
    Stdio,
    find_carriers,
    mark_child,
    open_installation,
)
from birthmark.platforms import load
from birthmark.testing.puppet import Puppet, puppet, wait_exited
from tests.field.staging import python, read

ANSWER = "ready()\nfor line in sys.stdin: ready()"
PR_SET_CHILD_SUBREAPER = 36


def test_f1_children_of_a_hundred_short_lived_threads_all_live() -> None:
    children: list[Child] = []
    with Spawner() as spawner:

        def start() -> None:
            code = "import os, sys\nos.write(1, b'R')\nfor line in sys.stdin: os.write(1, b'R')"
            command = Command(sys.executable, "-I", "-S", "-c", code, stdin=Stdio.PIPE, stdout=Stdio.PIPE)
            children.append(spawner.spawn_owned_supervised(mark_child(command, ChildKind.MCP, "short")))

        for _ in range(100):
            thread = threading.Thread(target=start)
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
        assert len(children) == 100
        for child in children:
            assert read(child, 1) == b"R"
            assert child.stdin is not None
            child.stdin.write(b"?\n")
            assert read(child, 1) == b"R", "an answer: it lives"
            child.close()
        spawner.close(children="stop")


@pytest.mark.parametrize("linger_s", [0, 0.01, 0.1, 0.5])
def test_f2_f6_a_child_outlives_its_launching_thread_whenever_that_ends(linger_s: float) -> None:
    children: list[Child] = []
    with Spawner() as spawner:

        def start() -> None:
            code = "import os, sys\nos.write(1, b'R')\nfor line in sys.stdin: os.write(1, b'R')"
            command = Command(sys.executable, "-c", code, stdin=Stdio.PIPE, stdout=Stdio.PIPE)
            children.append(spawner.spawn_owned_supervised(command))
            # The time the thread lingers is the case; nothing is concluded from it.
            time.sleep(linger_s)

        thread = threading.Thread(target=start)
        thread.start()
        thread.join(10)
        [child] = children
        assert read(child, 1) == b"R"
        assert child.stdin is not None
        child.stdin.write(b"?\n")
        assert read(child, 1) == b"R"
        child.close()
        spawner.close(children="stop")


HOST = """
from birthmark import Command, Spawner, Stdio, ChildKind, mark_child
import json
options = json.loads(sys.argv[1])
words = options.pop("words")
command = mark_child(Command(*words, **options), ChildKind.MCP, "case")
child = Spawner().spawn_owned_supervised(command)
tell([child.pid, child.birth, child.unarmed_reason])
stay()
"""


def told(host: Puppet) -> tuple[int, BirthId, str | None]:
    heard = host.hear()
    assert isinstance(heard, list)
    return int(heard[0]), BirthId(heard[1]), heard[2]


@pytest.mark.root
def test_f3_a_child_of_another_user_dies_with_its_parent() -> None:
    import json

    options = json.dumps({"words": ["/bin/sleep", "300"], "user": 65534})
    with puppet(HOST, argv=[options], env=dict(os.environ)) as host:
        pid, _, unarmed = told(host)
        assert unarmed is None
        with load().pin(pid) as child:
            os.kill(host.pid, signal.SIGKILL)
            wait_exited(child)


@pytest.mark.root
def test_f4_a_program_the_kernel_disarms_is_said_to_be_so_and_found_at_the_next_start(tmp_path: Path) -> None:
    import json

    if "NoNewPrivs:\t1" in Path("/proc/self/status").read_text():
        pytest.skip("no_new_privs is set: no exec changes credentials here")
    # Set-group-id to a group that is not root's, so that the exec is a change of credentials.
    program = tmp_path / "sleeper"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    os.chown(program, 0, 65534)
    program.chmod(0o755 | stat.S_ISGID)
    options = json.dumps({"words": [str(program), "300"]})
    with puppet(HOST, argv=[options], env=dict(os.environ)) as host:
        pid, birth, unarmed = told(host)
        assert unarmed == "the program is set-group-id"
        with load().pin(pid) as child:
            os.kill(host.pid, signal.SIGKILL)
            host.wait_exited()
            carriers = find_carriers([birth], open_installation().id)
            if load().exited(child):
                pytest.fail("the kernel did not disarm it: the file system is mounted nosuid?")
            assert [carrier.pid for carrier in carriers] == [pid]
            from birthmark.core.outcomes import Basis, Warrant

            load().deliver(child, signal.SIGKILL, Warrant(basis=Basis.MEMBER, asked_by="test"))
            wait_exited(child)


def test_f5_f7_no_child_survives_a_host_killed_at_any_moment_of_its_start() -> None:
    """We are the subreaper outside, so that no orphan's parent is pid 1, which the textbook check looks for."""
    script = """
import os, sys
from birthmark import Command, Spawner
spawner = Spawner()
spawner.spawn_owned_supervised(Command("/bin/true")).wait(5)
os.write(1, b"R")
for _ in range(1000):
    spawner.spawn_owned_supervised(Command("/bin/sleep", "300"))
"""
    dice = random.Random(20261129)
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        for _ in range(25):
            host = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
            assert host.stdout is not None
            assert select.select([host.stdout], [], [], 20)[0]
            assert os.read(host.stdout.fileno(), 1) == b"R"
            # A seeded moment within its starts; nothing is concluded from the length.
            end = time.perf_counter() + dice.uniform(0, 0.02)
            while time.perf_counter() < end:
                pass
            host.kill()
            host.wait(5)
            host.stdout.close()
            for pid in load().children_of(os.getpid()):
                with load().pin(pid) as orphan:
                    wait_exited(orphan)
                os.waitpid(pid, 0)
    finally:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def test_f8_a_child_serves_on_while_two_hundred_threads_come_and_go() -> None:
    with python(ANSWER) as child:
        assert child.stdin is not None
        for _ in range(200):
            thread = threading.Thread(target=lambda: None)
            thread.start()
            child.stdin.write(b"?\n")
            assert read(child, 1) == b"R"
            thread.join(5)
