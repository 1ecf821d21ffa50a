"""The figures as a table for people: ours, the base, the ratio, the bar, and the pure path beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.figures import Figure

HEADS = ("FIGURE", "AGAINST", "OURS", "BASE", "VALUE", "P99", "BAR", "", "PURE PATH")
_RIGHT = {2, 3, 4, 5, 6, 8}


def table(native: Sequence[Figure], pure: Sequence[Figure]) -> str:
    """Return the table; `pure` are the same figures without the native spawner, shown without a bar."""
    beside = {(figure.name, figure.base): figure for figure in pure}
    rows = [HEADS, *(_row(figure, beside.get((figure.name, figure.base))) for figure in native)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    return "\n".join(_lines(rows, widths, native))


def _lines(rows: Sequence[Sequence[str]], widths: Sequence[int], native: Sequence[Figure]) -> Iterator[str]:
    for row in rows:
        cells = [
            cell.rjust(width) if column in _RIGHT else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
    yield from (f"  {figure.name}: {figure.note}" for figure in native if figure.note)


def _row(figure: Figure, pure: Figure | None) -> tuple[str, ...]:
    word = {True: "ok", False: "WRONG" if figure.hard else "missed", None: figure.missing}[figure.met]
    return (
        figure.name,
        figure.base,
        time_of(figure.ours_ns),
        time_of(figure.base_ns),
        value_of(figure),
        "" if figure.p99_ratio is None else f"{figure.p99_ratio:.3g}x",
        bar_of(figure),
        word,
        "" if pure is None else value_of(pure),
    )


def value_of(figure: Figure) -> str:
    """Return what is held against the bar, with its unit."""
    if figure.value is None:
        return "-"
    if figure.unit == "count":
        return f"{figure.value:g}"
    return f"{figure.value:.3g}{'x' if figure.unit == 'x' else ' ms'}"


def bar_of(figure: Figure) -> str:
    """Return the bar, with its unit."""
    if figure.unit == "count":
        return f"{figure.at_most:g}"
    return f"<= {figure.at_most:g}{'x' if figure.unit == 'x' else ' ms'}"


def time_of(nanoseconds: float | None) -> str:
    """Return a length of time for people."""
    if nanoseconds is None:
        return ""
    if nanoseconds < 1e6:
        return f"{nanoseconds / 1e3:.3g} us"
    return f"{nanoseconds / 1e6:.3g} ms"
