"""Who belongs to what is being stopped: one process, its group, or its whole set."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

from birthmark.children.proving import Judge, look, look_until_settled, mark_judge, sweep
from birthmark.core.identity import EnvironState, Evidence, Identity, Proof, Reason, Sighting, Verdict, gone
from birthmark.core.judging import judge_number
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import Found
from birthmark.core.service import BirthId, InstallationId
from birthmark.errors import ProcessGone
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned


class Finder(Protocol):
    """Finds members that are alive. Each is pinned first and checked afterwards; the caller owns the pins.

    A pin must stay open until the finder is through: it is what keeps a parent's number the parent's.
    """

    def __call__(self, known: Collection[Pinned]) -> Iterator[tuple[Pinned, Found]]:
        """Yield the members that are not among `known`.

        Raises:
            LookFailed: Not everybody could be looked at.
        """
        ...


def nobody(known: Collection[Pinned]) -> Iterator[tuple[Pinned, Found]]:
    """Find nobody beside the leader: for a single process."""
    return iter(())


def group_of(leader: Pinned) -> Finder:
    """Find the living members of the group that `leader` leads.

    Once the group has lost its number (leader reaped, no member left) a stranger may lead one
    of the same number, so that is asked before and after.
    """

    def find(known: Collection[Pinned]) -> Iterator[tuple[Pinned, Found]]:
        platform = load()
        if not platform.group_lives(leader):
            return
        taken = {pinned.pid for pinned in known}
        yield from _pinned(platform.group_members(leader.pid), taken, Found.GROUP, _in_group_of(leader))

    return find


def set_of(leader: Pinned | None, *, birth: BirthId | None, installation: InstallationId | None) -> Finder:
    """Find the living members of a birth's set.

    While the leader's number is still the set's own: its group, its session. Always: the descendants of
    everybody known, and whoever carries the mark or the tag of the birth, or of a birth inside it.
    """

    def find(known: Collection[Pinned]) -> Iterator[tuple[Pinned, Found]]:
        platform = load()
        taken = {pinned.pid for pinned in known}
        roots = list(known)
        if leader is not None and platform.group_lives(leader):
            if leader.pid not in taken:
                taken.add(leader.pid)
                roots.append(leader)
            for pair in _around(leader, taken):
                taken.add(pair[0].pid)
                roots.append(pair[0])
                yield pair
        for pair in _descendants(roots, taken):
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


def _around(leader: Pinned, taken: Collection[int]) -> Iterator[tuple[Pinned, Found]]:
    platform = load()
    group, session = [], []
    for other in platform.all_pids():
        if platform.group_of(other) == leader.pid:
            group.append(other)
        elif platform.session_of(other) == leader.pid:
            session.append(other)
    yield from _pinned(group, taken, Found.GROUP, _in_group_of(leader))
    yield from _pinned(session, taken, Found.SESSION, _in_session_of(leader))


def _in_group_of(leader: Pinned) -> Callable[[Pinned], bool]:
    platform = load()
    # The number is asked for its owner last: if it still is the group's, it was when the member named it.
    return lambda member: platform.group_of(member.pid) == leader.pid and platform.group_lives(leader)


def _in_session_of(leader: Pinned) -> Callable[[Pinned], bool]:
    platform = load()
    return lambda member: platform.session_of(member.pid) == leader.pid and platform.group_lives(leader)


def _descendants(roots: list[Pinned], taken: Collection[int]) -> Iterator[tuple[Pinned, Found]]:
    platform = load()
    seen = {*taken, *(root.pid for root in roots)}
    waiting = list(roots)
    ourselves: Pinned | None = None
    try:
        while waiting:
            parent = waiting.pop()
            for child in platform.children_of(parent.pid):
                if child in seen:
                    continue
                seen.add(child)
                if child == os.getpid():
                    # No member, but its other children are.
                    ourselves = platform.pin(child)
                    waiting.append(ourselves)
                    continue
                for pair in _pinned([child], (), Found.DESCENDANT, _is_child_of(parent)):
                    waiting.append(pair[0])
                    yield pair
    finally:
        if ourselves is not None:
            ourselves.close()


def _is_child_of(parent: Pinned) -> Callable[[Pinned], bool]:
    platform = load()
    # Asked last whether the parent has its number still: only then was it named by a child of its own.
    return lambda child: platform.parent_of(child.pid) == parent.pid and _has_its_number(parent)


def _has_its_number(pinned: Pinned) -> bool:
    """Say whether nobody else can have been given its number: it lives, or is unreaped."""
    platform = load()
    return not platform.exited(pinned) or platform.observe(pinned, environ=False) is not None


def _pinned(
    pids: Collection[int], taken: Collection[int], found: Found, belongs: Callable[[Pinned], bool]
) -> Iterator[tuple[Pinned, Found]]:
    platform = load()
    for pid in pids:
        if pid in taken or pid == os.getpid():
            continue
        try:
            pinned = platform.pin(pid)
        except ProcessGone:
            continue
        # Pinned first, asked second: a number that changed hands in between fails this look.
        if platform.exited(pinned) or not belongs(pinned):
            pinned.close()
            continue
        yield pinned, found


def prove_dead_leader(
    leader: Pinned, identity: Identity | None, kind: ChildKind, service: str, installation: InstallationId
) -> Proof:
    """Answer whether the group of an exited, unreaped leader is ours: by its identity, or by a living member's mark.

    A zombie shows no environment, but keeps its number, and with it the group's. Blocks as `prove` does.

    Raises:
        LookFailed: We could not look.
    """
    if identity is not None:
        return look(leader, lambda seen: judge_number(identity, seen))
    with ExitStack() as pins:
        for member, _ in group_of(leader)([leader]):
            pins.enter_context(member)
            decide = _as_member(mark_judge(member.pid, kind, service, installation))
            proof = look_until_settled(member, decide)
            if proof.verdict is Verdict.SAME:
                found = f"in process {member.pid} of its group"
                return Proof(leader.pid, Verdict.SAME, (Evidence(Reason.MARK_MATCHES, found=found),))
    return gone(leader.pid, Reason.ZOMBIE)


def _as_member(decide: Judge) -> Judge:
    """A worker that forked without an exec rightly shows its parent's block: that is its own."""

    def judged(seen: Sighting | None) -> Proof:
        if seen is not None and seen.environ_state is EnvironState.PARENTS:
            seen = replace(seen, environ_state=EnvironState.READABLE)
        return decide(seen)

    return judged
