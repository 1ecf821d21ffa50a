"""Take samples of several variants in turns, so that noise hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Sampler = Callable[[], int]
"""Does the thing once; returns the nanoseconds it took."""

now = time.monotonic_ns
"""CLOCK_MONOTONIC, the clock our C programs read too."""


def timed(act: Callable[[], object], *, calls: int = 1) -> Sampler:
    """Return a sampler of `act`, start to end: with `calls`, the mean of so many in a row.

    For what takes microseconds: one call alone would mostly tell what the other variants left in the caches.
    """

    def sample() -> int:
        began = now()
        for _ in range(calls):
            act()
        return (now() - began) // calls

    return sample


def in_turns(variants: Mapping[str, Sampler], rounds: int, *, warm: int = 2) -> dict[str, list[int]]:
    """Sample every variant once a round, `rounds` times; the `warm` first rounds do not count."""
    found: dict[str, list[int]] = {name: [] for name in variants}
    for number in range(warm + rounds):
        for name, sample in variants.items():
            took = sample()
            if number >= warm:
                found[name].append(took)
    return found


def median(samples: Sequence[int]) -> float:
    """Return the median, in nanoseconds."""
    return statistics.median(samples)


def p99(samples: Sequence[int]) -> float:
    """Return the value that 99 of 100 samples do not exceed."""
    ordered = sorted(samples)
    return float(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))])
