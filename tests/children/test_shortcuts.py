"""Where the usual case is answered cheaply, it is answered the same. Real processes."""

from __future__ import annotations

import os
import sys

import anyio
import pytest

from birthmark.children.command import Command, mark_child, new_birth
from birthmark.children.control import terminate_gracefully
from birthmark.children.proving import prove
from birthmark.children.spawning import Spawner
from birthmark.core.identity import Verdict
from birthmark.core.judging import judge
from birthmark.core.markers import ChildKind, mark_block
from birthmark.core.outcomes import Termination
from birthmark.core.service import InstallationId
from birthmark.errors import ProcessGone
from birthmark.platforms import load
from tests.conftest import LINUX

pytestmark = pytest.mark.skipif(not LINUX, reason="processes are started on Linux here")

OWNER = InstallationId("a" * 32)


def sleeper() -> Command:
    return mark_child(Command("/bin/sleep", "60"), ChildKind.MCP, "näme of it", installation=OWNER)


def test_a_childs_environment_begins_with_the_block_its_identity_is_compared_with() -> None:
    with Spawner() as spawner, spawner.spawn_owned_supervised(sleeper()) as child:
        assert child.birth is not None
        block = mark_block(kind=ChildKind.MCP, service="näme of it", installation=OWNER, birth=child.birth)
        assert prove(child.identity).verdict is Verdict.SAME  # looks until its environment is in place
        with load().pin(child.pid) as pinned:
            seen = load().observe(pinned)
        assert seen is not None
        assert seen.environ.startswith(block)
        assert judge(child.identity, seen).verdict is Verdict.SAME


def test_what_is_held_without_a_look_knows_when_it_started_after_the_first() -> None:
    with Spawner() as spawner, spawner.spawn_owned_supervised(sleeper()) as child:
        with load().hold(child.pid) as held, load().pin(child.pid) as pinned:
            seen = load().observe(held)
            assert seen is not None
            assert held.start_ticks == pinned.start_ticks == seen.start_ticks


def test_nobody_can_be_held_who_is_reaped() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    with pytest.raises(ProcessGone):
        load().hold(pid)


def test_a_fork_never_has_the_births_its_parent_holds_ready() -> None:
    new_birth()  # from here on some are held ready
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, "".join(new_birth() for _ in range(8)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="ascii") as file:
        text = file.read()
    os.waitpid(pid, 0)
    theirs = {text[at : at + 32] for at in range(0, len(text), 32)}
    assert len(theirs) == 8
    assert theirs.isdisjoint(new_birth() for _ in range(300))


@pytest.mark.anyio
async def test_two_stops_of_one_process_both_see_it_go() -> None:
    # It ends on its first SIGTERM a little later, so that both are waiting when it does.
    script = "import signal, sys, threading\n"
    script += "signal.signal(15, lambda *_: threading.Timer(0.2, lambda: signal.raise_signal(9)).start())\n"
    script += "print('ready', flush=True)\nwhile True: signal.pause()\n"
    from birthmark.children.command import Stdio

    with Spawner() as spawner:
        command = mark_child(
            Command(sys.executable, "-I", "-S", "-c", script, stdout=Stdio.PIPE),
            ChildKind.MCP,
            "slow",
            installation=OWNER,
        )
        with spawner.spawn_owned_supervised(command) as child:
            assert child.stdout is not None
            assert child.stdout.read(6) == b"ready\n"
            found: list[Termination] = []

            async def stop() -> None:
                found.append(await terminate_gracefully(child.pid, 5))

            with anyio.fail_after(5):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(stop)
                    tasks.start_soon(stop)
            assert found == [Termination.EXITED, Termination.EXITED]
