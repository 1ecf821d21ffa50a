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
    StopTimedOut,
    Termination,
    find_carriers,
    mark_child,
    open_installation,
    stop_set,
    stop_set_now,
)
from birthmark.children.stopping import set_steps, terminate_steps
from birthmark.children.waiting import run_now, wait_for
from birthmark.core.markers import mark_entries
from birthmark.core.outcomes import Basis, SignalRecord, Warrant
from birthmark.core.service import BirthId, ServiceName
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned, add_audit_sink
from birthmark.testing.puppet import Puppet, puppet
from tests.contracts.worlds import audit
from tests.field.test_g import frozen
from tests.namespaces import run_in_namespaces, run_python

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


# -- nobody beside the set, and all of it ---------------------------------------------


RECYCLED = """
from birthmark.children.members import set_of

def recycle(pid, body):
    '''Have body() run in a new process under the number of one that was reaped.'''
    for _ in range(200):
        with open('/proc/sys/kernel/ns_last_pid', 'w') as file: file.write(str(pid - 1))
        reading, writing = os.pipe()
        born = os.fork()
        if not born:
            try: body(writing)
            finally: os._exit(0)
        if born == pid and os.read(reading, 1): return
        end(born)
    raise AssertionError('the number was not to be had')

def stranger(writing):
    os.setsid()
    if os.fork() == 0: pause(writing)
    signal.pause()

member = fork(pause)
held = linux.pin(member)
end(member)
# Without pidfds only a start time tells them apart, which is three ticks later for certain.
if held.fd is None: time.sleep(0.03)
recycle(member, stranger)
child, = linux.children_of(member)
"""


@pytest.mark.namespaces
def test_the_children_of_a_stranger_who_has_a_members_number_now_are_nobody_of_ours() -> None:
    run_in_namespaces(
        RECYCLED
        + "found = list(set_of(None, birth=None, installation=None)([held]))\n"
        + "assert found == [], found\n"
        + "found = list(set_of(held, birth=None, installation=None)([held]))\n"
        + "assert found == [], found\n"
        + "assert not linux.is_zombie(child)\n"
    )


def test_a_descendant_behind_a_member_of_the_group_is_found_at_the_first_look() -> None:
    # No mark, no tag: once the member between is gone, nothing would lead to it.
    script = """
if os.fork() == 0:
    pid = os.fork()
    if pid == 0:
        os.setsid(); ready(); signal.pause()
    tell(pid); signal.pause()
stay()
"""
    with puppet(script) as leader:
        leader.hear_pid()
        leader.wait_ready()
        need_pidfd(leader)
        seen = load().observe(leader.pinned)
        assert seen is not None
        receipt = stop_set_now(seen.identity(), PATIENT, asked_by="test", held=leader.pinned)
        assert [m.found.value for m in receipt.members] == ["leader", "group", "descendant"]
        leader.wait_tree_gone()


def test_the_descendants_of_a_descendant_with_a_birth_of_its_own_are_found_however_deep() -> None:
    inner = mark_entries(
        kind=ChildKind.MCP,
        service=ServiceName("x"),
        installation=open_installation().id,
        birth=BirthId("b" * 32),
    )
    deeper = {**inner, "BIRTHMARK_BIRTH": "c" * 32, "BIRTHMARK_PARENT": "b" * 32}
    script = f"""
inner, deeper = {dict(inner)!r}, {deeper!r}
inner["BIRTHMARK_PARENT"] = os.environ["BIRTHMARK_BIRTH"]
code = "import os, signal, sys; os.write(1, b'R'); signal.pause()"
for marks in (inner, deeper):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        os.execve(sys.executable, [sys.executable, "-I", "-c", code], marks)
    os.wait()
ready(); signal.pause()
"""
    with born(script, readies=3) as child:
        receipt = stop_set_now(child.identity, PATIENT, asked_by="test", held=child.pinned)
        assert len(receipt.members) == 3
        assert_gone(child)


def test_a_mark_behind_a_large_variable_is_found_all_the_same() -> None:
    # What a descendant makes of its environment need not begin with the mark; this one has lost its tag, too.
    script = """
import resource
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    resource.setrlimit(15, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    environ = {"LARGE": "x" * 100_000, **os.environ}
    os.execve(sys.executable, [sys.executable, "-I", "-c", "import os, signal; os.write(1, b'R'); signal.pause()"], environ)
os.wait(); ready(); signal.pause()
"""
    with born(script, readies=2) as child:
        receipt = stop_set_now(child.identity, PATIENT, asked_by="test", held=child.pinned)
        assert "mark" in {m.found.value for m in receipt.members}
        assert_gone(child)


def test_the_group_of_a_dead_leader_is_addressed_by_its_number_and_nothing_is_refused() -> None:
    with puppet("os.fork() or (ready(), signal.pause())") as leader:
        leader.wait_ready()
        need_pidfd(leader)
        seen = load().observe(leader.pinned)
        assert seen is not None
        leader.wait_exited()
        with audit() as records:
            receipt = stop_set_now(seen.identity(), PATIENT, asked_by="test", held=leader.pinned)
        assert receipt.termination is Termination.EXITED
        leader.wait_tree_gone()
    assert [(r.scope.value, r.result.value) for r in records] == [("group", "sent")]


def need_pidfd(leader: Puppet) -> None:
    """Skip the test, with the reason, where an unmarked process cannot be proven."""
    if leader.pinned.fd is None:
        pytest.skip("without pidfds nothing proves a process that carries neither mark nor tag")


def test_a_dead_process_that_is_not_the_recorded_one_gives_its_group_to_nobody() -> None:
    # A start time alone, of a zombie that shows neither inode nor tag, is no proof of whose group that is.
    with puppet("os.fork() or (ready(), signal.pause())") as stranger:
        stranger.wait_ready()
        seen = load().observe(stranger.pinned)
        assert seen is not None
        stranger.wait_exited()
        recorded = replace(seen.identity(), inode=None)
        with audit() as records:
            receipt = stop_set_now(recorded, QUICK, asked_by="test")
        assert receipt.members == []
        assert records == []


@pytest.mark.anyio
async def test_two_stops_of_one_set_at_once_both_end_and_agree() -> None:
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready()\nwhile True: signal.pause()"
    with born(script) as child:
        receipts: list[Receipt] = []

        async def stop() -> None:
            receipts.append(await stop_set(child.identity, QUICK, asked_by="test", child=child))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            tasks.start_soon(stop)
        assert len(receipts) == 2
        assert Termination.KILLED in {receipt.termination for receipt in receipts}


@pytest.mark.parametrize("how", ["set", "child"])
def test_a_leader_that_its_owner_reaps_meanwhile_is_gone_and_no_survivor(how: str) -> None:
    with born("signal.signal(signal.SIGTERM, signal.SIG_IGN); ready(); sys.stdin.read()") as child:
        if how == "set":
            steps = set_steps(child.identity, PATIENT, asked_by="test", held=child.pinned)
        else:
            steps = terminate_steps(
                child.pinned, 5, group=True, warrant=Warrant(basis=Basis.CHILD, asked_by="test"), insist=False
            )
        next(steps)
        child.close_stdin()
        child.wait(5)  # which closes its pin
        receipt = run_now(steps)
        assert receipt.termination is Termination.EXITED
        assert not receipt.survivors


def test_whoever_cannot_look_does_not_say_that_all_are_gone() -> None:
    if not load().capabilities().pidfd:
        pytest.skip("without pidfds each look at a child takes a descriptor, and the stop ends at once")
    out = run_python('''
from birthmark import Command, Spawner, StopPolicy, mark_child, stop_set_now, open_installation, Stdio
from birthmark.children.stopping import set_steps
from birthmark.children.waiting import run_now
import tempfile
os.environ['BIRTHMARK_HOME'] = tempfile.mkdtemp()
spawner = Spawner()
code = """import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork() or os.setsid()
os.write(1, b'R')
while True: signal.pause()
"""
command = Command(sys.executable, '-c', code, stdout=Stdio.PIPE)
child = spawner.spawn_owned_supervised(mark_child(command, ChildKind.MCP, 'x'))
assert child.stdout.read(1) + child.stdout.read(1) == b'RR'
policy = StopPolicy(term_grace_s=1, settle_s=1)

def full():
    taken = []
    try:
        while True: taken.append(os.dup(0))
    except OSError: return taken

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
child.identity, open_installation(), linux.capabilities()
# Before anything was sent: nothing is.
taken = full()
try: print(stop_set_now(child.identity, policy, asked_by='x', held=child.pinned).termination)
except LookFailed as err: print('could not look')
print(child.is_running())
for fd in taken: os.close(fd)
# In the middle: those who are known are dealt with, and it is said that there may be others.
steps = set_steps(child.identity, policy, asked_by='x', held=child.pinned)
next(steps)
taken = full()
try: print(run_now(steps).termination)
except LookFailed as err: print('could not look')
for fd in taken: os.close(fd)
print(child.is_running())
print(stop_set_now(child.identity, policy, asked_by='x').survivors)
child.wait(5)
child.close()
child.stdout.close()
spawner.close()
''')
    assert out.splitlines() == ["could not look", "True", "could not look", "False", "[]"]


@pytest.mark.root
def test_waiting_in_a_hurry_for_what_cannot_die_is_not_a_busy_loop() -> None:
    with frozen() as freezer, born("ready(); signal.pause()") as child, Hurry() as hurry:
        freezer.take(child.pid)
        policy = StopPolicy(term_grace_s=5, settle_s=0.3)
        steps = set_steps(child.identity, policy, asked_by="test", held=child.pinned, hurry=hurry)
        turns = 0
        with pytest.raises(StopTimedOut):
            wait = next(steps)
            hurry.say()
            while True:
                turns += 1
                wait_for(wait)
                wait = next(steps)
        freezer.thaw()
        # Two with pidfds, some dozen without; a busy loop makes thousands.
        assert turns < 100
