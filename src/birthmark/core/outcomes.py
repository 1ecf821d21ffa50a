"""What came of it: exits, stops and signals as values."""

from __future__ import annotations

import signal
from enum import Enum

from birthmark.core.identity import Proof, Verdict
from birthmark.core.records import dataclass, field


class Termination(Enum):
    """How a termination ended."""

    ALREADY_EXITED = "already_exited"
    """Nothing was left to signal."""

    EXITED = "exited"
    """It left within its grace period."""

    KILLED = "killed"
    """At least one member needed SIGKILL."""


class ApiServerStamp(Enum):
    """Whether this process carries the API server's mark."""

    STAMPED = "stamped"
    UNVERIFIABLE = "unverifiable"


@dataclass(frozen=True, slots=True)
class NotRunning:
    """There was nothing to stop."""

    pid: int


@dataclass(frozen=True, slots=True)
class NotOurs:
    """A live process that could not be proven ours: nothing was signalled. `proof` says why."""

    pid: int
    proof: Proof


@dataclass(frozen=True, slots=True)
class Stopped:
    """Ours, and stopped."""

    pid: int
    termination: Termination
    receipt: Receipt | None = None


StopOutcome = NotRunning | NotOurs | Stopped
"""What `stop_owned` found and did."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: with a code, by a signal, or unknown (both None). Never just an int."""

    code: int | None = None
    signal: int | None = None
    core_dumped: bool = False

    @property
    def known(self) -> bool:
        """Whether anything is known at all."""
        return self.code is not None or self.signal is not None

    def shell_code(self) -> int:
        """Return what a shell would: the code, or 128 + the signal.

        Raises:
            ValueError: The status is unknown.
        """
        if self.signal is not None:
            return 128 + self.signal
        if self.code is None:
            raise ValueError("an unknown exit status has no shell code")
        return self.code

    def to_dict(self) -> dict[str, object]:
        """Return the status as plain values for records and JSON."""
        return {"code": self.code, "signal": self.signal, "core_dumped": self.core_dumped}

    def __str__(self) -> str:
        if self.signal is not None:
            return f"signal {self.signal} ({signal_name(self.signal)})"
        return "unknown" if self.code is None else f"exit code {self.code}"


class Scope(Enum):
    """What one signal was addressed to."""

    PROCESS = "process"
    GROUP = "group"


class Basis(Enum):
    """Why we may signal a process."""

    PROOF = "proof"
    """A `Proof` with verdict SAME."""

    DESCENT = "descent"
    """It is a descendant of a proven process, its parent checked again just before."""

    MEMBER = "member"
    """It carries the mark or tag of the birth being stopped, or is in its leader's group."""

    CHILD = "child"
    """Our own unreaped child: the kernel cannot have given its number away."""

    CALLER = "caller's word"
    """The caller of a low-level function vouches for the pid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warrant:
    """The right to signal one process: who asks, and on what ground.

    `proof` is needed for PROOF; `parent` (a pid) for DESCENT.
    """

    basis: Basis
    asked_by: str
    proof: Proof | None = None
    parent: int | None = None

    def covers(self, pid: int) -> bool:
        """Say whether the warrant, as far as values can tell, is good for `pid`."""
        if self.basis is Basis.PROOF:
            return self.proof is not None and self.proof.pid == pid and self.proof.verdict is Verdict.SAME
        if self.basis is Basis.DESCENT:
            return self.parent is not None
        return True


class Delivery(Enum):
    """What became of one signal."""

    SENT = "sent"
    GONE = "gone"
    REFUSED = "refused"
    NOT_PERMITTED = "not_permitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRecord:
    """One line of the audit: a signal that left, or that was refused."""

    pid: int
    signal: int
    scope: Scope
    basis: Basis
    asked_by: str
    result: Delivery
    detail: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the record as plain values for JSON."""
        return {
            "pid": self.pid,
            "signal": signal_name(self.signal),
            "scope": self.scope.value,
            "basis": self.basis.value,
            "asked_by": self.asked_by,
            "result": self.result.value,
            "detail": self.detail,
        }


class Found(Enum):
    """How a member of a set was found."""

    LEADER = "leader"
    GROUP = "group"
    SESSION = "session"
    DESCENDANT = "descendant"
    MARK = "mark"
    TAG = "tag"


@dataclass(slots=True, kw_only=True)
class MemberReceipt:
    """What a stop did to one member of a set.

    `sent` lists signal names with the milliseconds since the stop began; `end` says how it ended, or None while it lives.
    """

    pid: int
    found: Found
    command: str = ""
    sent: list[tuple[str, int]] = field(default_factory=list)
    end: str | None = None
    why: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the member as plain values for JSON."""
        return {
            "pid": self.pid,
            "found": self.found.value,
            "command": self.command,
            "sent": [{"signal": name, "after_ms": ms} for name, ms in self.sent],
            "end": self.end,
            "why": self.why,
        }


@dataclass(slots=True, kw_only=True)
class Receipt:
    """What a stop did to each member of a set. `survivors` is empty when all of it is gone."""

    service: str
    termination: Termination
    members: list[MemberReceipt] = field(default_factory=list)
    took_ms: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def survivors(self) -> list[MemberReceipt]:
        """The members that still live."""
        return [member for member in self.members if member.end is None]

    def to_dict(self) -> dict[str, object]:
        """Return the receipt as plain values for JSON."""
        return {
            "service": self.service,
            "termination": self.termination.value,
            "members": [member.to_dict() for member in self.members],
            "took_ms": self.took_ms,
            "notes": list(self.notes),
        }


def signal_name(number: int) -> str:
    """Return a signal's name, or its number as text when it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(int(number))
