"""Births as the registry knows them, around real puppets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from birthmark.children.command import new_birth
from birthmark.children.installation import Installation, open_installation
from birthmark.core.identity import Identity
from birthmark.core.markers import ChildKind, mark_entries, scrub
from birthmark.core.service import BirthId, ServiceName
from birthmark.core.states import Desired
from birthmark.platforms import load
from birthmark.registry.contract import ServiceRecord
from birthmark.registry.sqlite import SqliteRegistry
from birthmark.testing.puppet import Puppet, puppet

AT = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass
class House:
    """An installation with a registry that somebody has taken."""

    installation: Installation
    registry: SqliteRegistry
    epoch: int

    def know(self, name: str) -> None:
        """Write a service down."""
        self.registry.put_service(
            ServiceRecord(
                name=ServiceName(name),
                kind=ChildKind.MCP,
                desired=Desired.UP,
                spec={},
                digest="",
                changed_at=AT,
            ),
            epoch=self.epoch,
        )

    def mark(self, name: str, birth: BirthId) -> dict[str, str]:
        """Return an environment with the mark of a birth."""
        marks = mark_entries(
            kind=ChildKind.MCP, service=ServiceName(name), installation=self.installation.id, birth=birth
        )
        return {**marks, **scrub(dict(os.environ))}

    def record(self, name: str, birth: BirthId, pid: int, *, elsewhere: bool = False) -> Identity:
        """Write down that the process with that pid, or one of that pid elsewhere, is the leader of the birth."""
        with load().pin(pid) as pinned:
            seen = load().observe(pinned)
        assert seen is not None
        identity = seen.identity(
            birth=birth, installation=self.installation.id, kind=ChildKind.MCP, service=ServiceName(name)
        )
        if elsewhere:
            identity = replace(identity, pid_namespace=identity.pid_namespace + 1)
        self.registry.intend(birth, ServiceName(name), ChildKind.MCP, AT, epoch=self.epoch)
        self.registry.born(birth, identity, AT, epoch=self.epoch)
        return identity

    @contextmanager
    def birth(self, name: str, script: str = "ready(); obey()") -> Iterator[tuple[Puppet, BirthId]]:
        """Run a marked puppet that is recorded as the leader of a birth of the service."""
        birth = new_birth()
        self.know(name)
        with puppet(script, env=self.mark(name, birth)) as child:
            child.wait_ready()
            self.record(name, birth, child.pid)
            yield child, birth


@contextmanager
def house() -> Iterator[House]:
    """Open this test's installation and take it."""
    installation = open_installation()
    with SqliteRegistry(installation.registry_path, installation.id) as registry:
        facts = load().facts()
        ourselves = Identity(
            host=facts.host,
            boot=facts.boot,
            pid_namespace=facts.pid_namespace,
            pid=os.getpid(),
            start_ticks=load().start_ticks_of(os.getpid()) or 0,
        )
        yield House(installation, registry, registry.take(ourselves, AT))
