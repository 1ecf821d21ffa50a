"""What is written down, read without a supervisor: the registry, and the papers of births under `run`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from birthmark.children.installation import Installation
from birthmark.core.service import BirthId
from birthmark.errors import RecordUndecodable
from birthmark.interfaces.ownership import Records
from birthmark.keeper.reading import PaperUnreadable, read_papers
from birthmark.registry.contract import BirthRecord, Registry
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
    # Those that have ended are many, and looked up when one is asked for.
    shelf = read_papers_of(installation, ended=False)
    for unreadable in shelf.unreadable:
        raise RecordUndecodable(str(unreadable.path), unreadable.why)
    known = {record.birth for record in records.births}
    records.births += [record_of(papers) for papers in shelf.papers if papers.birth not in known]
    records.papers = partial(_look_up, installation)
    return records


def _look_up(installation: Installation, birth: BirthId) -> BirthRecord | None:
    try:
        papers = read_papers(installation.births / birth)
    except PaperUnreadable as err:
        raise RecordUndecodable(str(err.path), err.why) from err
    return None if papers is None or papers.installation != installation.id else record_of(papers)
