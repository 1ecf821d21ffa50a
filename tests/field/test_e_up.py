"""Field cases E under a supervisor: a number on record is no process. Real supervisors, records and strangers."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from birthmark.children.command import Command, Stdio, mark_child, new_birth
from birthmark.children.installation import open_installation
from birthmark.children.spawning import Spawner
from birthmark.core.identity import Identity, Reason, Verdict
from birthmark.core.markers import ChildKind
from birthmark.core.service import BirthId, ServiceName
from birthmark.core.states import Observed
from birthmark.errors import RecordUndecodable
from birthmark.platforms import load
from birthmark.registry.contract import BirthState
from birthmark.registry.sqlite import SqliteRegistry
from birthmark.supervisor.locking import LOCK_FILE, InstallationLock, holder_pid
from birthmark.supervisor.supervisor import own_identity
from birthmark.testing import Puppet, puppet
from tests.supervisor.household import household, service

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="identities are read in Linux's procfs"),
]

ONE = ServiceName("one")
ROOT = Path(__file__).resolve().parents[2]


def record(living: Puppet, **wrong: object) -> Identity:
    """Write into the registry that a live stranger is a birth of ours, with these fields wrong."""
    installation = open_installation()
    birth = new_birth()
    seen = load().observe(living.pinned)
    assert seen is not None
    identity = replace(
        seen.identity(birth=birth, installation=installation.id, kind=ChildKind.MCP, service=ONE),
        **wrong,  # type: ignore[arg-type]
    )
    now = datetime.now(UTC)
    with SqliteRegistry(installation.registry_path, installation.id) as registry:
        epoch = registry.take(own_identity(installation), now)
        registry.intend(birth, ONE, ChildKind.MCP, now, epoch=epoch)
        registry.born(birth, identity, now, epoch=epoch)
        registry.leave(epoch)
    return identity


async def test_e2_a_record_that_points_at_a_stranger_with_another_start_time_ends_nobody() -> None:
    with puppet("ready()\nobey()") as stranger:
        stranger.wait_ready()
        seen = load().observe(stranger.pinned)
        assert seen is not None
        crafted = record(stranger, start_ticks=seen.start_ticks + 1)
        async with household(service()) as house:
            (proof,) = house.report.strangers
            assert (proof.pid, proof.verdict) == (stranger.pid, Verdict.DIFFERENT)
            assert proof.reason is Reason.OTHER_START_TIME
            assert any(f"pid {stranger.pid} is somebody else's now" in line for line in house.said)
            assert house.report.ended == []
            await house.seen(Observed.READY)
            ended = house.registry.birth(require(crafted.birth))
            assert ended is not None
            assert ended.state is BirthState.LOST
            assert house.signals() == []
        stranger.ask()


async def test_e2_a_record_without_evidence_is_refused_and_nothing_is_started_beside_what_it_may_be() -> None:
    with puppet("ready()\nobey()") as stranger:
        stranger.wait_ready()
        # Pid and start time are right, and there is no inode: nothing says that it is another's.
        record(stranger, inode=None)
        async with household(service()) as house:
            (left,) = house.report.leftovers
            assert left.proof is not None
            assert left.proof.verdict is Verdict.UNKNOWN
            status = await house.seen(Observed.BLOCKED)
            assert f"pid {stranger.pid}" in status.why
            assert "left alone" in status.why
            assert house.signals() == []
        stranger.ask()


@pytest.mark.skipif(not load().capabilities().pidfs_inode, reason="this kernel's pidfds have no inodes")
async def test_e2_a_record_with_another_inode_ends_nobody() -> None:
    with puppet("ready()\nobey()") as stranger:
        stranger.wait_ready()
        record(stranger, inode=1)
        async with household(service()) as house:
            assert [proof.reason for proof in house.report.strangers] == [Reason.OTHER_INODE]
            await house.seen(Observed.READY)
            assert house.signals() == []
        stranger.ask()


async def test_e6_start_stop_and_status_share_one_verdict_and_the_stale_record_is_gone_with_a_notice() -> (
    None
):
    with puppet("ready()\nobey()") as stranger:
        stranger.wait_ready()
        stale = record(stranger, start_ticks=1)
        async with household(service(), names=[]) as house:
            assert house.status().pid is None
            assert await house.supervisor.stop("one") is None
            await house.supervisor.start("one")
            assert (await house.seen(Observed.READY)).pid != stranger.pid
            assert [each.birth for each in house.registry.open_births()] != [stale.birth]
            assert sum(f"pid {stranger.pid}" in line for line in house.said) == 1
        async with household(service(), names=[]) as house:
            assert house.report.lines == []
        stranger.ask()


async def test_e7_a_record_that_cannot_be_decoded_is_named_and_nothing_is_signalled_or_started() -> None:
    with puppet("ready()\nobey()") as stranger:
        stranger.wait_ready()
        identity = record(stranger)
        path = open_installation().registry_path
        with closing(sqlite3.connect(path)) as db, db:
            # The shorter number over the longer one, and the writer died half-way.
            half = json.dumps(identity.to_dict())[:-9]
            db.execute("UPDATE births SET identity = ?", (half,))
        with pytest.raises(RecordUndecodable, match=f"birth {identity.birth}"):
            async with household(service()):
                pass
        with SqliteRegistry(path, open_installation().id) as registry:
            assert signals(registry) == []
        stranger.ask()


def test_e7_a_shorter_pid_over_a_longer_one_is_no_third_pid() -> None:
    installation = open_installation()
    path = installation.locks / LOCK_FILE
    path.write_text("2194812345\n")
    lock = InstallationLock.acquire(installation)
    try:
        assert holder_pid(installation) == os.getpid()
        assert path.read_text() == f"{os.getpid()}\n"
    finally:
        lock.release()
    path.write_text("7694")  # its line has no end: whoever wrote it died half-way
    assert holder_pid(installation) is None


async def test_e9_of_two_identical_processes_only_ours_is_stopped() -> None:
    script = "import sys; sys.stdin.read()"
    command = (sys.executable, "-S", "-E", "-c", script)
    with sleeper(command) as theirs:
        async with household(service(command=command)) as house:
            ours = await house.seen(Observed.READY)
            receipt = await house.supervisor.stop("one")
            assert receipt is not None
            assert [member.pid for member in receipt.members] == [ours.pid]
            assert {line["pid"] for line in house.signals()} <= {ours.pid}
            assert theirs.poll() is None
            assert theirs.stdin is not None
        theirs.stdin.close()
        assert theirs.wait(5) == 0  # it ended when it was asked to, and by no signal


@contextmanager
def sleeper(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command that leaves when its stdin ends."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process


RECYCLED = """
import os, signal, subprocess, sys, time
from datetime import UTC, datetime
import anyio
from birthmark.children.command import Command, Stdio, mark_child, new_birth
from birthmark.children.installation import open_installation
from birthmark.children.spawning import Spawner
from birthmark.core.markers import ChildKind
from birthmark.core.service import ServiceName
from birthmark.registry.sqlite import SqliteRegistry
from birthmark.supervisor.clock import SystemClock
from birthmark.supervisor.supervisor import Supervisor, own_identity
from tests.supervisor.household import service

installation = open_installation()
registry = SqliteRegistry(installation.registry_path, installation.id)
clock, birth = SystemClock(), new_birth()
epoch = registry.take(own_identity(installation), clock.now())
with Spawner() as spawner:
    command = mark_child(Command("cat", stdin=Stdio.PIPE), ChildKind.MCP, "one", installation=installation.id, birth=birth)
    registry.intend(birth, ServiceName("one"), ChildKind.MCP, clock.now(), epoch=epoch)
    child = spawner.spawn_owned_supervised(command)
    registry.born(birth, child.identity, clock.now(), epoch=epoch)
    old = child.pid
    child.close_stdin()
    child.wait(5)
for attempt in range(200):
    with open("/proc/sys/kernel/ns_last_pid", "w") as file: file.write(str(old - 1))
    stranger = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    if stranger.pid == old: break
    stranger.stdin.close(); stranger.stdout.close(); stranger.wait()
else:
    sys.exit("the number was not to be had again")

async def main():
    said = []
    supervisor = Supervisor(services=[service()], registry=registry, installation=installation,
                            clock=clock, say=said.append, subreaper=False)
    report = await supervisor.boot()
    assert [proof.pid for proof in report.strangers] == [old], report
    assert "the pid was recycled" in str(report.strangers[0]), report
    assert registry.birth(birth).state.value == "lost"
    await supervisor.up([])
    (status,) = supervisor.status()
    assert (status.pid, status.observed.value) == (None, "absent"), status
    async with anyio.create_task_group() as tasks:
        await tasks.start(supervisor.run)
        assert await supervisor.stop("one") is None
        await supervisor.down()
    print(*said, sep="\\n", file=sys.stderr)

anyio.run(main)
stranger.stdin.write(b"still here"); stranger.stdin.close()
assert stranger.stdout.read() == b"still here"
assert stranger.wait() == 0
assert not [line for line in registry.audit() if "signal" in line.entry]
registry.close()
print("LIVES")
"""


@pytest.mark.root
@pytest.mark.namespaces
def test_e1_e3_a_recycled_pid_is_gone_for_status_and_stop_and_its_new_owner_lives(tmp_path: Path) -> None:
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", RECYCLED]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=50, check=False)
    assert done.stdout.strip() == "LIVES", done.stderr
    assert "is somebody else's now, and was left alone" in done.stderr


async def test_e2_what_carries_the_mark_of_an_intent_that_nobody_finished_is_ended() -> None:
    """The other side of it: the number was never written down, and the mark alone is proof."""
    installation = open_installation()
    now = datetime.now(UTC)
    birth = new_birth()
    with SqliteRegistry(installation.registry_path, installation.id) as registry:
        epoch = registry.take(own_identity(installation), now)
        registry.intend(birth, ONE, ChildKind.MCP, now, epoch=epoch)
        registry.leave(epoch)
    command = mark_child(
        Command("cat", stdin=Stdio.PIPE), ChildKind.MCP, "one", installation=installation.id, birth=birth
    )
    with Spawner() as spawner:
        stray = spawner.spawn_owned_supervised(command)
        async with household(service()) as house:
            assert not stray.is_running()
            (receipt,) = house.report.ended
            assert [member.pid for member in receipt.members] == [stray.pid]
            await house.seen(Observed.READY)


def signals(registry: SqliteRegistry) -> list[dict[str, object]]:
    """Return the audit's lines about signals."""
    return [dict(line.entry) for line in registry.audit() if "signal" in line.entry]


def require(birth: BirthId | None) -> BirthId:
    """Return a birth that is known to be there."""
    assert birth is not None
    return birth
