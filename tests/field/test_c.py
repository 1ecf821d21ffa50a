"""Field cases: zombies are dead for users and present for numbers."""

from __future__ import annotations

import anyio
import pytest

from birthmark import NotRunning, Termination, is_running, is_zombie, stop_owned, terminate_gracefully
from birthmark.core.markers import ChildKind
from birthmark.testing.puppet import puppet

pytestmark = pytest.mark.anyio

CORPSE = """
pid = os.fork()
if pid == 0: os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
tell(pid); obey()
"""
"""A parent that lets its dead child lie."""


async def test_c4_a_zombie_under_a_living_parent_is_told_from_a_process_and_nothing_waits_for_it() -> None:
    with puppet(CORPSE) as parent:
        corpse = parent.hear_pid()
        assert is_zombie(corpse)
        assert not await is_running(corpse)
        with anyio.fail_after(5):
            assert await terminate_gracefully(corpse, 3600) is Termination.ALREADY_EXITED
        parent.ask()


async def test_c5_a_stop_of_a_child_that_has_exited_ends_at_once() -> None:
    with puppet("ready()") as child:
        child.wait_exited()
        with anyio.fail_after(5):
            assert await stop_owned(child.pid, ChildKind.MCP, "time", 3600) == NotRunning(child.pid)


async def test_c6_an_exit_is_seen_also_when_the_starter_never_waits() -> None:
    script = """
pid = os.fork()
if pid == 0: signal.pause()
tell(pid)
signal.pause()
"""
    with puppet(script) as starter:
        pid = starter.hear_pid()
        with anyio.fail_after(10):
            assert await terminate_gracefully(pid, 3600) is Termination.EXITED
        assert is_zombie(pid)
        assert not await is_running(pid)
