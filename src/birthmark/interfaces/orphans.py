"""Which processes are ours, with nobody left who answers for them? The question behind `orphans`.

Somebody answers for a birth while its front (`birthmark run`) or its supervisor lives. Of what is left there are
three levels: *proven* belongs to a recorded birth that nobody answers for, and may be ended; *probably* carries our
mark, of a birth that nobody recorded; *unknown* may be ours, and nothing proves it. Nothing is signalled here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from birthmark.children.installation import Installation
from birthmark.children.members import set_of
from birthmark.children.proving import (
    Carrier,
    find_carriers,
    may_carry,
    nobody_of,
    pin_or_none,
    prove,
    still_runs,
)
from birthmark.core.identity import UNREADABLE, Identity, Proof, Reason, Sighting, Verdict
from birthmark.core.markers import ChildKind, is_tag, read_mark
from birthmark.core.outcomes import Found
from birthmark.core.service import BirthId, ServiceName, birth_id
from birthmark.errors import ProcessGone
from birthmark.interfaces.whose import never_from_here
from birthmark.keeper.answering import is_answered_for, last_word
from birthmark.keeper.reading import BirthPapers, PaperUnreadable
from birthmark.platforms import load
from birthmark.registry.contract import BirthOrigin, BirthRecord, BirthState, Registry
from birthmark.supervisor.taking_in import read_papers_of, record_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """One process. `why` are sentences without a full stop; `never` is the rule by which it is never signalled from here."""

    pid: int
    command: str
    parent: int | None
    found: Found | None = None
    why: tuple[str, ...] = ()
    service: str | None = None
    birth: BirthId | None = None
    never: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return it as plain values for JSON."""
        return {
            "pid": self.pid,
            "command": self.command,
            "parent": self.parent,
            "found": self.found.value if self.found else None,
            "why": list(self.why),
            "service": self.service,
            "birth": self.birth,
            "never_signalled": self.never,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedBirth:
    """A recorded birth that nobody answers for, and the processes that are left of it.

    `identity` is what a stop of it starts from: the leader's, or one with pid 0 where nobody wrote that down,
    or the birth has ended. `folder` holds its papers while they lack an end.
    """

    birth: BirthId
    service: ServiceName
    kind: ChildKind
    why: str
    identity: Identity
    members: tuple[Orphan, ...]
    folder: Path | None = None

    def to_dict(self) -> dict[str, object]:
        """Return it as plain values for JSON."""
        return {
            "birth": self.birth,
            "service": str(self.service),
            "kind": self.kind.value,
            "why": self.why,
            "members": [member.to_dict() for member in self.members],
        }


@dataclass(slots=True)
class Orphans:
    """All that was found. `unreadable` are papers that could not be understood: their births are *unknown*."""

    proven: list[OrphanedBirth] = field(default_factory=list)
    probably: list[Orphan] = field(default_factory=list)
    unknown: list[Orphan] = field(default_factory=list)
    unreadable: list[PaperUnreadable] = field(default_factory=list)
    over: list[BirthPapers] = field(default_factory=list)
    """Births without an end on record of which nothing is left at all."""

    def to_dict(self) -> dict[str, object]:
        """Return it as plain values for JSON."""
        return {
            "proven": [birth.to_dict() for birth in self.proven],
            "probably": [orphan.to_dict() for orphan in self.probably],
            "unknown": [orphan.to_dict() for orphan in self.unknown],
            "unreadable": [{"path": str(each.path), "why": each.why} for each in self.unreadable],
        }


@dataclass(frozen=True, slots=True)
class _Claim:
    """What the records say of a birth: whether somebody answers for it (None: not known), and why that is said."""

    record: BirthRecord | None
    answered: bool | None
    why: str
    papers: BirthPapers | None = None


def find_orphans(installation: Installation, registry: Registry | None) -> Orphans:
    """Find the processes of an installation that nobody answers for.

    Raises:
        RegistryError, InstallationBroken: What is written down cannot be read.
        LookFailed: The processes could not be looked at.
    """
    return _Search(installation, registry).run()


class _Search:
    def __init__(self, installation: Installation, registry: Registry | None) -> None:
        self.installation, self.registry = installation, registry
        self.claims: dict[BirthId, _Claim] = {}
        self.carriers: dict[BirthId, list[Carrier]] = {}
        self.found = Orphans()
        self.listed: set[int] = set()

    def run(self) -> Orphans:
        # The records first: a birth that happens after them is not judged by them.
        if self.registry is not None:
            self._read_registry(self.registry)
        self._read_papers()
        for carrier in find_carriers(list(self.claims), self.installation.id):
            self.carriers.setdefault(carrier.birth, []).append(carrier)
        self._list_unclaimed({each.pid for found in self.carriers.values() for each in found})
        for birth, claim in self.claims.items():
            self._judge(birth, claim, self.carriers.get(birth, []))
        # Whoever turned out to belong to a set by descent is not asked after any more.
        self.found.probably = [each for each in self.found.probably if each.pid not in self.listed]
        return self.found

    # -- what is written down

    def _read_registry(self, registry: Registry) -> None:
        owner = registry.owner()
        who = owner.identity if owner is not None else None
        lives = still_runs(who) if who is not None else False
        for record in registry.open_births():
            if record.origin is BirthOrigin.RUN:
                claim = _Claim(record, False, "its `birthmark run` is gone")
            elif owner is not None and record.epoch < owner.epoch:
                claim = _Claim(record, False, "the supervisor that started it is gone")
            elif lives is None:
                claim = _Claim(
                    record, None, "whether its supervisor lives cannot be known from here: it is elsewhere"
                )
            else:
                claim = _Claim(record, lives, f"its supervisor{f' (pid {who.pid})' if who else ''} is gone")
            self.claims[record.birth] = claim
        for record in registry.ended_births():
            self.claims[record.birth] = _ended(record)

    def _read_papers(self) -> None:
        shelf = read_papers_of(self.installation)
        self.found.unreadable = shelf.unreadable
        for papers in shelf.papers:
            try:
                self.claims.setdefault(papers.birth, self._claim_of(papers))
            except PaperUnreadable as err:
                shelf.unreadable.append(err)
        for unreadable in shelf.unreadable:
            for name in (unreadable.path.name, unreadable.path.parent.name):
                if (birth := _birth_or_none(name)) is not None:
                    why = f"its papers cannot be read: {unreadable.path.name}: {unreadable.why}"
                    self.claims.setdefault(birth, _Claim(None, None, why))

    def _claim_of(self, papers: BirthPapers) -> _Claim:
        if papers.ended_at is not None:
            return _ended(record_of(papers))
        answered = is_answered_for(papers)
        if answered is None:
            why = f"whether its `birthmark run` (pid {papers.by_pid}) lives cannot be known from here"
            return _Claim(record_of(papers), None, why, papers)
        if answered is False:
            last = last_word(papers)
            if last is not None and last.ended_at is not None:
                return _ended(record_of(last))
        return _Claim(
            record_of(papers), answered, f"its `birthmark run` (pid {papers.by_pid}) is gone", papers
        )

    # -- what lives

    def _list_unclaimed(self, claimed: Collection[int]) -> None:
        """List who carries our mark, or a tag, of a birth we did not read of; claim those on record all the same."""
        for pid in load().all_pids():
            if pid in claimed or not may_carry(pid):
                continue
            seen = _sighting(pid)
            if seen is None:
                continue
            mark = read_mark(seen.environ)
            if mark is None:
                if seen.tag is not None and is_tag(seen.tag):
                    why = ["its resource limit carries the tag of a birth that is not recorded here"]
                    if seen.environ_state in UNREADABLE:
                        why.append("its environment cannot be read")
                    self.found.unknown.append(_orphan(seen, tuple(why)))
                continue
            if mark.installation != self.installation.id:
                continue
            service = ", ".join(sorted(name for _, name in mark.services)) or None
            birth = _birth_or_none(mark.birth or "")
            if birth is None:
                why = ["it carries our mark, and no valid birth"]
            elif (record := self._later(birth)) is not None:
                if record.state in (BirthState.ENDED, BirthState.LOST):
                    self.claims.setdefault(birth, _ended(record))
                    carrier = Carrier(pid, seen.start_ticks, Found.MARK, birth)
                    self.carriers.setdefault(birth, []).append(carrier)
                continue
            elif (self.installation.births / birth).exists():
                continue  # born while we looked
            else:
                why = [f"it carries our mark, of a birth of {service!r} that nobody recorded"]
            if seen.ppid > 1:
                why.append(
                    f"its parent is process {seen.ppid}: {load().command_line(seen.ppid)}".rstrip(" :")
                )
            self.found.probably.append(_orphan(seen, tuple(why), service=service, birth=birth))

    def _later(self, birth: BirthId) -> BirthRecord | None:
        """Return the record of a birth that was not among those we read: older ones, or one of just now."""
        return None if self.registry is None else self.registry.birth(birth)

    def _judge(self, birth: BirthId, claim: _Claim, carriers: list[Carrier]) -> None:
        if claim.answered is True:
            return
        record = claim.record
        proof = self._proof(claim)
        if record is None or claim.answered is None or (proof and proof.verdict is Verdict.UNKNOWN):
            why = claim.why
            if proof is not None and claim.answered is False:
                why = f"process {proof.pid} lives, and is not proven to be its leader: {proof.evidence[0]}"
                self._doubt(birth, record, proof.pid, Found.LEADER, why)
            for carrier in carriers:
                self._doubt(birth, record, carrier.pid, carrier.found, why)
            return
        same = proof is not None and proof.verdict is Verdict.SAME
        if not same and not carriers:
            if claim.papers is not None:
                self.found.over.append(claim.papers)
            return
        identity = (
            record.identity
            if proof is not None and record.identity is not None
            else nobody_of(birth, self.installation.id, record.kind, record.service)
        )
        # A dead leader that nobody has reaped keeps its number, by which its group and its session go.
        held = same or (proof is not None and proof.reason is Reason.ZOMBIE)
        members = tuple(self._members(identity, held=held))
        if members:
            self.found.proven.append(
                OrphanedBirth(
                    birth=birth,
                    service=record.service,
                    kind=record.kind,
                    why=claim.why,
                    identity=identity,
                    members=members,
                    folder=claim.papers.folder if claim.papers is not None else None,
                )
            )

    def _proof(self, claim: _Claim) -> Proof | None:
        """Prove the leader of a birth that has no end on record."""
        record = claim.record
        if record is None or record.identity is None or record.state in (BirthState.ENDED, BirthState.LOST):
            return None
        return prove(record.identity)

    def _doubt(
        self, birth: BirthId, record: BirthRecord | None, pid: int, found: Found | None, why: str
    ) -> None:
        seen = _sighting(pid)
        if seen is None or pid in self.listed:
            return
        self.listed.add(pid)
        service = str(record.service) if record is not None else None
        self.found.unknown.append(_orphan(seen, (why,), found=found, service=service, birth=birth))

    def _members(self, identity: Identity, *, held: bool) -> Iterator[Orphan]:
        """Yield what a stop of the birth would signal: the finder is the stop's own."""
        platform = load()
        with ExitStack() as pins:
            leader = pin_or_none(identity.pid) if held else None
            known = []
            if leader is not None:
                known.append(pins.enter_context(leader))
                if not platform.exited(leader):
                    yield from self._member(leader.pid, Found.LEADER, identity)
            find = set_of(leader, birth=identity.birth, installation=identity.installation)
            while True:
                newcomers = list(find(known))
                for pinned, _ in newcomers:
                    known.append(pins.enter_context(pinned))
                for pinned, how in newcomers:
                    yield from self._member(pinned.pid, how, identity)
                if not newcomers:
                    return

    def _member(self, pid: int, found: Found, identity: Identity) -> Iterator[Orphan]:
        seen = _sighting(pid)
        if seen is None or pid in self.listed:
            return  # gone just now; or in a set within this one, and listed there
        self.listed.add(pid)
        yield _orphan(seen, (), found=found, service=str(identity.service), birth=identity.birth)


_ESCAPED = "it has ended, and this escaped from it"


def _ended(record: BirthRecord) -> _Claim:
    return _Claim(record, False, _ESCAPED)


def _orphan(
    seen: Sighting,
    why: tuple[str, ...],
    *,
    found: Found | None = None,
    service: str | None = None,
    birth: BirthId | None = None,
) -> Orphan:
    return Orphan(
        pid=seen.pid,
        command=load().command_line(seen.pid),
        parent=seen.ppid,
        found=found,
        why=why,
        service=service,
        birth=birth,
        never=never_from_here(seen.pid),
    )


def _sighting(pid: int) -> Sighting | None:
    """Look at a process once; None when it has gone, or has exited."""
    platform = load()
    try:
        pinned = platform.pin(pid)
    except ProcessGone:
        return None
    with pinned:
        seen = platform.observe(pinned)
    return None if seen is None or seen.exited else seen


def _birth_or_none(text: str) -> BirthId | None:
    try:
        return birth_id(text)
    except ValueError:
        return None
