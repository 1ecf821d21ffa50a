"""What can be said of a service, as values: nothing in it is a secret."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from birthmark.core.identity import Proof
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import ExitStatus
from birthmark.core.service import BirthId, ServiceName
from birthmark.core.states import Desired, Observed


@dataclass(frozen=True, slots=True, kw_only=True)
class LastExit:
    """How the last birth ended, when, and whether we had asked for it."""

    status: ExitStatus
    at: datetime
    asked: bool

    def to_dict(self) -> dict[str, object]:
        """Return it as plain values for JSON."""
        return {**self.status.to_dict(), "at": self.at.isoformat(), "asked": self.asked, "text": str(self)}

    def __str__(self) -> str:
        return f"{self.status}, as asked" if self.asked else str(self.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """One service as it is wanted and as it was last seen.

    `why` explains `observed` in words; `pid` to `proof` are None while nothing of it runs, and `proof` also
    where its leader could not be looked at just now.
    `stdout_bytes` counts a drained stdout, None where stdout goes to the log.
    """

    name: ServiceName
    kind: ChildKind
    desired: Desired
    observed: Observed
    why: str
    pid: int | None = None
    port: int | None = None
    url: str | None = None
    birth: BirthId | None = None
    started_at: datetime | None = None
    uptime_s: float | None = None
    restarts: int = 0
    last_exit: LastExit | None = None
    stdout_bytes: int | None = None
    proof: Proof | None = None
    log: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return it as plain values for JSON."""
        return {
            "name": str(self.name),
            "kind": self.kind.value,
            "desired": self.desired.value,
            "observed": self.observed.value,
            "why": self.why,
            "pid": self.pid,
            "port": self.port,
            "url": self.url,
            "birth": self.birth,
            "started_at": None if self.started_at is None else self.started_at.isoformat(),
            "uptime_s": None if self.uptime_s is None else round(self.uptime_s, 3),
            "restarts": self.restarts,
            "last_exit": None if self.last_exit is None else self.last_exit.to_dict(),
            "stdout_bytes": self.stdout_bytes,
            "proof": None if self.proof is None else self.proof.to_dict(),
            "log": self.log,
        }
