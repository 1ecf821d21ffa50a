"""Policies are data: the ladder, and what no ladder may be."""

from __future__ import annotations

import signal

import pytest

from birthmark.core.policies import Step, StopPolicy


def test_the_default_ladder_closes_stdin_asks_and_insists() -> None:
    assert StopPolicy().steps(stdin_held=True) == (
        Step(None, 2.0),
        Step(signal.SIGTERM, 5.0),
        Step(signal.SIGKILL, 5.0),
    )


def test_without_the_stdin_the_ladder_begins_with_the_signal() -> None:
    assert StopPolicy().steps(stdin_held=False) == (Step(signal.SIGTERM, 5.0), Step(signal.SIGKILL, 5.0))


def test_every_rung_can_be_set() -> None:
    policy = StopPolicy(stdin_grace_s=0, term_grace_s=0.5, settle_s=1, stop_signal=signal.SIGINT)
    assert policy.steps(stdin_held=True) == (Step(None, 0), Step(signal.SIGINT, 0.5), Step(signal.SIGKILL, 1))


@pytest.mark.parametrize("field", ["stdin_grace_s", "term_grace_s", "settle_s"])
@pytest.mark.parametrize("value", [-0.001, float("inf"), float("nan")])
def test_a_grace_is_a_finite_length_of_time(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        StopPolicy(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [0, -1, 9999])
def test_what_is_no_signal_stops_nothing(number: int) -> None:
    with pytest.raises(ValueError, match=str(number)):
        StopPolicy(stop_signal=number)
