"""What a registry promises, and the records it keeps.

Every implementation passes one suite (`tests/contracts/test_registry.py`). All calls block, for
at most the time box of the implementation; an event loop makes them from a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Protocol

from birthmark.core.identity import Identity
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import ExitStatus
from birthmark.core.service import BirthId, InstallationId, ServiceName
from birthmark.core.states import Desired


class BirthState(Enum):
    """How far one spawn has come, as far as it was written down."""

    INTENDED = "intended"
    """Written before the spawn: the process may exist, and nobody wrote down who it is."""

    BORN = "born"
    """It exists, and its identity is known."""

    ENDED = "ended"
    """Its whole set is gone, and somebody saw it go."""

    LOST = "lost"
    """It is gone, and nobody saw it end: its exit status is unknown for ever."""


class BirthOrigin(Enum):
    """Who spawned it."""

    UP = "up"
    """A supervisor, whose registry this is."""

    RUN = "run"
    """`birthmark run`, which keeps papers; they were taken in later. Copies are per client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The supervisor that holds an installation. `identity` is None once it has left in order."""

    epoch: int
    identity: Identity | None
    owned_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRecord:
    """A service as it was last wanted. `spec` holds plain values and no value of any secret."""

    name: ServiceName
    kind: ChildKind
    desired: Desired
    spec: Mapping[str, object]
    digest: str
    changed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class BirthRecord:
    """One spawn of one service. `exit` is None while it lives, and when nobody saw it end.

    `epoch` is 0 for a birth that no supervisor started.
    """

    birth: BirthId
    service: ServiceName
    kind: ChildKind
    state: BirthState
    epoch: int
    identity: Identity | None
    intended_at: datetime
    born_at: datetime | None = None
    ended_at: datetime | None = None
    exit: ExitStatus | None = None
    why: str | None = None
    origin: BirthOrigin = BirthOrigin.UP


@dataclass(frozen=True, slots=True, kw_only=True)
class PortLease:
    """A port held for a service, whether it runs or not."""

    port: int
    service: ServiceName
    leased_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One line of the audit: plain values, never changed once written. Numbers grow."""

    number: int
    at: datetime
    entry: Mapping[str, object]


class Registry(Protocol):
    """The memory of one installation.

    Writing needs an epoch: whoever `take`s the installation gets the next one, and a write with
    an older one raises `RecordConflict`, so that a supervisor which lost its lock can write nothing.

    Raises, each call:
        RegistryUnavailable: It cannot be read or written now: locked, full, read-only, corrupt, closed.
        RecordUndecodable: A record cannot be decoded; it is named, never skipped.
    """

    @property
    def installation(self) -> InstallationId:
        """Whose memory this is."""
        ...

    def take(self, identity: Identity, at: datetime) -> int:
        """Become the owner, whose identity is written down; returns the new epoch, 1 or more."""
        ...

    def leave(self, epoch: int) -> None:
        """Take the owner's identity out again; the epoch stays taken."""
        ...

    def owner(self) -> Owner | None:
        """Return who took the installation last, or None when nobody ever did."""
        ...

    def put_service(self, record: ServiceRecord, *, epoch: int) -> None:
        """Write a service down, in place of what was known under its name."""
        ...

    def set_desired(self, service: ServiceName, desired: Desired, at: datetime, *, epoch: int) -> None:
        """Write down what the user wants of a known service.

        Raises:
            RecordConflict: No service of that name is written down.
        """
        ...

    def services(self) -> list[ServiceRecord]:
        """Return all services written down, by name."""
        ...

    def intend(
        self, birth: BirthId, service: ServiceName, kind: ChildKind, at: datetime, *, epoch: int
    ) -> None:
        """Write a birth down before its spawn; on disk, not in a cache, when this returns.

        Raises:
            RecordConflict: That birth is written down already.
        """
        ...

    def born(self, birth: BirthId, identity: Identity, at: datetime, *, epoch: int) -> None:
        """Write down who was born.

        Raises:
            RecordConflict: The birth is not in the state *intended*.
        """
        ...

    def ended(
        self,
        birth: BirthId,
        at: datetime,
        *,
        epoch: int,
        status: ExitStatus | None = None,
        lost: bool = False,
        why: str | None = None,
    ) -> None:
        """Write down that all of a birth is gone; with `lost`, that nobody saw it go.

        Raises:
            RecordConflict: The birth is not known, or has ended already.
        """
        ...

    def take_in(self, births: Sequence[BirthRecord], *, epoch: int) -> int:
        """Write down births as they are, open ones and ended ones, all or none; on disk when this returns.

        Those that are written down already stay as they were, so that taking in twice changes nothing.
        Returns how many were new.
        """
        ...

    def birth(self, birth: BirthId) -> BirthRecord | None:
        """Return one birth, or None when it is not known."""
        ...

    def open_births(self) -> list[BirthRecord]:
        """Return the births that are intended or born, oldest first."""
        ...

    def ended_births(self, *, last: int = 1000) -> list[BirthRecord]:
        """Return the `last` births that are ended or lost, newest first."""
        ...

    def births_of(self, service: ServiceName, *, last: int = 10) -> list[BirthRecord]:
        """Return the `last` births of a service, newest first."""
        ...

    def lease_port(self, port: int, service: ServiceName, at: datetime, *, epoch: int) -> None:
        """Hold a port for a service. Leasing what one has leased already changes nothing.

        Raises:
            RecordConflict: It is leased to another service, which is named.
            ValueError: It is no port: 1 to 65535 are.
        """
        ...

    def release_port(self, port: int, service: ServiceName, *, epoch: int) -> None:
        """Let go of a port. What the service had not leased is left alone."""
        ...

    def leases(self) -> list[PortLease]:
        """Return all leases, by port."""
        ...

    def append_audit(self, entries: Sequence[tuple[datetime, Mapping[str, object]]]) -> None:
        """Append lines to the audit, all or none. Needs no epoch: who refuses, writes it down too."""
        ...

    def audit(self, *, last: int = 100) -> list[AuditEntry]:
        """Return the `last` lines of the audit, oldest first."""
        ...

    def close(self) -> None:
        """Let go of it. Closing twice is harmless; every later call raises `RegistryUnavailable`."""
        ...
