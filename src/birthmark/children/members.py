"""Who belongs to what is being stopped: one process, its group, or its whole set."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Protocol

from birthmark.children.proving import sweep
from birthmark.core.outcomes import Found
from birthmark.core.service import BirthId, InstallationId
from birthmark.errors import LookFailed, ProcessGone
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned


class Finder(Protocol):
    """Finds members that are alive. Each is pinned first and checked afterwards; the caller owns the pins."""

    def __call__(self, known: set[int]) -> Iterator[tuple[Pinned, Found]]:
        """Yield the members whose pids are not in `known`."""
        ...


def nobody(known: set[int]) -> Iterator[tuple[Pinned, Found]]:
    """Find nobody beside the leader: for a single process."""
    return iter(())


def group_of(leader: Pinned) -> Finder:
    """Find the living members of the group that `leader` leads.

    Once the group has lost its number (leader reaped, no member left) a stranger may lead one
    of the same number, so that is asked first.
    """

    def find(known: set[int]) -> Iterator[tuple[Pinned, Found]]:
        pgid = leader.pid
        if not load().group_lives(leader):
            return
        yield from _pinned(
            load().group_members(pgid), known, Found.GROUP, lambda p: load().group_of(p) == pgid
        )

    return find


def set_of(leader: Pinned | None, *, birth: BirthId | None, installation: InstallationId | None) -> Finder:
    """Find the living members of a birth's set.

    While the leader's number is still the set's own: its group, its session, its descendants. Always:
    whoever carries the mark or the tag of the birth, or of a birth inside it.
    """

    def find(known: set[int]) -> Iterator[tuple[Pinned, Found]]:
        platform = load()
        taken = set(known)
        if leader is not None and platform.group_lives(leader):
            for pair in _around(leader.pid, taken):
                taken.add(pair[0].pid)
                yield pair
        # Members found before may have had children since, wherever their leader is.
        for pair in _descendants([pid for pid in taken if pid in known], taken):
            taken.add(pair[0].pid)
            yield pair
        if birth is not None and installation is not None:
            for pinned, carrier in sweep([birth], installation):
                if pinned.pid in taken or platform.exited(pinned):
                    pinned.close()
                    continue
                taken.add(pinned.pid)
                yield pinned, carrier.found

    return find


def _around(pid: int, taken: set[int]) -> Iterator[tuple[Pinned, Found]]:
    platform = load()
    group, session = [], []
    for other in platform.all_pids():
        if platform.group_of(other) == pid:
            group.append(other)
        elif platform.session_of(other) == pid:
            session.append(other)
    yield from _pinned(group, taken, Found.GROUP, lambda p: platform.group_of(p) == pid)
    yield from _pinned(session, taken, Found.SESSION, lambda p: platform.session_of(p) == pid)
    yield from _descendants([pid], taken | set(group) | set(session))


def _descendants(roots: list[int], taken: set[int]) -> Iterator[tuple[Pinned, Found]]:
    platform = load()
    seen = set(taken) | set(roots)
    waiting = list(roots)
    while waiting:
        parent = waiting.pop()
        for child in platform.children_of(parent):
            if child in seen:
                continue
            seen.add(child)
            waiting.append(child)
            yield from _pinned([child], taken, Found.DESCENDANT, _is_child_of(parent))


def _is_child_of(parent: int) -> Callable[[int], bool]:
    return lambda pid: load().parent_of(pid) == parent


def _pinned(
    pids: list[int], known: set[int], found: Found, belongs: Callable[[int], bool]
) -> Iterator[tuple[Pinned, Found]]:
    platform = load()
    for pid in pids:
        if pid in known or pid == os.getpid():
            continue
        try:
            pinned = platform.pin(pid)
        except (ProcessGone, LookFailed):
            continue
        # Pinned first, asked second: a number that changed hands in between fails this look.
        if platform.exited(pinned) or not belongs(pid):
            pinned.close()
            continue
        yield pinned, found
