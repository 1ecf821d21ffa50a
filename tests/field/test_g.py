"""Field cases: stops that hang, escalate wrongly or signal twice."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from birthmark import (
    Child,
    ChildKind,
    Command,
    Hurry,
    Receipt,
    Session,
    Spawner,
    Stdio,
    StopPolicy,
    StopTimedOut,
    Termination,
    find_carriers,
    mark_child,
    stop_set,
    stop_set_now,
)
from birthmark.children.stopping import terminate_steps
from birthmark.children.waiting import run_now
from birthmark.core.outcomes import Basis, SignalRecord, Warrant
from birthmark.platforms import load
from birthmark.platforms.contract import add_audit_sink
from tests.field.staging import PATIENT, QUICK, python, read, shell, wait_lifeline_end

DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nready()\nwhile True: signal.pause()"


def test_g1_a_child_that_ignores_every_request_is_killed_after_its_grace() -> None:
    script = "for s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\nready()\nwhile True: signal.pause()"
    with python(script) as child:
        receipt = stop_set_now(child.identity, QUICK, asked_by="test", held=child.pinned)
        assert receipt.termination is Termination.KILLED
        assert child.wait(5).signal == signal.SIGKILL


@pytest.mark.anyio
async def test_g2_a_second_forced_stop_shortens_the_first_and_both_get_the_verdict() -> None:
    receipts: list[Receipt] = []
    with python(DEAF) as child, Hurry() as hurry:

        async def first() -> None:
            policy = StopPolicy(term_grace_s=600)
            receipts.append(
                await stop_set(child.identity, policy, asked_by="first", child=child, hurry=hurry)
            )

        async def second() -> None:
            hurry.say()
            receipts.append(await stop_set(child.identity, QUICK, asked_by="second"))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(first)
                await anyio.lowlevel.checkpoint()
                tasks.start_soon(second)
        assert not any(receipt.survivors for receipt in receipts)
        assert not child.is_running()


@pytest.mark.root
def test_g3_a_process_that_cannot_die_is_reported_and_a_later_stop_succeeds() -> None:
    with frozen() as freezer, python("ready(); signal.pause()") as child:
        freezer.take(child.pid)
        policy = StopPolicy(term_grace_s=0.1, settle_s=0.3)
        with pytest.raises(StopTimedOut) as caught:
            stop_set_now(child.identity, policy, asked_by="test", held=child.pinned)
        assert caught.value.survivors == (child.pid,)
        assert caught.value.receipt is not None
        [member] = caught.value.receipt.survivors
        assert [name for name, _ in member.sent] == ["SIGTERM", "SIGKILL"]
        assert member.why is not None
        assert "state" in member.why or "uninterruptible" in member.why
        freezer.thaw()
        child.wait(5)
        assert stop_set_now(child.identity, policy, asked_by="test").termination is Termination.ALREADY_EXITED


class Freezer:
    """A leaf of the version 1 freezer: what is in it does not even die of SIGKILL."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, pid: int) -> None:
        (self._folder / "cgroup.procs").write_text(str(pid))
        (self._folder / "freezer.state").write_text("FROZEN")
        # The kernel says when all of it stands still.
        for _ in range(1000):
            if (self._folder / "freezer.state").read_text().strip() == "FROZEN":
                return
        raise TimeoutError("the freezer did not freeze")

    def thaw(self) -> None:
        (self._folder / "freezer.state").write_text("THAWED")


@contextmanager
def frozen() -> Iterator[Freezer]:
    root = Path("/sys/fs/cgroup/freezer")
    folder = root / f"birthmark-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as err:
        pytest.skip(f"no version 1 freezer to make an unkillable process with: {err}")
    try:
        yield Freezer(folder)
    finally:
        (folder / "freezer.state").write_text("THAWED")
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (root / "cgroup.procs").write_text(pid)
        folder.rmdir()


def test_g4_a_stopped_process_gets_term_then_cont_and_leaves_by_itself() -> None:
    with python("signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); ready(); sys.stdin.read()") as child:
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        receipt = stop_set_now(child.identity, PATIENT, asked_by="test", held=child.pinned)
        assert receipt.termination is Termination.EXITED
        assert child.wait(5).code == 3


HOST_IN_TERMINAL = '''
import os, select, signal, sys
from birthmark import Command, Spawner, Stdio
code = """
import os, signal, sys
signal.signal(2, lambda *_: os.write(1, b'I'))
os.write(1, b'R')
sys.stdin.readline()
os.write(1, b'Q')
sys.stdin.read()
"""
interrupted = []
signal.signal(signal.SIGINT, lambda *_: interrupted.append(1))
child = Spawner().spawn_owned_supervised(Command(sys.executable, "-c", code, stdin=Stdio.PIPE, stdout=Stdio.PIPE))
assert child.stdout.read(1) == b"R"
os.write(1, b"READY")
while not interrupted: signal.pause()
child.stdin.write(b"?\\n")
os.write(1, b"ANSWER:" + child.stdout.read(1))
child.close_stdin()
child.wait(5)
'''


def test_g5_an_interrupt_from_the_terminal_does_not_reach_a_supervised_child() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", HOST_IN_TERMINAL])
    try:
        await_words(terminal, b"READY")
        os.write(terminal, b"\x03")
        # Q is its answer to the question after the interrupt; an I before it would be the interrupt itself.
        await_words(terminal, b"ANSWER:Q")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def await_words(fd: int, words: bytes) -> bytes:
    seen = b""
    while words not in seen:
        assert select.select([fd], [], [], 20)[0], f"only {seen!r} came"
        seen += os.read(fd, 4096)
    return seen


def test_g6_a_child_that_dies_of_a_second_request_gets_only_one() -> None:
    script = """
count = []
def save(*_):
    count.append(1)
    if len(count) == 2: os._exit(9)
    ready()
signal.signal(signal.SIGTERM, save)
ready()
sys.stdin.readline()
sys.exit(0)
"""
    with python(script) as child:
        steps = terminate_steps(
            child.pinned, 5, group=True, warrant=Warrant(basis=Basis.CHILD, asked_by="test")
        )
        next(steps)  # the request is out
        assert read(child, 1) == b"R", "saving"
        assert child.stdin is not None
        child.stdin.write(b"done\n")
        receipt = run_now(steps)
        assert receipt.termination is Termination.EXITED
        assert child.wait(5).code == 0


def test_g7_an_exit_is_seen_from_the_process_although_a_grandchild_holds_its_pipe() -> None:
    with shell("sleep 300 & exit 7") as child:
        assert child.wait(5).code == 7


def test_g8_who_holds_the_pipe_of_an_exited_child_can_be_told() -> None:
    with shell("sleep 300 & echo $!; exit 0") as child:
        holder = int(read(child, 64))
        child.wait(5)
        assert child.birth is not None
        assert child.identity.installation is not None
        carriers = find_carriers([child.birth], child.identity.installation)
        assert [carrier.pid for carrier in carriers] == [holder]
        stop_set_now(child.identity, PATIENT, asked_by="test")
        wait_lifeline_end(child)


@pytest.mark.anyio
async def test_g9_g15_many_deaf_services_are_stopped_side_by_side_and_the_record_says_whom_it_waited_for() -> (
    None
):
    records: list[SignalRecord] = []
    receipts: dict[int, Receipt] = {}
    with Many(10) as children:
        remove = add_audit_sink(records.append)

        async def stop(number: int) -> None:
            child = children[number]
            receipts[number] = await stop_set(child.identity, QUICK, asked_by="stop all", child=child)

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(stop, number)
        remove()
        sent = [record.signal for record in records if record.result.value == "sent"]
        # Side by side, not one after another: everybody was asked before anybody was killed.
        assert sent.index(signal.SIGKILL) >= 10
        assert all(receipt.termination is Termination.KILLED for receipt in receipts.values())
        assert all(not child.is_running() for child in children)
        assert all(receipt.members[0].sent[-1][0] == "SIGKILL" for receipt in receipts.values())


class Many:
    """Ten deaf children under one spawner."""

    def __init__(self, count: int) -> None:
        self._spawner = Spawner()
        self._children: list[Child] = []
        for number in range(count):
            code = "import os, signal\nready = lambda: os.write(1, b'R')\n" + DEAF
            command = Command(sys.executable, "-I", "-S", "-c", code, stdout=Stdio.PIPE)
            self._children.append(
                self._spawner.spawn_owned_supervised(mark_child(command, ChildKind.MCP, f"deaf {number}"))
            )
        for child in self._children:
            assert read(child, 1) == b"R"

    def __enter__(self) -> list[Child]:
        return self._children

    def __exit__(self, *_: object) -> None:
        self._spawner.close(children="stop")
        for child in self._children:
            child.close()


def test_g11_a_child_in_our_own_group_is_never_signalled_as_a_group() -> None:
    with python("ready(); sys.stdin.read()", session=Session.INHERIT) as child:
        assert os.getpgid(child.pid) == os.getpgrp()
        with load().pin(child.pid) as pinned:
            steps = terminate_steps(
                pinned, 5, group=True, warrant=Warrant(basis=Basis.CHILD, asked_by="test")
            )
            receipt = run_now(steps)
        assert receipt.notes == ["not a group leader: only the process itself was stopped"]
        assert [member.pid for member in receipt.members] == [child.pid]


def test_g11_our_own_group_is_refused_whoever_asks() -> None:
    code = """
import os
os.setpgid(0, 0)
pid = os.fork()
if pid == 0:
    from birthmark.platforms import load
    from birthmark.core.outcomes import Basis, Warrant
    from birthmark.errors import NotSignalable
    with load().pin(os.getpgrp()) as leader:
        try:
            load().deliver(leader, 15, Warrant(basis=Basis.CALLER, asked_by="test"), group=True)
        except NotSignalable as err:
            print(err.reason, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("it is an ancestor of ours", "it is our own process group")


def test_g12_a_tree_that_forks_while_it_is_stopped_is_ended_whole() -> None:
    with shell("trap '' TERM; echo R; while :; do sleep 300 & sleep 0.01; done", readies=1) as child:
        receipt = stop_set_now(child.identity, QUICK, asked_by="test", held=child.pinned)
        assert not receipt.survivors
        wait_lifeline_end(child)
        assert child.birth is not None
        assert child.identity.installation is not None
        assert find_carriers([child.birth], child.identity.installation) == []


def test_g13_signals_go_through_system_calls_and_never_through_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "called"
    for name in ("kill", "pkill", "killall", "ps", "lsof"):
        fake = tmp_path / name
        fake.write_text(f'#!/bin/sh\necho "$0 $*" >> {log}\n')
        fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with python(DEAF) as child:
        stop_set_now(child.identity, QUICK, asked_by="test", held=child.pinned)
        child.wait(5)
    assert not log.exists()


def test_g14_end_of_file_comes_before_any_signal_and_cat_needs_none() -> None:
    with shell("echo R; exec cat", readies=1) as child:
        receipt = stop_set_now(
            child.identity, PATIENT, asked_by="test", held=child.pinned, close_stdin=child.close_stdin
        )
        assert receipt.members[0].sent == []
        assert child.wait(5).code == 0
