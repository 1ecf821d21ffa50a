"""What is written down, read without a supervisor: the registry, and the papers of births under `run`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from birthmark.children.installation import Installation
from birthmark.errors import RecordUndecodable
from birthmark.interfaces.ownership import Records
from birthmark.registry.contract import Registry
from birthmark.supervisor.taking_in import read_papers_of, record_of


@contextmanager
def written_down(installation: Installation) -> Iterator[Registry | None]:
    """Open the installation's registry for reading; None when there is none yet.

    Raises:
        RegistryUnavailable, RecordUndecodable: It is there, and cannot be read.
    """
    if not installation.registry_path.exists():
        yield None
        return
    from birthmark.registry.sqlite import SqliteRegistry

    with SqliteRegistry(installation.registry_path, installation.id, home=installation.home) as registry:
        yield registry


def read_records(installation: Installation, registry: Registry | None) -> Records:
    """Return all that is known of births: the supervisor's that have not ended, and those of `birthmark run`.

    Raises:
        RegistryUnavailable, RecordUndecodable: Something that is there cannot be read.
        InstallationBroken: The folder of the papers cannot be listed.
    """
    records = Records.read(installation.id, registry)
    shelf = read_papers_of(installation)
    for unreadable in shelf.unreadable:
        raise RecordUndecodable(str(unreadable.path), unreadable.why)
    known = {record.birth for record in records.births}
    for record in map(record_of, shelf.papers):
        if record.ended_at is not None:
            records.papers[record.birth] = record
        elif record.birth not in known:
            records.births.append(record)
    return records
