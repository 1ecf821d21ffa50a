"""Field cases M that Linux can stand in for: a supervisor that is restarted by being killed. Real supervisors, SIGKILL."""

from __future__ import annotations

import os

import pytest

from birthmark.core.service import ServiceName
from birthmark.core.states import Observed
from tests.supervisor.household import free_port, household, listener
from tests.supervisor.outpost import outpost

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfds"),
]


async def test_m3_a_loop_that_restarts_a_killed_supervisor_gets_its_port_back_each_time() -> None:
    port = free_port()
    services: list[dict[str, object]] = [{"name": "one", "listens": port}]
    births = set()
    for _ in range(3):
        with outpost(services) as post:
            said = post.hear()["up"]
            assert isinstance(said, list)
            assert [status["port"] for status in said] == [port]
            births.add(said[0]["birth"])
            post.kill()
    async with household(listener("one", port)) as house:
        status = await house.seen(Observed.READY)
        assert status.port == port
        births.add(status.birth)
        # One process at a time, each of a birth of its own, and an end on record for all but the last.
        records = house.registry.births_of(ServiceName("one"))
        assert {record.birth for record in records} == births
        assert len(births) == 4
        assert len(house.registry.open_births()) == 1


async def test_m5_a_supervisor_restarted_by_sigkill_again_and_again_keeps_its_records_straight() -> None:
    services: list[dict[str, object]] = [
        {"name": "one", "listens": free_port()},
        {"name": "two", "listens": free_port()},
    ]
    for _ in range(5):
        with outpost(services) as post:
            post.hear()
            post.kill()
    async with household() as house:
        assert house.registry.open_births() == []
        for name in ("one", "two"):
            assert len(house.registry.births_of(ServiceName(name))) == 5
