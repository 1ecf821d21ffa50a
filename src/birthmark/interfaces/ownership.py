"""Whose a process is, as values, and what a process says of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from birthmark.core.identity import UNREADABLE, EnvironState, Evidence, Identity, Proof, Reason, Sighting
from birthmark.core.markers import Mark, is_tag, read_mark
from birthmark.core.outcomes import Found
from birthmark.core.service import BirthId, InstallationId, birth_id
from birthmark.registry.contract import BirthRecord, Registry


class Owner(Enum):
    """The answer in one word."""

    OURS = "ours"
    STRANGER = "stranger"
    UNKNOWN = "unknown"
    """It could be ours, and nothing proves it. It is never signalled."""
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """One process, and what is known of whose it is.

    `found` says how it belongs to `birth`, LEADER with a `proof` of its identity; None for a stranger.
    `why` are whole sentences without a full stop, the deciding one first.
    """

    pid: int
    owner: Owner
    why: tuple[str, ...]
    service: str | None = None
    kind: str | None = None
    birth: BirthId | None = None
    found: Found | None = None
    leader: int | None = None
    """The pid of the birth's leader, where that is proven."""
    proof: Proof | None = None
    command: str = ""
    parent: int | None = None
    never: str | None = None
    """The rule by which it is never signalled from here, whoever's it is; None when none holds."""

    def to_dict(self) -> dict[str, object]:
        """Return it as plain values for JSON."""
        return {
            "pid": self.pid,
            "owner": self.owner.value,
            "why": list(self.why),
            "service": self.service,
            "kind": self.kind,
            "birth": self.birth,
            "found": self.found.value if self.found else None,
            "leader": self.leader,
            "proof": self.proof.to_dict() if self.proof else None,
            "command": self.command,
            "parent": self.parent,
            "never_signalled": self.never,
        }


@dataclass(slots=True)
class Records:
    """What the question needs of the registry, read once."""

    installation: InstallationId
    births: list[BirthRecord] = field(default_factory=list)
    supervisor: Identity | None = None
    registry: Registry | None = None
    papers: Callable[[BirthId], BirthRecord | None] = lambda _: None
    """Looks a birth of `birthmark run` up that is not in the registry yet."""

    @classmethod
    def read(cls, installation: InstallationId, registry: Registry | None) -> Records:
        """Read the open births and the supervisor's identity; without a registry there are none."""
        if registry is None:
            return cls(installation)
        owner = registry.owner()
        return cls(installation, registry.open_births(), owner.identity if owner else None, registry)

    def birth(self, birth: BirthId) -> BirthRecord | None:
        """Return one birth, open or ended."""
        for record in self.births:
            if record.birth == birth:
                return record
        return (self.registry.birth(birth) if self.registry else None) or self.papers(birth)

    def leaders(self) -> Iterator[tuple[BirthRecord, Identity]]:
        """Iterate over the births whose leader's identity is known."""
        for record in self.births:
            if record.identity is not None:
                yield record, record.identity


class OwnWords(NamedTuple):
    """What a process that no open birth claims says of itself, by its mark and tag."""

    owner: Owner
    why: tuple[str, ...]
    service: str | None = None
    birth: BirthId | None = None


_UNREADABLE_WHY = {
    EnvironState.DENIED: Reason.ENVIRON_DENIED,
    EnvironState.HIDDEN: Reason.ENVIRON_HIDDEN,
    EnvironState.UNSUPPORTED: Reason.ENVIRON_UNSUPPORTED,
}


def own_words(seen: Sighting, records: Records) -> OwnWords:
    """Read what the process says of itself. A mark of ours without a record never makes it ours: unknown means no."""
    mark = read_mark(seen.environ)
    if mark is not None and mark.installation != records.installation:
        return OwnWords(Owner.STRANGER, (f"its mark names another installation ({mark.installation})",))
    if mark is not None:
        return _unclaimed(mark, records)
    if seen.tag is not None and is_tag(seen.tag):
        return OwnWords(
            Owner.UNKNOWN, ("its resource limit carries the tag of a birth that is not recorded here",)
        )
    if seen.environ_state in UNREADABLE:
        reason = str(Evidence(_UNREADABLE_WHY[seen.environ_state]))
        return OwnWords(Owner.UNKNOWN, (reason, "no record of ours names it"))
    nothing = "its environment holds no entry, and its resource limits hold no tag"
    why = "its environment is readable and carries no mark of ours" if seen.environ else nothing
    return OwnWords(Owner.STRANGER, (why, "it descends from no process of ours"))


def _unclaimed(mark: Mark, records: Records) -> OwnWords:
    """Say what a mark of our installation means when no open birth claims it."""
    service = ", ".join(sorted(name for _, name in mark.services)) or None
    if mark.api:
        why = "it carries the mark of this installation's API server, and is not the supervisor on record"
        return OwnWords(Owner.UNKNOWN, (why,), service)
    try:
        birth = birth_id(mark.birth or "")
    except ValueError:
        return OwnWords(Owner.UNKNOWN, (f"it carries our mark ({service}) and no valid birth",), service)
    record = records.birth(birth)
    if record is None:
        why = f"it carries our mark, of a birth of {service!r} that nobody recorded"
        return OwnWords(Owner.UNKNOWN, (why,), service, birth)
    why = f"it is a stray: it carries the mark of a birth of {str(record.service)!r} recorded as {record.state.value}"
    return OwnWords(Owner.UNKNOWN, (why, "`birthmark orphans --reap` ends it"), str(record.service), birth)
