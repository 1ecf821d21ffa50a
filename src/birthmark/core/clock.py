"""Time as an argument: what a decision may know about now."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one to measure with, one to show to people."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never steps back; its zero means nothing."""
        ...

    def now(self) -> datetime:
        """Return the wall clock as an aware UTC datetime, for tables and people only."""
        ...
