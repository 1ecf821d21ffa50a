"""Prove: pin a pid, look, and decide; look again while the process is inside an exec."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from birthmark.core.identity import (
    EnvironState,
    Evidence,
    Identity,
    Proof,
    Reason,
    Sighting,
    Verdict,
    gone,
)
from birthmark.core.judging import judge, judge_mark
from birthmark.core.markers import ChildKind, is_tag, read_mark, tag_of
from birthmark.core.outcomes import Found
from birthmark.core.parsers import signalable_pid
from birthmark.core.service import BirthId, InstallationId, ServiceName, birth_id
from birthmark.errors import ProcessGone
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned

LOOKS: Final = 20
"""How often a process inside an exec is looked at before *unknown* stands."""

LOOK_EVERY_S: Final = 0.005

Judge = Callable[[Sighting | None], Proof]


def pin_or_none(pid: int) -> Pinned | None:
    """Take hold of the process with that pid, or None when there is none."""
    if signalable_pid(pid) is None:
        return None
    try:
        return load().hold(pid)
    except ProcessGone:
        return None


def look(pinned: Pinned | None, decide: Judge) -> Proof:
    """Look once, and decide."""
    return decide(None if pinned is None else load().observe(pinned))


def look_until_settled(pinned: Pinned | None, decide: Judge) -> Proof:
    """Look, and again while it is inside an exec: at most `LOOKS` times, `LOOK_EVERY_S` apart. Blocks."""
    proof = look(pinned, decide)
    for _ in range(LOOKS - 1):
        if not proof.transient:
            break
        # The kernel tells nobody when an exec is through; it takes some 50 µs.
        time.sleep(LOOK_EVERY_S)
        proof = look(pinned, decide)
    return proof


def prove(identity: Identity, *, held: Pinned | None = None) -> Proof:
    """Answer whether the live process with the recorded pid is the one recorded.

    Args:
        identity: Written down at its birth.
        held: A pin we have held since the birth, which outranks all that can be read.

    Blocks for at most 95 ms, and only while the process is inside an exec.

    Raises:
        LookFailed: We could not look (no procfs, or one of another pid namespace).
    """
    if held is not None:
        return look_until_settled(held, identity_judge(identity, held=held.fd is not None))
    pinned = pin_or_none(identity.pid)
    decide = identity_judge(identity)
    try:
        proof = decide(None if pinned is None else load().observe(pinned))
        if not proof.transient:
            return proof
        return look_until_settled(pinned, decide)
    finally:
        if pinned is not None:
            pinned.close()


def identity_judge(identity: Identity, *, held: bool = False) -> Judge:
    """Return the decision about one record. Where nothing is seen, it asks whether the record is from here at all."""

    def decide(seen: Sighting | None) -> Proof:
        return judge(identity, seen, held=held, here=load().facts() if seen is None else None)

    return decide


def still_runs(identity: Identity) -> bool | None:
    """Say whether a process that was written down lives, whatever it carries; None when that cannot be known from here.

    For those that no mark is about, such as whoever stands by a birth. It is no ground to signal anybody.

    Raises:
        LookFailed: We could not look.
    """
    here = load().facts()
    if identity.host != here.host:
        return None
    if identity.boot != here.boot:
        return False
    if identity.pid_namespace != here.pid_namespace:
        return None
    pinned = pin_or_none(identity.pid)
    if pinned is None:
        return False
    with pinned:
        seen = load().observe(pinned, environ=False)
    if seen is None or seen.exited:
        return False
    starts = (seen.start_ticks, identity.start_ticks)
    if -1 in starts:
        return None
    inodes = (seen.inode, identity.inode)
    return starts[0] == starts[1] and (None in inodes or inodes[0] == inodes[1])


def nobody_of(
    birth: BirthId, installation: InstallationId, kind: ChildKind, service: ServiceName
) -> Identity:
    """Return the identity to stop a birth by whose leader nobody wrote down: its carriers are all there is."""
    here = load().facts()
    return Identity(
        host=here.host,
        boot=here.boot,
        pid_namespace=here.pid_namespace,
        pid=0,
        start_ticks=0,
        birth=birth,
        installation=installation,
        kind=kind,
        service=service,
    )


def never_a_target(pid: int) -> Proof | None:
    """Return the proof for numbers that no question is about: 0, below, beyond, ourselves."""
    if signalable_pid(pid) is None or pid == os.getpid():
        return Proof(pid, Verdict.GONE, (Evidence(Reason.NEVER_A_TARGET),))
    return None


def prove_mark(pid: int, kind: ChildKind, service: str, installation: InstallationId) -> Proof:
    """Answer by pid and mark alone; see `core.identity.judge_mark`. Blocks as `prove` does.

    Raises:
        LookFailed: We could not look.
    """
    pinned = pin_or_none(pid)
    try:
        return look_until_settled(pinned, mark_judge(pid, kind, service, installation))
    finally:
        if pinned is not None:
            pinned.close()


def mark_judge(pid: int, kind: ChildKind, service: str, installation: InstallationId) -> Judge:
    """Return the decision by mark for one pid."""

    def decide(seen: Sighting | None) -> Proof:
        if seen is None:
            return gone(pid)
        return judge_mark(pid, seen, kind=kind, service=service, installation=installation)

    return decide


@dataclass(frozen=True, slots=True)
class Carrier:
    """A live process that carries the mark or the tag of a birth we asked for.

    `birth` is the one asked for; `nested` is the process's own birth, when it was born inside that one.
    """

    pid: int
    start_ticks: int
    found: Found
    birth: BirthId
    nested: BirthId | None = None


def find_carriers(births: Collection[BirthId], installation: InstallationId) -> list[Carrier]:
    """Find all live processes that carry the mark or the tag of one of `births`: one sweep of procfs.

    Births born inside one of them are found too, however deep. Nothing here is a proof that a
    recorded *pid* is the same: a carrier belongs to the birth's set.

    Raises:
        LookFailed: The processes cannot be listed.
    """
    found = []
    for pinned, carrier in sweep(births, installation):
        pinned.close()
        found.append(carrier)
    return found


def sweep(births: Collection[BirthId], installation: InstallationId) -> Iterator[tuple[Pinned, Carrier]]:
    """Yield each carrier with a pin of it, which the caller owns. See `find_carriers`."""
    wanted = {birth: birth for birth in births}
    seen: set[int] = set()
    while wanted:
        nested: dict[BirthId, BirthId] = {}
        for pid in load().all_pids():
            if pid in seen:
                continue
            pair = _carrier(pid, wanted, installation)
            if pair is None:
                continue
            seen.add(pid)
            if pair[1].nested is not None:
                nested[pair[1].nested] = pair[1].birth
            yield pair
        # Births inside the ones just found: their processes name only their own parent birth.
        wanted = {inner: outer for inner, outer in nested.items() if inner not in wanted}


def _carrier(
    pid: int, wanted: dict[BirthId, BirthId], installation: InstallationId
) -> tuple[Pinned, Carrier] | None:
    """Pin and check one process; None when it is not a carrier. Cheap for strangers."""
    platform = load()
    if not may_carry(pid):
        return None
    try:
        pinned = platform.pin(pid)
    except ProcessGone:
        return None
    keep = False
    try:
        sighting = platform.observe(pinned)
        if sighting is None or sighting.exited:
            return None
        claim = claim_of(sighting, wanted, installation)
        if claim is None:
            return None
        keep = True
        found, birth, nested = claim
        return pinned, Carrier(pid, sighting.start_ticks, found, birth, nested)
    finally:
        if not keep:
            pinned.close()


def may_carry(pid: int) -> bool:
    """Say whether a closer look pays: it has a tag, or an environment we may read with a mark in it."""
    if pid == os.getpid():
        return False
    tag, start = load().glance(pid)
    return tag is not None or b"BIRTHMARK_BIRTH=" in start


def claim_of(
    seen: Sighting, wanted: dict[BirthId, BirthId], installation: InstallationId
) -> tuple[Found, BirthId, BirthId | None] | None:
    """Return how a sighting belongs to one of the wanted births: found how, which, and its own nested birth."""
    # A worker that forked without an exec rightly shows its parent's block: it is of the same birth.
    if seen.environ_state in (EnvironState.READABLE, EnvironState.PARENTS):
        mark = read_mark(seen.environ)
        if mark is not None and mark.birth is not None:
            # A readable mark outranks the tag, also when it says no.
            if mark.installation != installation:
                return None
            own = birth_id(mark.birth) if _is_birth(mark.birth) else None
            if own in wanted:
                return Found.MARK, wanted[own], None
            parent = parent_birth(seen.environ)
            if parent in wanted:
                return Found.MARK, wanted[parent], own
            return None
    if seen.tag is not None and is_tag(seen.tag):
        for birth, outer in wanted.items():
            if seen.tag == tag_of(birth):
                return Found.TAG, outer, None
    return None


def parent_birth(environ: bytes) -> BirthId | None:
    """Return the enclosing birth an environment names, or None."""
    for item in environ.split(b"\0"):
        if item.startswith(b"BIRTHMARK_PARENT="):
            text = item.partition(b"=")[2].decode("ascii", "replace")
            return birth_id(text) if _is_birth(text) else None
    return None


def _is_birth(text: str) -> bool:
    try:
        birth_id(text)
    except ValueError:
        return False
    return True
