"""Whether and when a service is started again: decided with values."""

from __future__ import annotations

import pytest

from birthmark.config.model import Backoff, Intensity, Restart
from birthmark.core.outcomes import ExitStatus
from birthmark.supervisor.backoff import Next, Restarts, Ruling

FAILED = ExitStatus(code=3)
MIDDLE = 0.5


def restarts(
    policy: Restart = Restart.ON_FAILURE,
    backoff: Backoff = Backoff(),  # noqa: B008 - frozen
    intensity: Intensity = Intensity(),  # noqa: B008 - frozen
    *,
    random: float = MIDDLE,
) -> Restarts:
    return Restarts(policy, backoff, intensity, random=lambda: random)


@pytest.mark.parametrize(
    ("policy", "status", "expected"),
    [
        (Restart.NEVER, FAILED, Next.STAY),
        (Restart.NEVER, ExitStatus(code=0), Next.STAY),
        (Restart.ON_FAILURE, ExitStatus(code=0), Next.STAY),
        (Restart.ON_FAILURE, FAILED, Next.RESTART),
        (Restart.ON_FAILURE, ExitStatus(signal=9), Next.RESTART),
        (Restart.ON_FAILURE, ExitStatus(), Next.RESTART),
        (Restart.ALWAYS, ExitStatus(code=0), Next.RESTART),
        (Restart.ALWAYS, FAILED, Next.RESTART),
    ],
)
def test_each_policy_has_its_answer_to_each_end(policy: Restart, status: ExitStatus, expected: Next) -> None:
    assert restarts(policy).after(status, now=0, lived_s=0).next is expected


def test_the_delay_doubles_up_to_its_cap() -> None:
    told = restarts(intensity=Intensity(restarts=10**6))
    delays = [told.after(FAILED, now=float(n), lived_s=0).delay_s for n in range(10)]
    assert delays == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_thousand_failures_overflow_nothing() -> None:
    told = restarts(intensity=Intensity(restarts=10**6))
    delays = {told.after(FAILED, now=float(n), lived_s=0).delay_s for n in range(5000)}
    assert max(delays) == 60


@pytest.mark.parametrize(("random", "expected"), [(0.0, 0.4), (0.5, 0.5), (0.999999999, 0.6)])
def test_the_jitter_stays_within_its_share(random: float, expected: float) -> None:
    assert restarts(random=random).delay_s() == pytest.approx(expected)


def test_after_a_stable_time_the_delay_begins_anew() -> None:
    told = restarts()
    for now in (0.0, 1.0, 2.0):
        told.after(FAILED, now=now, lived_s=29.9)
    assert told.after(FAILED, now=100, lived_s=30).delay_s == 0.5


def test_too_many_restarts_within_the_period_are_given_up() -> None:
    told = restarts(intensity=Intensity(restarts=3, within_s=60))
    assert [told.after(FAILED, now=n, lived_s=0).next for n in (0.0, 1.0, 2.0)] == [Next.RESTART] * 3
    assert told.after(FAILED, now=59.9, lived_s=0) == Ruling(Next.GIVE_UP)
    assert told.total == 3


def test_restarts_that_lie_further_apart_are_never_given_up() -> None:
    told = restarts(intensity=Intensity(restarts=3, within_s=60))
    rulings = [told.after(FAILED, now=20.0 * n, lived_s=0).next for n in range(50)]
    assert set(rulings) == {Next.RESTART}


def test_a_persons_start_forgets_all_of_it() -> None:
    told = restarts(intensity=Intensity(restarts=1))
    told.after(FAILED, now=0, lived_s=0)
    assert told.after(FAILED, now=0, lived_s=0).next is Next.GIVE_UP
    told.forget()
    assert told.after(FAILED, now=0, lived_s=0) == Ruling(Next.RESTART, 0.5)
    assert told.total == 1
