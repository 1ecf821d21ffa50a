"""Boot with values and real children: what is on record, what lives, and what became of it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from birthmark.children.child import Child
from birthmark.children.command import Command, Stdio, mark_child, new_birth
from birthmark.children.installation import open_installation
from birthmark.children.ports import PortState, holders_of
from birthmark.children.spawning import Spawner
from birthmark.config.model import Transport
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import Found
from birthmark.core.service import BirthId, ServiceName, installation_id
from birthmark.core.states import Observed
from birthmark.errors import RegistryUnavailable
from birthmark.registry.contract import BirthState
from birthmark.registry.sqlite import SqliteRegistry
from birthmark.supervisor.clock import SystemClock
from birthmark.supervisor.supervisor import Supervisor, own_identity
from birthmark.testing.puppet import wait_exited
from birthmark.testing.registry import MemoryRegistry
from tests.supervisor.household import LISTENER, WITHIN_S, free_port, household, listener, python, service

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="marks are read in Linux's procfs"),
]

ONE = ServiceName("one")


@contextmanager
def marked(birth: BirthId, *, owner: str | None = None) -> Iterator[Child]:
    """Run a real child that carries the mark of a birth."""
    installation = open_installation().id if owner is None else installation_id(owner)
    command = mark_child(
        Command("cat", stdin=Stdio.PIPE), ChildKind.MCP, "one", installation=installation, birth=birth
    )
    with Spawner() as spawner:
        child = spawner.spawn_owned_supervised(command)
        try:
            yield child
        finally:
            child.close_stdin()
            child.wait(WITHIN_S)


@contextmanager
def writing() -> Iterator[tuple[SqliteRegistry, int, datetime]]:
    """Write as a supervisor of this installation that leaves in order."""
    installation = open_installation()
    with SqliteRegistry(installation.registry_path, installation.id) as registry:
        now = datetime.now(UTC)
        epoch = registry.take(own_identity(installation), now)
        yield registry, epoch, now
        registry.leave(epoch)


async def test_what_carries_the_mark_of_a_birth_that_has_ended_escaped_once_and_is_ended() -> None:
    birth = new_birth()
    with marked(birth) as escaped:
        with writing() as (registry, epoch, now):
            registry.intend(birth, ONE, ChildKind.MCP, now, epoch=epoch)
            registry.ended(birth, now, epoch=epoch)
        async with household(names=[]) as house:
            assert not escaped.is_running()
            (receipt,) = house.report.ended
            assert [member.pid for member in receipt.members] == [escaped.pid]
            record = house.registry.birth(birth)
            assert record is not None
            assert record.state is BirthState.ENDED


async def test_a_mark_of_ours_that_no_record_claims_is_left_alone() -> None:
    with marked(new_birth()) as run_by_hand:
        async with household(service()) as house:
            await house.seen(Observed.READY)
            assert house.report.lines == []
            assert house.signals() == []
        assert run_by_hand.is_running()


async def test_the_same_birth_in_another_installation_is_not_ours() -> None:
    birth = new_birth()
    with marked(birth, owner="f" * 32) as theirs:
        with writing() as (registry, epoch, now):
            registry.intend(birth, ONE, ChildKind.MCP, now, epoch=epoch)
        async with household(service()) as house:
            await house.seen(Observed.READY)
            assert house.report.ended == []
            assert house.signals() == []
        assert theirs.is_running()


@pytest.mark.parametrize("where", ["another host", "another pid namespace"])
@pytest.mark.parametrize("used", [True, False], ids=["a pid in use here", "an unused pid"])
async def test_a_birth_from_elsewhere_is_named_and_not_written_off_and_keeps_no_service_from_starting(
    where: str, used: bool
) -> None:
    birth = new_birth()
    with marked(birth, owner="f" * 32) as child:
        identity = dataclasses.replace(
            child.identity,
            pid=child.pid if used else 2**22,
            host="elsewhere" if where == "another host" else child.identity.host,
            pid_namespace=child.identity.pid_namespace + (where == "another pid namespace"),
        )
        with writing() as (registry, epoch, now):
            registry.intend(birth, ONE, ChildKind.MCP, now, epoch=epoch)
            registry.born(birth, identity, now, epoch=epoch)
        for _ in range(2):  # the first boot leaves the second everything to say
            async with household(service()) as house:
                await house.seen(Observed.READY)
                assert [left.record.birth for left in house.report.elsewhere] == [birth]
                assert (house.report.gone, house.report.strangers, house.report.leftovers) == ([], [], [])
                (line,) = house.report.lines
                assert line.startswith(f"one (birth {birth[:8]}): whether pid {identity.pid} lives cannot be")
                assert where in line
                record = house.registry.birth(birth)
                assert record is not None
                assert record.state is BirthState.BORN
        assert child.is_running()


async def test_a_birth_of_an_earlier_boot_has_ended_whoever_has_its_pid_now() -> None:
    birth = new_birth()
    with marked(birth, owner="f" * 32) as child:
        with writing() as (registry, epoch, now):
            registry.intend(birth, ONE, ChildKind.MCP, now, epoch=epoch)
            registry.born(birth, dataclasses.replace(child.identity, boot="before"), now, epoch=epoch)
        async with household(names=[]) as house:
            assert house.report.lines == [f"one (birth {birth[:8]}): ended with an earlier boot of this host"]
            record = house.registry.birth(birth)
            assert record is not None
            assert (record.state, record.why) == (BirthState.LOST, "it ended with an earlier boot")
        assert child.is_running()


async def test_of_a_supervisor_elsewhere_it_is_not_said_that_it_is_gone() -> None:
    installation = open_installation()
    me = own_identity(installation)
    with SqliteRegistry(installation.registry_path, installation.id) as registry:
        # As in a container that was begun anew: the same pid, in another namespace.
        registry.take(dataclasses.replace(me, pid_namespace=me.pid_namespace + 1), datetime.now(UTC))
    async with household(names=[]) as house:
        (line,) = house.said
        assert "whether it lives cannot be seen from here" in line
        assert "another pid namespace" in line


async def test_an_intent_that_came_to_nothing_is_closed_and_said() -> None:
    birth = new_birth()
    with writing() as (registry, epoch, now):
        registry.intend(birth, ONE, ChildKind.MCP, now, epoch=epoch)
    async with household(service()) as house:
        assert house.report.lines == [f"one (birth {birth[:8]}): was never born"]
        record = house.registry.birth(birth)
        assert record is not None
        assert (record.state, record.why) == (BirthState.LOST, "never born")


async def test_leases_of_services_that_want_them_no_more_are_let_go() -> None:
    old, kept = free_port(), free_port()
    with writing() as (registry, epoch, now):
        registry.lease_port(old, ServiceName("gone"), now, epoch=epoch)
        registry.lease_port(kept, ONE, now, epoch=epoch)
    async with household(listener("one", kept), names=[]) as house:
        assert [(lease.port, lease.service) for lease in house.registry.leases()] == [(kept, "one")]


async def test_nothing_is_signalled_or_started_when_the_registry_cannot_be_read() -> None:
    installation = open_installation()
    registry = MemoryRegistry(installation.id)
    supervisor = Supervisor(
        services=[service()],
        registry=registry,
        installation=installation,
        clock=SystemClock(),
        say=lambda _: None,
        subreaper=False,
    )
    registry.broken = "the disk is gone"
    with pytest.raises(RegistryUnavailable, match="the disk is gone"):
        await supervisor.boot()
    registry.broken = None
    # The lock is free again, and the same installation can be booted once the disk is back.
    report = await supervisor.boot()
    assert report.lines == []
    supervisor.close()


async def test_one_port_for_two_services_starts_the_first_and_blocks_the_second_naming_it() -> None:
    port = free_port()
    async with household(listener("one", port), names=["one"]) as house:
        await house.seen(Observed.READY)
    async with household(listener("one", port), listener("two", port), names=["one"]) as house:
        await house.seen(Observed.READY)
        await house.supervisor.start("two")
        status = await house.seen(Observed.BLOCKED, name="two")
        assert f"port {port}: it is leased to 'one'" in status.why


async def test_one_of_ours_that_holds_a_port_is_named_by_its_service_and_not_by_its_command() -> None:
    port = free_port()
    # It says nothing of a port to us, and takes the one that another wants.
    squatter = service("squatter", python(LISTENER, str(port)), transport=Transport.HTTP)
    async with household(squatter, listener("one", port), names=["squatter"]) as house:
        await house.until(lambda _: holders_of(port).state is PortState.HELD, name="squatter")
        await house.supervisor.start("one")
        status = await house.seen(Observed.BLOCKED)
        pid = house.status("squatter").pid
        assert f"port {port} is held by pid {pid}, which carries the mark of our 'squatter'" in status.why


async def test_one_that_dropped_its_mark_and_has_our_tag_is_not_named_by_its_command() -> None:
    port = free_port()
    wipe = "import os, sys; os.execve(sys.executable, [sys.executable, *sys.argv[1:]], {})"
    squatter = service(
        "squatter", python(wipe, "-c", LISTENER, str(port), "hunter2"), transport=Transport.HTTP
    )
    async with household(squatter, listener("one", port), names=["squatter"]) as house:
        await house.until(lambda _: holders_of(port).state is PortState.HELD, name="squatter")
        await house.supervisor.start("one")
        status = await house.seen(Observed.BLOCKED)
        pid = house.status("squatter").pid
        assert f"port {port} is held by pid {pid}, which carries the tag of some birth" in status.why
        assert "hunter2" not in status.why


SHED = """
import os, resource, sys
if os.fork() == 0:
    hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    resource.setrlimit(resource.RLIMIT_RTTIME, (hard, hard))
    wait = "import os, signal; os.write(1, b'R'); signal.pause()"
    os.execve(sys.executable, [sys.executable, "-I", "-c", wait], {})
sys.stdin.read()
"""


async def test_what_a_dead_and_unreaped_leader_left_in_its_group_is_ended_though_it_carries_nothing() -> None:
    command = Command(sys.executable, "-c", SHED, stdin=Stdio.PIPE, stdout=Stdio.PIPE)
    birth = new_birth()
    with Spawner() as spawner:
        child = spawner.spawn_owned_supervised(
            mark_child(command, ChildKind.MCP, "one", installation=open_installation().id, birth=birth)
        )
        assert child.stdout is not None
        assert child.stdout.read(1) == b"R"
        with writing() as (registry, epoch, now):
            registry.intend(birth, ONE, ChildKind.MCP, now, epoch=epoch)
            registry.born(birth, child.identity, now, epoch=epoch)
        child.close_stdin()
        wait_exited(child.pinned)
        async with household(names=[]) as house:
            (receipt,) = house.report.ended
            assert [member.found for member in receipt.members if member.pid != child.pid] == [Found.GROUP]
            assert child.stdout.readall() == b""
            record = house.registry.birth(birth)
            assert record is not None
            assert record.state is BirthState.LOST
        child.wait(WITHIN_S)
        child.close()
