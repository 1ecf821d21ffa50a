"""Field case G15: many that hear nothing are stopped in one grace, not one after the other. Real children."""

from __future__ import annotations

import sys

import pytest

from birthmark.core.outcomes import Termination
from birthmark.core.policies import StopPolicy
from birthmark.core.states import Observed
from tests.supervisor.household import DEAF, household, python, says, service

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="the signals of a set are Linux's"),
]

SERVERS = 10


async def test_g15_ten_servers_that_ignore_eof_and_term_are_stopped_in_one_grace_and_all_verified() -> None:
    policy = StopPolicy(stdin_grace_s=0.5, term_grace_s=1.0, settle_s=10)
    names = [f"s{number}" for number in range(SERVERS)]
    specs = [service(name, python(DEAF), ready=says("deaf"), stop=policy) for name in names]
    async with household(*specs) as house:
        pids = {name: (await house.seen(Observed.READY, name=name)).pid for name in names}
        receipts = await house.supervisor.down()
        assert [receipt.service for receipt in receipts] == names[::-1]
        for receipt in receipts:
            assert receipt.termination is Termination.KILLED
            assert receipt.survivors == []
            assert [member.pid for member in receipt.members] == [pids[receipt.service]]
        sent = [line["signal"] for line in house.signals()]
        # One grace for all: the last of them had been asked before the first was made to leave.
        assert sent == ["SIGTERM"] * SERVERS + ["SIGKILL"] * SERVERS
