"""What every part of the supervisor shares, and how it writes things down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import anyio.to_thread

from birthmark.children.installation import Installation
from birthmark.children.spawning import Spawner
from birthmark.config.model import SupervisorSettings
from birthmark.core.clock import Clock
from birthmark.registry.contract import Registry
from birthmark.supervisor.drains import Drains
from birthmark.supervisor.orphans import OrphanReaper
from birthmark.supervisor.trail import AuditTrail


@dataclass(slots=True)
class House:
    """The shared things. `epoch` is ours since the installation was taken; `environ` is what children inherit from."""

    installation: Installation
    registry: Registry
    clock: Clock
    say: Callable[[str], None]
    settings: SupervisorSettings
    environ: Mapping[str, str]
    epoch: int
    trail: AuditTrail
    spawner: Spawner = field(default_factory=Spawner)
    drains: Drains = field(default_factory=Drains)
    orphans: OrphanReaper = field(default_factory=OrphanReaper)

    async def write(self, call: Callable[[], None]) -> None:
        """Make a writing call of the registry in a thread: it waits for the disk.

        Raises:
            RegistryError: It could not be written.
        """
        await anyio.to_thread.run_sync(call)
