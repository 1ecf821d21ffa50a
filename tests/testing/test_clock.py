"""The manual clock, with values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from birthmark.core.clock import Clock
from birthmark.testing import ManualClock


def test_it_is_a_clock_that_stands_still() -> None:
    clock: Clock = ManualClock()
    assert (clock.monotonic(), clock.now()) == (clock.monotonic(), clock.now())
    assert clock.now().utcoffset() == timedelta(0)


def test_both_clocks_advance_together() -> None:
    clock = ManualClock(monotonic=10.0, now=datetime(2030, 1, 1, tzinfo=UTC))
    clock.advance(2.5)
    assert (clock.monotonic(), clock.now()) == (12.5, datetime(2030, 1, 1, 0, 0, 2, 500000, tzinfo=UTC))


def test_a_deadline_is_met_from_both_sides() -> None:
    clock = ManualClock(monotonic=0.1)
    deadline = clock.monotonic() + 0.2
    clock.just_before(deadline)
    assert not clock.reached(deadline)
    clock.advance_to(deadline)
    assert clock.reached(deadline)


def test_a_step_of_the_wall_clock_is_no_time_that_passed() -> None:
    clock = ManualClock(monotonic=5.0)
    before = clock.now()
    clock.step_wall(-3600)
    assert (clock.monotonic(), clock.now()) == (5.0, before - timedelta(hours=1))


@pytest.mark.parametrize("seconds", [-0.1, float("inf"), float("nan")])
def test_time_never_runs_backwards(seconds: float) -> None:
    with pytest.raises(ValueError, match="cannot pass"):
        ManualClock().advance(seconds)


def test_a_passed_deadline_is_not_advanced_to() -> None:
    with pytest.raises(ValueError, match="cannot pass"):
        ManualClock(monotonic=5.0).advance_to(4.0)


def test_a_naive_wall_clock_is_refused() -> None:
    with pytest.raises(ValueError, match="aware"):
        ManualClock(now=datetime(2030, 1, 1))  # noqa: DTZ001
