"""Services under a supervisor: start, readiness, stop, restart. Real children, real ports, a real registry."""

from __future__ import annotations

import anyio
import pytest

from birthmark.core.identity import Verdict
from birthmark.core.outcomes import Termination
from birthmark.core.states import Desired, Observed
from tests.supervisor.household import free_port, household, listener, python, service

pytestmark = pytest.mark.anyio


async def test_a_service_is_started_proven_and_stopped_with_a_receipt() -> None:
    async with household(service()) as house:
        status = await house.seen(Observed.READY)
        assert status.pid is not None
        assert status.proof is not None
        assert status.proof.verdict is Verdict.SAME
        receipt = await house.supervisor.stop("one")
        assert receipt is not None
        assert [member.pid for member in receipt.members] == [status.pid]
        assert receipt.members[0].sent == []  # cat leaves when its stdin is closed
        after = house.status()
        assert (after.desired, after.observed, after.pid) == (Desired.DOWN, Observed.EXITED, None)


async def test_a_listener_is_ready_when_its_own_set_listens_and_its_port_is_free_after_the_stop() -> None:
    port = free_port()
    async with household(listener("one", port)) as house:
        status = await house.seen(Observed.READY)
        assert status.port == port
        receipt = await house.supervisor.stop("one")
        assert receipt is not None
        assert receipt.notes == [f"port {port} is free again"]
