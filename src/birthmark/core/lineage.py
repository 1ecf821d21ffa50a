"""Who descends from whom, where the kernel only tells a parent's number: pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Born(NamedTuple):
    """One row of a process table: a number, its parent's, and when it was born on any one scale."""

    pid: int
    ppid: int
    born: int


def descendants(root: Born, table: Iterable[Born]) -> list[Born]:
    """Return what descends from `root`, parents before children; `root` is not among them.

    Windows never clears the parent's number of a process whose parent has ended, and gives the number
    away again. So a child older than its parent is not its child: it is an orphan of somebody else.
    """
    children: dict[int, list[Born]] = {}
    for row in table:
        children.setdefault(row.ppid, []).append(row)
    found: list[Born] = []
    seen = {root.pid}
    at = [root]
    for parent in at:
        for child in children.get(parent.pid, ()):
            if child.pid not in seen and child.born >= parent.born:
                seen.add(child.pid)
                found.append(child)
                at.append(child)
    return found
