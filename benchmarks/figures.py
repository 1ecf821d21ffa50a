"""One figure: what we took, what the base took, and the bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from benchmarks.sampling import median, p99

Unit = Literal["x", "ms", "count"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table.

    `value` is what is held against `at_most`, in `unit`: a ratio of medians, milliseconds, or a count. None:
    it could not be taken, and `missing` says why. `ours_ns` and `base_ns` are medians, for orientation.
    With `hard` it is about being right, not about being fast.
    """

    name: str
    base: str = ""
    unit: Unit = "x"
    at_most: float
    value: float | None = None
    ours_ns: float | None = None
    base_ns: float | None = None
    p99_ratio: float | None = None
    hard: bool = False
    note: str = ""
    missing: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None where there is no figure."""
        return None if self.value is None else self.value <= self.at_most

    def to_dict(self) -> dict[str, object]:
        """Return the figure as plain values for JSON."""
        return {**asdict(self), "met": self.met}

    @classmethod
    def from_dict(cls, record: Mapping[str, object]) -> Figure:
        """Read what `to_dict` wrote."""
        fields = {name: value for name, value in record.items() if name != "met"}
        return cls(**fields)  # type: ignore[arg-type]


def ratio(name: str, ours: Sequence[int], base: str, theirs: Sequence[int], at_most: float) -> Figure:
    """Return the figure of two series that were sampled in turns."""
    return Figure(
        name=name,
        base=base,
        at_most=at_most,
        value=median(ours) / median(theirs),
        ours_ns=median(ours),
        base_ns=median(theirs),
        p99_ratio=p99(ours) / p99(theirs),
    )


def missing(name: str, base: str, at_most: float, why: str, *, unit: Unit = "x") -> Figure:
    """Return the figure that could not be taken."""
    return Figure(name=name, base=base, at_most=at_most, unit=unit, missing=why)
