"""Field cases: clocks."""

from __future__ import annotations

from datetime import timedelta

from birthmark import Verdict, prove
from birthmark.core.judging import judge
from birthmark.platforms import load
from birthmark.testing.clock import ManualClock
from tests.field.staging import python


def test_p7_an_identity_counts_ticks_since_boot_so_no_step_of_the_clock_changes_it() -> None:
    with python("ready(); sys.stdin.read()") as child:
        with open(f"/proc/{child.pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
        assert child.identity.start_ticks == int(fields[19])
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            assert child.identity.boot == file.read().strip()
        # Nothing in the record is a time of day, so there is nothing a step could move.
        clock = ManualClock()
        before = clock.now()
        seen = load().observe(child.pinned)
        clock.advance(timedelta(hours=1).total_seconds())
        assert clock.now() - before == timedelta(hours=1)
        assert judge(child.identity, seen).verdict is Verdict.SAME
        assert prove(child.identity).verdict is Verdict.SAME
