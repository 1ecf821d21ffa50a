"""Field cases, descriptors: a child has 0, 1, 2 and what was declared, however deep. Real sockets and processes."""

from __future__ import annotations

import os
import sys

import pytest

from birthmark.children.child import Child
from birthmark.children.command import Command, Stdio
from birthmark.children.ports import PortState, holders_of
from birthmark.children.spawning import Spawner
from tests.platforms.listening import line_from, listening, port_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descriptors are looked up in Linux's procfs")

VIEWER = "import os, sys\nos.write(1, b'%d\\n' % os.getpid())\nsys.stdin.read()\n"
"""A program that says its pid and leaves when its stdin ends."""

DAEMON = (
    "import os, sys\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "if os.fork(): os._exit(0)\n"
    "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])\n"
)
"""A launcher: what it starts is two levels down, in a session of its own, when it says its pid."""


def told_pid(child: Child) -> int:
    return int(line_from(child.stdout))


def descriptors_of(pid: int) -> set[int]:
    return {int(name) for name in os.listdir(f"/proc/{pid}/fd")}


def test_k3_an_inheritable_listener_of_ours_is_in_no_child() -> None:
    with listening() as server, Spawner() as spawner:
        server.set_inheritable(True)
        port = port_of(server)
        viewer = spawner.spawn_owned_supervised(
            Command(sys.executable, "-c", VIEWER, stdin=Stdio.PIPE, stdout=Stdio.PIPE)
        )
        assert told_pid(viewer) == viewer.pid
        answer = holders_of(port, all_holders=True)
        assert (answer.pids, answer.holders[0].shared) == ((os.getpid(),), False)
        assert descriptors_of(viewer.pid) == {0, 1, 2}
        server.close()
        assert holders_of(port, expected=viewer.pid).state is PortState.NOBODY
        assert viewer.is_running()
        viewer.close_stdin()
        viewer.wait(5)
        viewer.close()


def test_k3_a_declared_listener_is_inherited_and_the_heir_is_named() -> None:
    with listening() as server, Spawner() as spawner:
        port = port_of(server)
        heir = spawner.spawn_owned_supervised(
            Command(
                sys.executable,
                "-c",
                VIEWER,
                stdin=Stdio.PIPE,
                stdout=Stdio.PIPE,
                pass_fds={7: server.fileno()},
            )
        )
        assert told_pid(heir) == heir.pid
        answer = holders_of(port, expected=heir.pid, all_holders=True)
        assert answer.pids == (heir.pid, os.getpid())
        assert [holder.shared for holder in answer.holders] == [True, True]
        assert answer.holders[0].fds == (7,)
        server.close()
        [alone] = holders_of(port, all_holders=True).holders
        assert (alone.pid, alone.shared) == (heir.pid, False)
        heir.close_stdin()
        heir.wait(5)
        heir.close()


def test_k6_a_daemon_two_levels_down_has_only_declared_descriptors() -> None:
    with listening() as server, listening() as declared, Spawner() as spawner:
        server.set_inheritable(True)
        launcher = spawner.spawn_owned_supervised(
            Command(
                sys.executable,
                "-c",
                DAEMON,
                VIEWER,
                stdin=Stdio.PIPE,
                stdout=Stdio.PIPE,
                pass_fds={5: declared.fileno()},
                parent_death=None,
            )
        )
        daemon = told_pid(launcher)
        try:
            assert daemon != launcher.pid
            launcher.wait(5)
            assert descriptors_of(daemon) == {0, 1, 2, 5}
            assert holders_of(port_of(server), all_holders=True).pids == (os.getpid(),)
            assert holders_of(port_of(declared), expected=daemon).holders[0].fds == (5,)
        finally:
            launcher.close_stdin()
        assert line_from(launcher.stdout) == b""  # end-of-file: the daemon has gone
        launcher.close()
