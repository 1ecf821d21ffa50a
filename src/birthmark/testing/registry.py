"""A registry that forgets: the same promises as the real ones, in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from birthmark.core.identity import Identity
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import ExitStatus
from birthmark.core.service import BirthId, InstallationId, ServiceName
from birthmark.core.states import Desired
from birthmark.errors import RecordConflict, RegistryUnavailable
from birthmark.registry.contract import AuditEntry, BirthRecord, BirthState, Owner, PortLease, ServiceRecord
from birthmark.registry.rows import checked_port

_OPEN = (BirthState.INTENDED, BirthState.BORN)


class MemoryRegistry:
    """A `Registry` for tests. Set `broken` to a text, and every call raises `RegistryUnavailable` with it."""

    def __init__(self, installation: InstallationId) -> None:
        self.broken: str | None = None
        self._installation = installation
        self._lock = threading.Lock()
        self._epoch = 0
        self._owner: tuple[Identity | None, datetime] | None = None
        self._services: dict[ServiceName, ServiceRecord] = {}
        self._births: dict[BirthId, BirthRecord] = {}
        self._leases: dict[int, PortLease] = {}
        self._audit: list[AuditEntry] = []

    @property
    def installation(self) -> InstallationId:
        """Whose memory this is."""
        return self._installation

    def take(self, identity: Identity, at: datetime) -> int:
        """Become the owner; see `Registry.take`."""
        with self._using(None):
            self._epoch += 1
            self._owner = (identity, at)
            return self._epoch

    def leave(self, epoch: int) -> None:
        """Take the owner's identity out again; see `Registry.leave`."""
        with self._using(epoch):
            if self._owner is not None:
                self._owner = (None, self._owner[1])

    def owner(self) -> Owner | None:
        """Return who took the installation last; see `Registry.owner`."""
        with self._using(None):
            if self._owner is None:
                return None
            return Owner(epoch=self._epoch, identity=self._owner[0], owned_at=self._owner[1])

    def put_service(self, record: ServiceRecord, *, epoch: int) -> None:
        """Write a service down; see `Registry.put_service`."""
        with self._using(epoch):
            self._services[record.name] = record

    def set_desired(self, service: ServiceName, desired: Desired, at: datetime, *, epoch: int) -> None:
        """Write down what the user wants; see `Registry.set_desired`."""
        with self._using(epoch):
            if service not in self._services:
                raise RecordConflict(f"service {str(service)!r}", "it is not written down")
            self._services[service] = replace(self._services[service], desired=desired, changed_at=at)

    def services(self) -> list[ServiceRecord]:
        """Return all services written down, by name."""
        with self._using(None):
            return [self._services[name] for name in sorted(self._services)]

    def intend(
        self, birth: BirthId, service: ServiceName, kind: ChildKind, at: datetime, *, epoch: int
    ) -> None:
        """Write a birth down before its spawn; see `Registry.intend`."""
        with self._using(epoch):
            if birth in self._births:
                raise RecordConflict(f"birth {birth}", "it is written down already")
            self._births[birth] = BirthRecord(
                birth=birth,
                service=service,
                kind=kind,
                state=BirthState.INTENDED,
                epoch=epoch,
                identity=None,
                intended_at=at,
            )

    def born(self, birth: BirthId, identity: Identity, at: datetime, *, epoch: int) -> None:
        """Write down who was born; see `Registry.born`."""
        with self._using(epoch):
            record = self._births.get(birth)
            if record is None or record.state is not BirthState.INTENDED:
                raise RecordConflict(f"birth {birth}", "it is not intended (unknown, or born already)")
            self._births[birth] = replace(record, state=BirthState.BORN, identity=identity, born_at=at)

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
        """Write down that all of a birth is gone; see `Registry.ended`."""
        with self._using(epoch):
            record = self._births.get(birth)
            if record is None or record.state not in _OPEN:
                raise RecordConflict(f"birth {birth}", "it is not open (unknown, or ended already)")
            state = BirthState.LOST if lost else BirthState.ENDED
            known = status if status is not None and status.known else None
            self._births[birth] = replace(record, state=state, ended_at=at, exit=known, why=why)

    def take_in(self, births: Sequence[BirthRecord], *, epoch: int) -> int:
        """Write down births as they are, all or none; see `Registry.take_in`."""
        with self._using(epoch):
            before = len(self._births)
            for record in births:
                known = record.exit if record.exit is not None and record.exit.known else None
                self._births.setdefault(record.birth, replace(record, exit=known))
            return len(self._births) - before

    def birth(self, birth: BirthId) -> BirthRecord | None:
        """Return one birth, or None when it is not known."""
        with self._using(None):
            return self._births.get(birth)

    def open_births(self) -> list[BirthRecord]:
        """Return the births that are intended or born, oldest first."""
        with self._using(None):
            found = [record for record in self._births.values() if record.state in _OPEN]
            return sorted(found, key=lambda record: record.intended_at)

    def ended_births(self, *, last: int = 1000) -> list[BirthRecord]:
        """Return the `last` births that are ended or lost, newest first."""
        with self._using(None):
            return self._newest([r for r in self._births.values() if r.state not in _OPEN], last)

    def births_of(self, service: ServiceName, *, last: int = 10) -> list[BirthRecord]:
        """Return the `last` births of a service, newest first."""
        with self._using(None):
            return self._newest([r for r in self._births.values() if r.service == service], last)

    def _newest(self, found: list[BirthRecord], last: int) -> list[BirthRecord]:
        found.reverse()
        return sorted(found, key=lambda record: record.intended_at, reverse=True)[:last]

    def lease_port(self, port: int, service: ServiceName, at: datetime, *, epoch: int) -> None:
        """Hold a port for a service; see `Registry.lease_port`."""
        checked_port(port)
        with self._using(epoch):
            held = self._leases.setdefault(port, PortLease(port=port, service=service, leased_at=at))
            if held.service != service:
                raise RecordConflict(f"port {port}", f"it is leased to {str(held.service)!r}")

    def release_port(self, port: int, service: ServiceName, *, epoch: int) -> None:
        """Let go of a port; see `Registry.release_port`."""
        with self._using(epoch):
            held = self._leases.get(port)
            if held is not None and held.service == service:
                del self._leases[port]

    def leases(self) -> list[PortLease]:
        """Return all leases, by port."""
        with self._using(None):
            return [self._leases[port] for port in sorted(self._leases)]

    def append_audit(self, entries: Sequence[tuple[datetime, Mapping[str, object]]]) -> None:
        """Append lines to the audit, all or none."""
        with self._using(None):
            for at, entry in entries:
                self._audit.append(AuditEntry(number=len(self._audit) + 1, at=at, entry=dict(entry)))

    def audit(self, *, last: int = 100) -> list[AuditEntry]:
        """Return the `last` lines of the audit, oldest first."""
        with self._using(None):
            return self._audit[-last:] if last > 0 else []

    def close(self) -> None:
        """Let go of everything. Closing twice is harmless."""
        self.broken = "it is closed"

    @contextmanager
    def _using(self, epoch: int | None) -> Iterator[None]:
        with self._lock:
            if self.broken is not None:
                raise RegistryUnavailable("in memory", self.broken)
            if epoch is not None and epoch != self._epoch:
                raise RecordConflict(
                    f"installation {self._installation}",
                    f"another supervisor took it over (epoch {self._epoch}, ours is {epoch})",
                )
            yield
