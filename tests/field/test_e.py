"""Field cases: recycled pids and wrong targets. Numbers are really given away, in a pid namespace of the test's own."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace

import pytest

from birthmark import ChildKind, NotOurs, Reason, Verdict, prove, stop_owned, stop_set_now
from birthmark.testing.puppet import puppet
from tests.field.staging import PATIENT, QUICK, RECYCLE, in_pid_namespace, python, shell
from tests.namespaces import need_pidfs_inode

RECYCLED = (
    RECYCLE
    + """
import anyio, json
from birthmark import ChildKind, Command, Spawner, StopPolicy, mark_child, prove, stop_owned, stop_set_now
with Spawner() as spawner:
    child = spawner.spawn_owned_supervised(mark_child(Command("sleep", "60"), ChildKind.MCP, "old"))
    record = child.identity
    from birthmark.platforms import load
    from birthmark.core.outcomes import Basis, Warrant
    load().deliver(child.pinned, 9, Warrant(basis=Basis.CHILD, asked_by="test"))
    child.wait(5)
    time.sleep(0.03)  # the start tick is 10 ms: nobody can tell two within one tick by it
    next_pid(record.pid)
    stranger = subprocess.Popen(["sleep", "60"])
    assert stranger.pid == record.pid, (stranger.pid, record.pid)
    proof = prove(record)
    receipt = stop_set_now(record, StopPolicy(term_grace_s=0.2), asked_by="test")
    async def stop():
        return await stop_owned(record.pid, ChildKind.MCP, "old", 0.2, identity=record)
    outcome = anyio.run(stop)
    print(json.dumps([proof.verdict.value, proof.reason.value, len(receipt.members),
                      type(outcome).__name__, stranger.poll()]))
    stranger.kill(); stranger.wait()
"""
)


@pytest.mark.root
@pytest.mark.namespaces
def test_e1_e3_a_recycled_number_is_told_and_its_new_owner_lives() -> None:
    verdict, reason, members, outcome, stranger = json.loads(in_pid_namespace(RECYCLED))
    assert (verdict, reason) == ("different", "other_start_time")
    assert members == 0
    assert outcome == "NotOurs"
    assert stranger is None


@pytest.mark.root
@pytest.mark.namespaces
def test_e1_a_number_recycled_within_one_clock_tick_is_told_by_its_inode() -> None:
    need_pidfs_inode()
    script = RECYCLED.replace(
        "    time.sleep(0.03)  # the start tick is 10 ms: nobody can tell two within one tick by it\n", ""
    )
    # Whether both fell into one tick is the kernel's luck; the verdict is the same either way.
    for _ in range(5):
        verdict, reason, members, outcome, stranger = json.loads(in_pid_namespace(script))
        assert verdict == "different"
        assert reason in ("other_start_time", "other_inode")
        assert (members, outcome, stranger) == (0, "NotOurs", None)


@pytest.mark.anyio
async def test_e2_a_record_that_names_a_live_stranger_with_another_start_time_is_refused() -> None:
    with python("ready(); signal.pause()") as child, puppet() as stranger:
        stranger.wait_ready()
        forged = replace(child.identity, pid=stranger.pid, inode=None)
        assert prove(forged).verdict is Verdict.DIFFERENT
        outcome = await stop_owned(stranger.pid, ChildKind.MCP, "case", 0.2, identity=forged)
        assert isinstance(outcome, NotOurs)
        stranger.ask()


def test_e2_no_evidence_is_never_taken_for_proof() -> None:
    with puppet(under=("env", "-i")) as stranger, python("ready(); signal.pause()") as child:
        stranger.wait_ready()
        from birthmark.platforms import load

        seen = load().observe(stranger.pinned)
        assert seen is not None
        bare = replace(
            seen.identity(), inode=None, birth=child.birth, kind=ChildKind.MCP, service=child.identity.service
        )
        proof = prove(replace(bare, installation=child.identity.installation))
        assert proof.verdict is Verdict.UNKNOWN
        assert proof.reason is Reason.ENVIRON_DESTROYED
        stranger.ask()


@pytest.mark.root
@pytest.mark.namespaces
def test_e4_a_record_from_another_pid_namespace_is_not_about_us() -> None:
    script = """
import json, os, sys
from birthmark import Identity, prove
from birthmark.platforms import load
with load().pin(os.getpid()) as me:
    mine = load().observe(me).identity()
print(json.dumps(mine.to_dict()))
"""
    first = json.loads(in_pid_namespace(script))
    second = f"""
import json
from birthmark import Identity, prove
proof = prove(Identity.from_dict(json.loads({json.dumps(first)!r})))
print(proof.verdict.value, proof.reason.value)
"""
    assert first["pid"] == 1
    assert in_pid_namespace(second).split() == ["different", "other_pid_namespace"]


def test_e8_a_bystander_whose_arguments_are_our_command_line_lives() -> None:
    with shell("echo R; exec sleep 300", readies=1) as child:
        with puppet(argv=["sh", "-c", "echo R; exec sleep 300", "sleep 300", str(child.pid)]) as bystander:
            bystander.wait_ready()
            receipt = stop_set_now(child.identity, PATIENT, asked_by="test", held=child.pinned)
            assert [member.pid for member in receipt.members] == [child.pid]
            bystander.ask()


def test_e9_of_two_identical_sleepers_only_ours_is_stopped() -> None:
    theirs = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        with shell("echo R; exec sleep 300", readies=1) as child:
            stop_set_now(child.identity, QUICK, asked_by="test", held=child.pinned)
            assert not child.is_running()
            assert theirs.poll() is None
    finally:
        theirs.kill()
        theirs.wait(5)


def test_e9_a_marked_child_of_another_birth_of_the_same_service_lives() -> None:
    with (
        python("ready(); signal.pause()", service="twin") as first,
        python("ready(); signal.pause()", service="twin") as second,
    ):
        stop_set_now(first.identity, PATIENT, asked_by="test", held=first.pinned)
        assert not first.is_running()
        assert second.is_running()
        assert os.path.exists(f"/proc/{second.pid}")
