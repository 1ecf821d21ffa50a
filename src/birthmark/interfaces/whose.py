"""Whose is a process? The question behind `explain` and `ports`, answered from the records and the kernel.

Nothing here is signalled, and nothing here allows a signal: that takes a proof at the moment of the signal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from birthmark.children.proving import claim_of, prove
from birthmark.core.identity import Proof, Sighting, Verdict, gone
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import Found
from birthmark.core.service import API_SERVER_SERVICE, BirthId
from birthmark.errors import ProcessGone
from birthmark.interfaces.ownership import Owner, Records, Whose, own_words
from birthmark.platforms import load
from birthmark.registry.contract import BirthRecord

_DEPTH = 64
"""How many parents are looked at; a chain that is longer is somebody's fork bomb."""


def whose(pid: int, records: Records) -> Whose:
    """Say whose the process with that pid is, and why.

    Raises:
        ValueError: No process can have that pid.
        LookFailed: We could not look.
    """
    platform = load()
    try:
        pinned = platform.pin(pid)
    except ProcessGone:
        return _gone(pid, records)
    with pinned:
        seen = platform.observe(pinned)
        if seen is None:
            return _gone(pid, records)
        return _Question(seen, platform.command_line(pid), records).answer()


def _gone(pid: int, records: Records) -> Whose:
    why = ["no process has that pid"]
    for record, identity in records.leaders():
        if identity.pid == pid:
            why.append(f"it was {str(record.service)!r}, whose end nobody has written down yet")
    return Whose(pid=pid, owner=Owner.GONE, why=tuple(why), proof=gone(pid))


class _Question:
    """One process that was seen, and the ways in which it may be ours. The first that holds decides."""

    def __init__(self, seen: Sighting, command: str, records: Records) -> None:
        self.seen, self.command, self.records = seen, command, records
        self.never = never_from_here(seen.pid)
        self.refuted: list[str] = []

    def answer(self) -> Whose:
        if (leader := self._leader()) is not None:
            return leader
        if self.seen.exited:
            return self._whose(Owner.GONE, ("it has exited and waits to be reaped", *self.refuted))
        return self._supervisor() or self._carrier() or self._relative() or self._outsider()

    def _leader(self) -> Whose | None:
        """Whether it is the process recorded as a birth's leader; records that are not about it are refuted."""
        for record, identity in self.records.leaders():
            if identity.pid != self.seen.pid:
                continue
            proof = prove(identity)
            name = repr(str(record.service))
            if proof.verdict is Verdict.DIFFERENT:
                self.refuted.append(f"{name} had that pid once, and this is not it: {proof.evidence[0]}")
                continue
            owner = {Verdict.SAME: Owner.OURS, Verdict.GONE: Owner.GONE}.get(proof.verdict, Owner.UNKNOWN)
            why = (f"it is recorded as the leader of {name}", *map(str, proof.evidence))
            return self._whose(
                owner, why, record=record, found=Found.LEADER, leader=identity.pid, proof=proof
            )
        return None

    def _supervisor(self) -> Whose | None:
        expected = self.records.supervisor
        if expected is None or expected.pid != self.seen.pid:
            return None
        proof = prove(expected)
        if proof.verdict is not Verdict.SAME:
            return None
        why = ("it is the supervisor of this installation", *map(str, proof.evidence))
        return self._whose(Owner.OURS, why, service=API_SERVER_SERVICE, kind=ChildKind.API.value, proof=proof)

    def _carrier(self) -> Whose | None:
        """Whether it carries the mark or the tag of an open birth."""
        births = {record.birth: record for record in self.records.births}
        claim = claim_of(self.seen, {birth: birth for birth in births}, self.records.installation)
        if claim is None:
            return None
        found, record = claim[0], births[claim[1]]
        where = "mark in its environment" if found is Found.MARK else "tag in its resource limits"
        why = (f"it carries the {where} of a birth of {str(record.service)!r}, and is not its leader",)
        return self._whose(Owner.OURS, why, record=record, found=found, leader=self._proven(record))

    def _relative(self) -> Whose | None:
        """Whether it descends from a proven leader, or is in the group or session that one leads."""
        leaders = {identity.pid: record for record, identity in self.records.leaders()}
        ways = [(pid, Found.DESCENDANT, "it descends from") for pid in _ancestors(self.seen.pid)]
        ways.append((self.seen.pgid, Found.GROUP, "it is in the process group of"))
        ways.append((self.seen.session, Found.SESSION, "it is in the session of"))
        for pid, found, words in ways:
            record = leaders.get(pid)
            if record is not None and self._proven(record) == pid:
                why = (f"{words} process {pid}, the leader of {str(record.service)!r}",)
                return self._whose(Owner.OURS, why, record=record, found=found, leader=pid)
        return None

    def _outsider(self) -> Whose:
        """A stranger, or one that may be ours: no open birth claims it."""
        words = own_words(self.seen, self.records)
        why = (*words.why, *self.refuted)
        return self._whose(words.owner, why, service=words.service, birth=words.birth)

    def _proven(self, record: BirthRecord) -> int | None:
        """Return the pid of the birth's leader if it is proven to be the one recorded."""
        identity = record.identity
        return identity.pid if identity and prove(identity).verdict is Verdict.SAME else None

    def _whose(
        self,
        owner: Owner,
        why: tuple[str, ...],
        *,
        record: BirthRecord | None = None,
        found: Found | None = None,
        leader: int | None = None,
        proof: Proof | None = None,
        service: str | None = None,
        kind: str | None = None,
        birth: BirthId | None = None,
    ) -> Whose:
        return Whose(
            pid=self.seen.pid,
            owner=owner,
            why=why,
            service=str(record.service) if record else service,
            kind=record.kind.value if record else kind,
            birth=record.birth if record else birth,
            found=found,
            leader=leader,
            proof=proof,
            command=self.command,
            parent=self.seen.ppid,
            never=self.never,
        )


def never_from_here(pid: int) -> str | None:
    """Return the rule by which this very command could never signal a process; None when none holds."""
    if pid == os.getpid():
        return "it is this command itself"
    if pid in _ancestors(os.getpid()):
        return "it is an ancestor of this command"
    return None


def _ancestors(pid: int) -> Iterator[int]:
    platform = load()
    for _ in range(_DEPTH):
        parent = platform.parent_of(pid)
        if not parent:
            return
        yield parent
        pid = parent
