"""The system's own clocks."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SystemClock:
    """The `Clock` of this machine."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never steps back."""
        return time.monotonic()

    def now(self) -> datetime:
        """Return the wall clock, in UTC."""
        return datetime.now(UTC)
