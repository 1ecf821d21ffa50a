"""How long things may take: policies are data."""

from __future__ import annotations

import signal
from typing import Final

from birthmark.core.records import dataclass

_SIGNALS: Final = frozenset(signal.valid_signals())


@dataclass(frozen=True, slots=True)
class Step:
    """One rung of the stop ladder: the signal sent (None closes stdin) and the seconds waited after it."""

    signal: int | None
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPolicy:
    """How long a service may take to leave, rung by rung. All in seconds, none below zero.

    `stdin_grace_s` counts only where we hold the write end of the service's stdin.
    """

    stdin_grace_s: float = 2.0
    term_grace_s: float = 5.0
    settle_s: float = 5.0
    stop_signal: int = signal.SIGTERM

    def __post_init__(self) -> None:
        for name in ("stdin_grace_s", "term_grace_s", "settle_s"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} is {value!r}; seconds of zero or more are expected")
        if self.stop_signal not in _SIGNALS:
            raise ValueError(f"{self.stop_signal!r} is not a signal")

    def steps(self, *, stdin_held: bool) -> tuple[Step, ...]:
        """Return the ladder, from the politest rung to SIGKILL."""
        rungs = (
            Step(None, self.stdin_grace_s),
            Step(self.stop_signal, self.term_grace_s),
            Step(getattr(signal, "SIGKILL", 9), self.settle_s),
        )
        return rungs if stdin_held else rungs[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathPolicy:
    """What a keeper does with its set when its supervisor vanishes: stop it, or live on, for ever or for a time.

    `for_s` counts only with `outlive`: seconds until the set is stopped unless somebody took charge; None: for ever.
    """

    outlive: bool = False
    for_s: float | None = None

    def __post_init__(self) -> None:
        if self.for_s is not None and not 0 <= self.for_s < float("inf"):
            raise ValueError(f"for_s is {self.for_s!r}; seconds of zero or more are expected")
