"""Field cases D under a supervisor: a port does not make its holder ours. Real supervisors, sockets and strangers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from birthmark.children.ports import PortState, holders_of
from birthmark.config.model import ReadyKind, ReadySpec
from birthmark.core.states import Observed
from birthmark.platforms import load
from birthmark.testing import puppet, wait_exited
from tests.supervisor.household import (
    LISTENER,
    WITHIN_S,
    answers,
    free_port,
    household,
    listener,
    python,
    says,
    service,
)
from tests.supervisor.outpost import outpost

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfds"),
]


@contextmanager
def stranger(port: int) -> Iterator[int]:
    """Run a listener that nobody here supervises; yields its pid."""
    script = LISTENER.replace("while True:", "ready()\nwhile True:")
    with puppet(script, argv=[str(port)]) as other:
        other.wait_ready()
        yield other.pid


async def test_d2_a_stranger_on_the_configured_port_is_named_and_lives() -> None:
    port = free_port()
    with stranger(port) as pid:
        async with household(listener("one", port)) as house:
            status = await house.seen(Observed.BLOCKED)
            words = f"port {port} is held by pid {pid} ({load().command_line(pid)}), not ours"
            assert words in status.why
            assert any(words in line for line in house.report.lines)
            assert house.registry.births_of(status.name) == []
            await house.supervisor.stop("one")
            await house.supervisor.start("one")
            assert house.status().observed is Observed.BLOCKED
            assert house.signals() == []
        assert answers(port)


async def test_d3_another_installations_service_on_the_wanted_port_is_refused_even_when_it_is_sick(
    tmp_path: Path,
) -> None:
    port = free_port()
    # It listens, and never becomes ready.
    sick = listener("one", port, ready=ReadySpec(kind=ReadyKind.LOG, pattern="never", deadline_s=WITHIN_S))
    async with household(sick, home=tmp_path / "theirs") as theirs:
        await theirs.until(lambda status: status.pid is not None)
        await theirs.until(lambda _: holders_of(port).state is PortState.HELD)
        pid = theirs.status().pid
        async with household(listener("one", port), home=tmp_path / "ours") as ours:
            status = await ours.seen(Observed.BLOCKED)
            assert f"pid {pid}" in status.why
            assert "not ours" in status.why
            assert ours.signals() == []
        assert theirs.status().pid == pid
        assert answers(port)


async def test_d5_a_killed_supervisors_orphan_is_known_by_its_identity_and_gives_its_port_back() -> None:
    port = free_port()
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LISTENER.replace(
        "while True:", "import os; os.write(2, b'listens\\n')\nwhile True:", 1
    )
    command = python(deaf, str(port))
    with outpost([{"name": "one", "command": command, "says": "listens", "port": port}]) as first:
        told = first.hear()["up"]
        assert isinstance(told, list)
        orphan = told[0]["pid"]
        with load().pin(orphan) as pinned:
            first.kill()
            assert answers(port)
            assert not load().exited(pinned)
            async with household(service("one", command, ready=says("listens"), port=port)) as house:
                assert load().exited(pinned)
                (receipt,) = house.report.ended
                assert [member.pid for member in receipt.members] == [orphan]
                assert (await house.seen(Observed.READY)).pid != orphan
                assert answers(port)


async def test_d5_a_stranger_that_took_the_port_meanwhile_is_a_clear_error() -> None:
    port = free_port()
    with outpost([{"name": "one", "listens": port}]) as first:
        told = first.hear()["up"]
        assert isinstance(told, list)
        with load().pin(told[0]["pid"]) as pinned:
            first.kill()
            wait_exited(pinned)
    with stranger(port) as pid:
        async with household(listener("one", port)) as house:
            status = await house.seen(Observed.BLOCKED)
            assert f"port {port} is held by pid {pid}" in status.why
        assert answers(port)
