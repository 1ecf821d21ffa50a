"""Stops of whole sets, blocking and asynchronous: what is found, what is sent to whom, and who is spared."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import anyio
import anyio.lowlevel
import pytest

from birthmark import (
    Child,
    ChildKind,
    Command,
    Hurry,
    IdentityMismatch,
    Receipt,
    Session,
    Spawner,
    Stdio,
    StopPolicy,
    Termination,
    find_carriers,
    mark_child,
    stop_set,
    stop_set_now,
)
from birthmark.core.outcomes import SignalRecord
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned, add_audit_sink
from birthmark.testing.puppet import puppet

QUICK = StopPolicy(stdin_grace_s=0.3, term_grace_s=0.3)
PATIENT = StopPolicy(stdin_grace_s=5, term_grace_s=5)


@contextmanager
def born(script: str, *, readies: int = 1, program: str = sys.executable) -> Iterator[Child]:
    """Spawn a marked child in a session of its own, and wait for as many R bytes as processes say so."""
    prelude = "import os, signal, sys, time\nready = lambda: os.write(1, b'R')\n"
    words = ["-c", prelude + script] if program == sys.executable else ["-c", script]
    command = Command(program, *words, stdin=Stdio.PIPE, stdout=Stdio.PIPE, session=Session.NEW_SESSION)
    with (
        Spawner() as spawner,
        spawner.spawn_owned_supervised(mark_child(command, ChildKind.MCP, "set")) as child,
    ):
        assert child.stdout is not None
        for _ in range(readies):
            assert child.stdout.read(1) == b"R"
        try:
            yield child
        finally:
            stop_set_now(child.identity, QUICK, asked_by="the end of a test", held=held(child))
            child.poll()


def held(child: Child) -> Pinned | None:
    return child.pinned if child.is_running() else None


def assert_gone(child: Child) -> None:
    """The lifeline ends when the last holder is gone, and nobody carries the birth any more."""
    assert child.stdout is not None
    assert child.stdout.readall() == b""
    assert child.birth is not None
    assert child.identity.installation is not None
    assert find_carriers([child.birth], child.identity.installation) == []


def test_a_member_in_a_session_of_its_own_is_found_and_stopped() -> None:
    with born("os.fork() or os.setsid(); ready(); signal.pause()", readies=2) as child:
        receipt = stop_set_now(child.identity, PATIENT, asked_by="test", held=child.pinned)
        assert receipt.termination is Termination.EXITED
        assert len(receipt.members) == 2
        assert_gone(child)


def test_a_daemon_whose_parents_are_gone_is_found_by_its_mark() -> None:
    script = """
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    ready(); signal.pause()
os.wait(); ready(); signal.pause()
"""
    with born(script, readies=2) as child:
        receipt = stop_set_now(child.identity, PATIENT, asked_by="test", held=child.pinned)
        assert {m.found.value for m in receipt.members} >= {"leader", "mark"}
        assert_gone(child)


def test_a_daemon_that_cleared_its_environment_is_found_by_its_tag() -> None:
    script = """
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    os.execve(sys.executable, [sys.executable, "-I", "-c", "import os, signal; os.write(1, b'R'); signal.pause()"], {})
os.wait(); ready(); signal.pause()
"""
    with born(script, readies=2) as child:
        receipt = stop_set_now(child.identity, PATIENT, asked_by="test", held=child.pinned)
        assert "tag" in {m.found.value for m in receipt.members}
        assert_gone(child)


def test_what_a_dead_leader_left_is_stopped_by_its_record_alone() -> None:
    script = "if os.fork() == 0:\n os.setsid(); ready(); signal.pause()\nready(); sys.stdin.read()"
    with born(script, readies=2) as child:
        child.close_stdin()
        child.wait(5)
        receipt = stop_set_now(child.identity, PATIENT, asked_by="test")
        assert [m.found.value for m in receipt.members] == ["mark"]
        assert receipt.termination is Termination.EXITED
        assert_gone(child)


def test_end_of_file_comes_first_and_an_obedient_server_gets_no_signal() -> None:
    with born("ready(); sys.stdin.read(); sys.exit(4)") as child:
        receipt = stop_set_now(
            child.identity, PATIENT, asked_by="test", held=child.pinned, close_stdin=child.close_stdin
        )
        assert [m.sent for m in receipt.members] == [[]]
        assert child.wait(5).code == 4


def test_a_server_that_ignores_end_of_file_is_asked_then_killed() -> None:
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready()\nwhile True: signal.pause()"
    with born(script) as child:
        receipt = stop_set_now(
            child.identity, QUICK, asked_by="test", held=child.pinned, close_stdin=child.close_stdin
        )
        assert [name for name, _ in receipt.members[0].sent] == ["SIGTERM", "SIGKILL"]
        assert receipt.termination is Termination.KILLED
        assert child.wait(5).signal == signal.SIGKILL


def test_a_set_that_keeps_forking_while_it_is_stopped_is_ended_all_the_same() -> None:
    script = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
ready()
for _ in range(100000):
    if os.fork() == 0:
        os.setsid()
        time.sleep(30)
        os._exit(0)
    time.sleep(0.002)
"""
    with born(script) as child:
        receipt = stop_set_now(child.identity, QUICK, asked_by="test", held=child.pinned)
        assert receipt.termination is Termination.KILLED
        assert not receipt.survivors
        assert_gone(child)


def test_each_member_gets_each_signal_of_the_ladder_once() -> None:
    records: list[SignalRecord] = []
    with born("os.fork(); os.fork(); ready(); signal.pause()", readies=4) as child:
        remove = add_audit_sink(records.append)
        receipt = stop_set_now(child.identity, PATIENT, asked_by="the test", held=child.pinned)
        remove()
        assert len(receipt.members) == 4
        assert all([name for name, _ in member.sent] == ["SIGTERM"] for member in receipt.members)
        assert [(r.pid, r.scope.value, r.asked_by, r.result.value) for r in records] == [
            (child.pid, "group", "the test", "sent")
        ]


def test_a_record_of_a_recycled_pid_signals_nobody() -> None:
    with puppet() as stranger:
        stranger.wait_ready()
        with born("ready(); signal.pause()") as child:
            forged = replace(child.identity, pid=stranger.pid)
            receipt = stop_set_now(replace(forged, birth=None), QUICK, asked_by="test")
            assert receipt.members == []
            stranger.ask()
            assert child.is_running()


def test_a_record_that_can_be_neither_proven_nor_disproven_signals_nobody() -> None:
    with puppet(under=("env", "-i")) as stranger:
        stranger.wait_ready()
        seen = load().observe(stranger.pinned)
        assert seen is not None
        unproven = replace(seen.identity(), inode=None)
        with pytest.raises(IdentityMismatch) as caught:
            stop_set_now(unproven, QUICK, asked_by="test")
        assert caught.value.proof.verdict.value == "unknown"
        stranger.ask()


@pytest.mark.anyio
async def test_a_stop_that_is_hurried_gives_up_its_patience() -> None:
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready()\nwhile True: signal.pause()"
    with born(script) as child, Hurry() as hurry:
        receipts: list[Receipt] = []

        async def stop() -> None:
            policy = StopPolicy(term_grace_s=3600)
            receipts.append(await stop_set(child.identity, policy, asked_by="test", child=child, hurry=hurry))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stop)
                await anyio.lowlevel.checkpoint()
                hurry.say()
                hurry.say()
        assert receipts[0].termination is Termination.KILLED
        assert receipts[0].members[0].end == "signal 9 (SIGKILL)"


@pytest.mark.anyio
async def test_many_deaf_children_are_stopped_in_one_grace_together() -> None:
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready()\nwhile True: signal.pause()"
    spawner = Spawner()
    children = []
    for number in range(5):
        words = "import os, signal\nready = lambda: os.write(1, b'R')\n" + script
        command = Command(sys.executable, "-c", words, stdout=Stdio.PIPE)
        child = spawner.spawn_owned_supervised(mark_child(command, ChildKind.MCP, f"deaf {number}"))
        assert child.stdout is not None
        assert child.stdout.read(1) == b"R"
        children.append(child)
    receipts: list[Receipt] = []

    async def stop(target: Child) -> None:
        receipts.append(await stop_set(target.identity, QUICK, asked_by="test", child=target))

    async with anyio.create_task_group() as tasks:
        for child in children:
            tasks.start_soon(stop, child)
    assert [r.termination for r in receipts] == [Termination.KILLED] * 5
    for child in children:
        assert child.poll() is not None
        child.close()
    spawner.close()


def test_an_inner_birth_is_part_of_the_outer_set(monkeypatch: pytest.MonkeyPatch) -> None:
    script = """
import birthmark
from birthmark import Command, ChildKind, Session, Spawner, Stdio, mark_child
code = "import os, signal; os.write(1, b'R'); signal.pause()"
inner = Command(sys.executable, "-c", code, stdout=Stdio.INHERIT, session=Session.NEW_SESSION, parent_death=None)
child = Spawner().spawn_owned_supervised(mark_child(inner, ChildKind.MCP, "inner", installation=sys.argv[1]))
ready()
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
signal.pause()
"""
    from birthmark import open_installation

    script = script.replace("sys.argv[1]", repr(str(open_installation().id)))
    with born(script, readies=2) as child:
        assert child.birth is not None
        nested = [c for c in find_carriers([child.birth], open_installation().id) if c.nested is not None]
        assert len(nested) == 1
        receipt = stop_set_now(child.identity, PATIENT, asked_by="test", held=child.pinned)
        assert len(receipt.members) == 2
        assert_gone(child)
