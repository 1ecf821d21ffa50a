"""The plan is a table without a missing row."""

from __future__ import annotations

from itertools import product

import pytest

from birthmark.core.plan import PLAN, Action
from birthmark.core.states import Desired, Observed

ALIVE = {Observed.STARTING, Observed.READY, Observed.UNREADY}


def test_every_pair_of_states_has_one_row() -> None:
    assert set(PLAN) == set(product(Desired, Observed))


@pytest.mark.parametrize("desired", list(Desired))
def test_nothing_is_started_or_stopped_on_a_guess(desired: Desired) -> None:
    assert PLAN[desired, Observed.UNKNOWN] is Action.LOOK_AGAIN


def test_only_what_is_absent_is_started() -> None:
    assert [pair for pair, action in PLAN.items() if action is Action.START] == [
        (Desired.UP, Observed.ABSENT)
    ]


def test_what_should_be_up_is_never_stopped_and_what_should_be_down_is_never_started() -> None:
    assert all(PLAN[Desired.UP, seen] is not Action.STOP for seen in Observed)
    assert all(PLAN[Desired.DOWN, seen] not in (Action.START, Action.CONSULT_POLICY) for seen in Observed)


def test_whatever_lives_is_stopped_when_it_should_be_down() -> None:
    assert all(PLAN[Desired.DOWN, seen] is Action.STOP for seen in ALIVE)


def test_a_failing_readiness_never_kills() -> None:
    assert PLAN[Desired.UP, Observed.UNREADY] is Action.NOTHING


def test_a_service_that_gave_up_is_left_until_somebody_asks() -> None:
    assert PLAN[Desired.UP, Observed.GAVE_UP] is PLAN[Desired.DOWN, Observed.GAVE_UP] is Action.NOTHING


def test_state_names_are_words_for_json() -> None:
    assert [each.value for each in Observed] == [
        "absent",
        "blocked",
        "starting",
        "ready",
        "unready",
        "stopping",
        "exited",
        "backoff",
        "gave_up",
        "unknown",
    ]
    assert [each.value for each in Desired] == ["up", "down"]
