"""Who a process is, and whether the one seen now is the one written down: pure decisions.

A pid is only the kernel's number for a process now. (pid, start time) proves nothing either:
a number forced back into use shares its start tick in most tries. What decides is the pidfs
inode, which is never reused, or the mark and the tag of the birth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from birthmark.core.markers import ChildKind
from birthmark.core.records import dataclass
from birthmark.core.service import (
    BirthId,
    InstallationId,
    ServiceName,
    birth_id,
    installation_id,
    service_name,
)

__all__ = [
    "EnvironState",
    "Evidence",
    "HostFacts",
    "Identity",
    "Proof",
    "Reason",
    "Sighting",
    "Verdict",
]


class Verdict(Enum):
    """The answer to *is this live process the one recorded?* We act on SAME only."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    GONE = "gone"


class EnvironState(Enum):
    """What reading another process's environment gave."""

    READABLE = "readable"
    """Entries were read, whole."""

    DESTROYED = "destroyed"
    """The block exists and holds no entry: ``env -i``, or a title written over it."""

    PARENTS = "parents"
    """Forked and not exec'ed yet: the block still is the parent's. Look again."""

    SETTLING = "settling"
    """Inside execve, where the new block is not there yet, or on its way out. Look again."""

    DENIED = "denied"
    """The kernel refused: another user's, or not dumpable."""

    HIDDEN = "hidden"
    """procfs does not show the process (``hidepid``), or there is no procfs."""

    UNSUPPORTED = "unsupported"
    """This platform never shows another process's environment."""


UNREADABLE = frozenset({EnvironState.DENIED, EnvironState.HIDDEN, EnvironState.UNSUPPORTED})
TRANSIENT = frozenset({EnvironState.PARENTS, EnvironState.SETTLING})


class Reason(Enum):
    """One piece of evidence, as a word that appears unchanged in JSON and logs."""

    GONE = "gone"
    ZOMBIE = "zombie"
    OTHER_HOST = "other_host"
    OTHER_BOOT = "other_boot"
    OTHER_PID_NAMESPACE = "other_pid_namespace"
    OTHER_START_TIME = "other_start_time"
    OTHER_INODE = "other_inode"
    HELD_SINCE_BIRTH = "held_since_birth"
    MARK_OF_THIS_BIRTH = "mark_of_this_birth"
    TAG_OF_THIS_BIRTH = "tag_of_this_birth"
    MARK_OF_ANOTHER_INSTALLATION = "mark_of_another_installation"
    MARK_OF_ANOTHER_KIND = "mark_of_another_kind"
    MARK_OF_ANOTHER_SERVICE = "mark_of_another_service"
    MARK_OF_ANOTHER_BIRTH = "mark_of_another_birth"
    TAG_OF_ANOTHER_BIRTH = "tag_of_another_birth"
    MARK_MATCHES = "mark_matches"
    ENVIRON_DENIED = "environ_denied"
    ENVIRON_HIDDEN = "environ_hidden"
    ENVIRON_UNSUPPORTED = "environ_unsupported"
    ENVIRON_DESTROYED = "environ_destroyed"
    ENVIRON_SETTLING = "environ_settling"
    NO_MARK = "no_mark"
    SAME_INODE = "same_inode"
    NO_INODE = "no_inode"
    NEVER_A_TARGET = "never_a_target"
    IDENTITY_UNSUPPORTED = "identity_unsupported"


WORDS: dict[Reason, str] = {
    Reason.GONE: "no process has that pid any more",
    Reason.ZOMBIE: "it has exited and waits to be reaped",
    Reason.OTHER_HOST: "the record was written on another host",
    Reason.OTHER_BOOT: "the record is from another boot of this host",
    Reason.OTHER_PID_NAMESPACE: "the record is from another pid namespace",
    Reason.OTHER_START_TIME: "it started at another time: the pid was recycled",
    Reason.OTHER_INODE: "its pidfs inode is another one: the pid was recycled",
    Reason.HELD_SINCE_BIRTH: "we have held its pidfd since its birth",
    Reason.MARK_OF_THIS_BIRTH: "its environment carries the mark of this birth",
    Reason.TAG_OF_THIS_BIRTH: "its resource limit carries the tag of this birth",
    Reason.MARK_OF_ANOTHER_INSTALLATION: "its mark names another installation",
    Reason.MARK_OF_ANOTHER_KIND: "its mark is that of another kind of child",
    Reason.MARK_OF_ANOTHER_SERVICE: "its mark names another service",
    Reason.MARK_OF_ANOTHER_BIRTH: "its mark names another birth of the service",
    Reason.TAG_OF_ANOTHER_BIRTH: "its resource limit carries the tag of another birth",
    Reason.MARK_MATCHES: "its environment carries the mark of this service and installation",
    Reason.ENVIRON_DENIED: "the kernel does not let us read its environment",
    Reason.ENVIRON_HIDDEN: "procfs hides it from us",
    Reason.ENVIRON_UNSUPPORTED: "this platform shows no other process's environment",
    Reason.ENVIRON_DESTROYED: "its environment holds no entry (cleared, or overwritten by a process title)",
    Reason.ENVIRON_SETTLING: "it is between fork and exec, or exiting: it has no environment of its own now",
    Reason.NO_MARK: "its environment is readable and carries no mark of ours",
    Reason.SAME_INODE: "its pidfs inode is the one recorded at birth",
    Reason.NO_INODE: "there is no pidfs inode to compare",
    Reason.NEVER_A_TARGET: "it is never a target: pid 0, ourselves, or no pid at all",
    Reason.IDENTITY_UNSUPPORTED: "this platform cannot verify who a process is",
}


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Where pids mean something: they do on one host, in one boot, in one pid namespace."""

    host: str
    boot: str
    pid_namespace: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a process is, written down at its birth.

    `start_ticks` counts clock ticks since boot, so no step of the wall clock changes it; -1 where the
    system hid it from us. `inode` is the pidfs inode, None where the kernel (before 6.9) has none that differ.
    `birth`, `kind` and `service` are None for a process that we did not spawn.
    """

    host: str
    boot: str
    pid_namespace: int
    pid: int
    start_ticks: int
    inode: int | None = None
    birth: BirthId | None = None
    installation: InstallationId | None = None
    kind: ChildKind | None = None
    service: ServiceName | None = None

    @property
    def facts(self) -> HostFacts:
        """Where its pid means something."""
        return HostFacts(self.host, self.boot, self.pid_namespace)

    def to_dict(self) -> dict[str, str | int | None]:
        """Return the identity as plain values, the way records and JSON hold it."""
        return {
            "host": self.host,
            "boot": self.boot,
            "pid_namespace": self.pid_namespace,
            "pid": self.pid,
            "start_ticks": self.start_ticks,
            "inode": self.inode,
            "birth": self.birth,
            "installation": self.installation,
            "kind": self.kind.value if self.kind else None,
            "service": None if self.service is None else str(self.service),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, object]) -> Identity:
        """Read what `to_dict` wrote; unknown keys of a newer version are ignored.

        Raises:
            ValueError: A field is missing or of the wrong type; it is named.
        """
        kind = _field(record, "kind", str, optional=True)
        service = _field(record, "service", str, optional=True)
        birth = _field(record, "birth", str, optional=True)
        owner = _field(record, "installation", str, optional=True)
        inode = _field(record, "inode", int, optional=True)
        return cls(
            host=str(_field(record, "host", str)),
            boot=str(_field(record, "boot", str)),
            pid_namespace=_number(record, "pid_namespace"),
            pid=_number(record, "pid"),
            start_ticks=_number(record, "start_ticks", least=-1),
            inode=None if inode is None else int(str(inode)),
            birth=None if birth is None else birth_id(str(birth)),
            installation=None if owner is None else installation_id(str(owner)),
            kind=None if kind is None else ChildKind(str(kind)),
            service=None if service is None else service_name(str(service)),
        )


def _field(record: Mapping[str, object], name: str, kind: type, *, optional: bool = False) -> object:
    value = record.get(name)
    if value is None and optional:
        return None
    # bool is an int to isinstance, and never a pid.
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"the identity's {name!r} is {value!r}, where {kind.__name__} is expected")
    return value


def _number(record: Mapping[str, object], name: str, *, least: int = 0) -> int:
    value = _field(record, name, int)
    assert isinstance(value, int)
    if value < least:
        raise ValueError(f"the identity's {name!r} is {value}, below {least}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What one look at a live process saw; nothing in it is a guess.

    `start_ticks` is -1 where the system hides it. `tag` is the raw soft value of the tag's resource
    limit, None where it could not be read.
    `environ` is the whole block, empty unless `environ_state` is READABLE (or PARENTS).
    `exited` is the pidfd's word, or, without one, state Z with no thread left.
    """

    facts: HostFacts
    pid: int
    start_ticks: int
    inode: int | None
    exited: bool
    ppid: int
    pgid: int
    session: int
    state: str
    threads: int
    environ_state: EnvironState
    environ: bytes = b""
    tag: int | None = None

    def identity(
        self,
        *,
        birth: BirthId | None = None,
        installation: InstallationId | None = None,
        kind: ChildKind | None = None,
        service: ServiceName | None = None,
    ) -> Identity:
        """Write down who this is."""
        return Identity(
            host=self.facts.host,
            boot=self.facts.boot,
            pid_namespace=self.facts.pid_namespace,
            pid=self.pid,
            start_ticks=self.start_ticks,
            inode=self.inode,
            birth=birth,
            installation=installation,
            kind=kind,
            service=service,
        )


@dataclass(frozen=True, slots=True)
class Evidence:
    """One reason, with what was expected and what was found where that helps a reader."""

    reason: Reason
    expected: str | None = None
    found: str | None = None

    def __str__(self) -> str:
        words = WORDS[self.reason]
        if self.expected is None and self.found is None:
            return words
        if self.expected is None:
            return f"{words} ({self.found})"
        return f"{words} (recorded {self.expected}, found {self.found})"


@dataclass(frozen=True, slots=True)
class Proof:
    """Verdict and evidence for one pid. The first piece of evidence is the one that decided."""

    pid: int
    verdict: Verdict
    evidence: tuple[Evidence, ...]

    @property
    def reason(self) -> Reason:
        """The deciding reason."""
        return self.evidence[0].reason

    @property
    def elsewhere(self) -> bool:
        """Whether the record is about a place we cannot look at: nothing seen here says that it is gone.

        Another boot of this host is no such place: nothing has outlived it.
        """
        return self.reason in (Reason.OTHER_HOST, Reason.OTHER_PID_NAMESPACE)

    @property
    def transient(self) -> bool:
        """Whether the process is inside an exec, so that looking again may tell more."""
        return self.verdict is Verdict.UNKNOWN and any(
            e.reason is Reason.ENVIRON_SETTLING for e in self.evidence
        )

    def with_evidence(self, extra: Iterable[Evidence]) -> Proof:
        """Return the proof with more evidence behind the deciding one."""
        return Proof(self.pid, self.verdict, (*self.evidence, *extra))

    def to_dict(self) -> dict[str, object]:
        """Return the proof as plain values for JSON."""
        return {
            "pid": self.pid,
            "verdict": self.verdict.value,
            "evidence": [
                {"reason": e.reason.value, "expected": e.expected, "found": e.found} for e in self.evidence
            ],
        }

    def __str__(self) -> str:
        return f"{self.verdict.value}: " + "; ".join(map(str, self.evidence))


def gone(pid: int, reason: Reason = Reason.GONE) -> Proof:
    """Return the proof that nothing lives under `pid`."""
    return Proof(pid, Verdict.GONE, (Evidence(reason),))
