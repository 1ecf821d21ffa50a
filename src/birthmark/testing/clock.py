"""A clock that moves when it is told to."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Final

_BEGINNING: Final = datetime(2030, 1, 1, tzinfo=UTC)


class ManualClock:
    """A `Clock` for tests: both its clocks stand still until `advance`.

    `just_before` and `advance_to` take an instant of `monotonic`, so that a deadline can be asserted
    from both sides: nothing happens just before it, something does at it.
    """

    def __init__(self, *, monotonic: float = 1000.0, now: datetime = _BEGINNING) -> None:
        if now.tzinfo is None:
            raise ValueError("the wall clock is an aware datetime")
        self._monotonic = monotonic
        self._now = now.astimezone(UTC)

    def monotonic(self) -> float:
        """Return seconds; see `Clock.monotonic`."""
        return self._monotonic

    def now(self) -> datetime:
        """Return the wall clock, in UTC."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on both clocks.

        Raises:
            ValueError: They are below zero, or not finite.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"time cannot pass by {seconds!r} s")
        self._monotonic += seconds
        self._now += timedelta(seconds=seconds)

    def advance_to(self, deadline: float) -> None:
        """Let time pass until `monotonic` is exactly `deadline`.

        Raises:
            ValueError: The deadline has passed.
        """
        self.advance(deadline - self._monotonic)
        # The sum of a difference can miss the deadline by one place.
        self._monotonic = deadline

    def just_before(self, deadline: float) -> None:
        """Let time pass until the last instant before `deadline`.

        Raises:
            ValueError: The deadline has been reached.
        """
        self.advance_to(math.nextafter(deadline, -math.inf))

    def step_wall(self, seconds: float) -> None:
        """Step the wall clock alone, forwards or backwards, as a person or NTP does."""
        self._now += timedelta(seconds=seconds)

    def reached(self, deadline: float) -> bool:
        """Say whether `deadline` has come."""
        return self._monotonic >= deadline

    def __repr__(self) -> str:
        return f"ManualClock(monotonic={self._monotonic!r}, now={self._now.isoformat()})"
