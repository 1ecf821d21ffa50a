"""What is written down, read without a supervisor: the registry, and the papers of births under `run`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from birthmark.children.installation import Installation
from birthmark.core.identity import Identity
from birthmark.core.markers import ChildKind
from birthmark.core.service import birth_id, service_name
from birthmark.errors import RecordUndecodable
from birthmark.interfaces.ownership import Records
from birthmark.keeper.papers import EXIT, IDENTITY, INTENT
from birthmark.registry.contract import BirthRecord, BirthState, Registry


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
    """Return all that is known of births that have not ended: the supervisor's, and those of `birthmark run`.

    Raises:
        RegistryUnavailable, RecordUndecodable: Something that is there cannot be read.
    """
    records = Records.read(installation.id, registry)
    known = {record.birth for record in records.births}
    records.births += [each for each in open_papers(installation.births) if each.birth not in known]
    return records


def open_papers(births: Path) -> list[BirthRecord]:
    """Return the births that have papers and no exit record, in no order.

    Raises:
        RecordUndecodable: A paper is there and says nothing that can be understood.
    """
    found = []
    with os.scandir(births) as folders:
        for folder in folders:
            if os.path.exists(os.path.join(folder.path, EXIT)):
                continue
            record = _birth_in(Path(folder.path))
            if record is not None:
                found.append(record)
    return found


def _birth_in(folder: Path) -> BirthRecord | None:
    """Read the papers of one birth; None while not even its intent is there."""
    intent = _paper(folder / INTENT)
    if intent is None:
        return None
    born = _paper(folder / IDENTITY)
    try:
        identity = Identity.from_dict(dict(born["identity"])) if born else None  # type: ignore[call-overload]
        return BirthRecord(
            birth=birth_id(folder.name),
            service=service_name(str(intent["service"])),
            kind=ChildKind(intent["kind"]),
            state=BirthState.INTENDED if identity is None else BirthState.BORN,
            epoch=0,
            identity=identity,
            intended_at=_time(intent),
            born_at=_time(born) if born else None,
        )
    except (KeyError, TypeError, ValueError) as err:
        raise RecordUndecodable(str(folder), str(err)) from err


def _time(paper: dict[str, object]) -> datetime:
    at = paper["at"]
    if not isinstance(at, int | float):
        raise TypeError(f"'at' is {at!r}, no number of seconds")
    return datetime.fromtimestamp(at, UTC)


def _paper(path: Path) -> dict[str, object] | None:
    try:
        paper = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as err:
        raise RecordUndecodable(str(path), str(err)) from err
    if not isinstance(paper, dict):
        raise RecordUndecodable(str(path), "it is no JSON object")
    return paper
