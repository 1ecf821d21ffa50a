"""Whether, and when, an ended service is started again: pure, time is an argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from birthmark.config.model import Backoff, Intensity, Restart
from birthmark.core.outcomes import ExitStatus


class Next(Enum):
    """What follows an exit."""

    STAY = "stay"
    """It has ended, and that is that."""

    RESTART = "restart"
    """It is started again after a delay."""

    GIVE_UP = "give_up"
    """It was restarted too often."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What follows, and for RESTART after how many seconds."""

    next: Next
    delay_s: float = 0.0


class Restarts:
    """Counts the exits of one service and rules on each.

    `random` returns a number in [0, 1): 0.5 means no jitter.
    """

    def __init__(
        self, policy: Restart, backoff: Backoff, intensity: Intensity, *, random: Callable[[], float]
    ) -> None:
        self.total = 0
        """Restarts ordered since the last `forget`."""
        self._policy, self._backoff, self._intensity, self._random = policy, backoff, intensity, random
        self._failures = 0
        self._recent: deque[float] = deque()

    def forget(self) -> None:
        """Begin anew: a person asked for a start."""
        self.total = self._failures = 0
        self._recent.clear()

    def after(self, status: ExitStatus, *, now: float, lived_s: float) -> Ruling:
        """Rule on an exit that nobody asked for.

        Args:
            status: How it ended; an unknown status counts as a failure.
            now: Seconds on the monotonic clock.
            lived_s: How long it had been up.
        """
        clean = status.code == 0
        if self._policy is Restart.NEVER or (self._policy is Restart.ON_FAILURE and clean):
            return Ruling(Next.STAY)
        if lived_s >= self._intensity.stable_s:
            self._failures = 0
        while self._recent and now - self._recent[0] >= self._intensity.within_s:
            self._recent.popleft()
        if len(self._recent) >= self._intensity.restarts:
            return Ruling(Next.GIVE_UP)
        delay = self.delay_s()
        self._failures += 1
        self.total += 1
        self._recent.append(now)
        return Ruling(Next.RESTART, delay)

    def delay_s(self) -> float:
        """Return the seconds before the next start, jitter included."""
        # 2**1024 is no float any more; the cap was reached long before.
        grown = self._backoff.first_s * 2.0 ** min(self._failures, 60)
        spread = 1 + self._backoff.jitter * (2 * self._random() - 1)
        return max(0.0, min(grown, self._backoff.cap_s) * spread)

    @property
    def recent(self) -> int:
        """How many restarts lie within the intensity's period."""
        return len(self._recent)
