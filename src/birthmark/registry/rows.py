"""From records to the text in a row and back: strict, and naming the row that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from birthmark.core.identity import Identity
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import ExitStatus
from birthmark.core.service import birth_id, service_name
from birthmark.core.states import Desired
from birthmark.errors import RecordUndecodable
from birthmark.registry.contract import (
    AuditEntry,
    BirthOrigin,
    BirthRecord,
    BirthState,
    Owner,
    PortLease,
    ServiceRecord,
)

Row = Mapping[str, object]
"""One row by column name. A `sqlite3.Row` becomes one with `dict`."""

FIRST_PORT: Final = 1
LAST_PORT: Final = 65535


@contextmanager
def decoding(record: str) -> Iterator[None]:
    """Name the record in which something could not be decoded."""
    try:
        yield
    except (ValueError, TypeError, KeyError) as err:
        raise RecordUndecodable(record, str(err) or type(err).__name__) from err


def checked_port(port: int) -> int:
    """Return the port.

    Raises:
        ValueError: It is none.
    """
    if isinstance(port, bool) or not FIRST_PORT <= port <= LAST_PORT:
        raise ValueError(f"{port!r} is no port: {FIRST_PORT} to {LAST_PORT} are")
    return port


def to_json(value: Mapping[str, object]) -> str:
    """Return plain values as one line of JSON whose order is stable, in ASCII: a path need not be valid Unicode."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def to_text(words: str) -> str:
    """Return words for people as a row can hold them: what is not valid Unicode is escaped."""
    return words.encode("utf-8", "backslashreplace").decode("utf-8")


def to_time(at: datetime) -> str:
    """Return an aware time as UTC text.

    Raises:
        ValueError: It carries no zone.
    """
    if at.tzinfo is None:
        raise ValueError(f"{at} carries no time zone")
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def owner_of(row: Row) -> Owner | None:
    """Decode the owner in a row of `installations`; None when nobody ever took it."""
    with decoding(f"installation {row['id']}"):
        epoch = _integer(row, "epoch")
        if epoch == 0:
            return None
        held = row["owner"]
        return Owner(
            epoch=epoch,
            identity=None if held is None else Identity.from_dict(_object(held)),
            owned_at=_time(row, "owned_at"),
        )


def service_of(row: Row) -> ServiceRecord:
    """Decode a row of `services`."""
    with decoding(f"service {row['name']!r}"):
        return ServiceRecord(
            name=service_name(_text(row, "name")),
            kind=ChildKind(row["kind"]),
            desired=Desired(row["desired"]),
            spec=_object(row["spec"]),
            digest=_text(row, "digest"),
            changed_at=_time(row, "changed_at"),
        )


def birth_of(row: Row) -> BirthRecord:
    """Decode a row of `births`."""
    with decoding(f"birth {row['id']}"):
        identity = None if row["identity"] is None else Identity.from_dict(_object(row["identity"]))
        state = BirthState(row["state"])
        birth = birth_id(_text(row, "id"))
        if state is BirthState.BORN and identity is None:
            raise ValueError("it was born, and its identity is missing")
        if identity is not None and identity.birth != birth:
            raise ValueError(f"its identity is that of birth {identity.birth}")
        return BirthRecord(
            birth=birth,
            service=service_name(_text(row, "service")),
            kind=ChildKind(row["kind"]),
            state=state,
            epoch=_integer(row, "epoch"),
            identity=identity,
            intended_at=_time(row, "intended_at"),
            born_at=_time_or_none(row, "born_at"),
            ended_at=_time_or_none(row, "ended_at"),
            exit=None if row["exit"] is None else _exit(_object(row["exit"])),
            why=None if row["why"] is None else _text(row, "why"),
            origin=BirthOrigin(row["origin"]),
        )


def values_of(record: BirthRecord) -> tuple[str | int | None, ...]:
    """Return a birth as a row of `births` holds it, from `service` on, in the order of `SqliteRegistry.take_in`."""

    def time(at: datetime | None) -> str | None:
        return None if at is None else to_time(at)

    return (
        str(record.service),
        record.kind.value,
        record.state.value,
        record.epoch,
        None if record.identity is None else to_json(record.identity.to_dict()),
        to_time(record.intended_at),
        time(record.born_at),
        time(record.ended_at),
        to_json(record.exit.to_dict()) if record.exit is not None and record.exit.known else None,
        None if record.why is None else to_text(record.why),
        record.origin.value,
    )


def lease_of(row: Row) -> PortLease:
    """Decode a row of `port_leases`."""
    with decoding(f"lease of port {row['port']}"):
        return PortLease(
            port=checked_port(_integer(row, "port")),
            service=service_name(_text(row, "service")),
            leased_at=_time(row, "leased_at"),
        )


def audit_of(row: Row) -> AuditEntry:
    """Decode a row of `audit`."""
    with decoding(f"audit line {row['number']}"):
        return AuditEntry(number=_integer(row, "number"), at=_time(row, "at"), entry=_object(row["entry"]))


def _object(text: object) -> dict[str, object]:
    if not isinstance(text, str):
        raise ValueError(f"{text!r} where JSON is expected")
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{text!r} where a JSON object is expected")
    return value


def _exit(record: Mapping[str, object]) -> ExitStatus:
    code, signal, dumped = record.get("code"), record.get("signal"), record.get("core_dumped", False)
    for value in (code, signal):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise ValueError(f"an exit status holds {value!r}")
    return ExitStatus(
        code=code if isinstance(code, int) else None,
        signal=signal if isinstance(signal, int) else None,
        core_dumped=bool(dumped),
    )


def _text(row: Row, column: str) -> str:
    value = row[column]
    if not isinstance(value, str):
        raise ValueError(f"its {column} is {value!r}, where text is expected")
    return value


def _integer(row: Row, column: str) -> int:
    value = row[column]
    if not isinstance(value, int):
        raise ValueError(f"its {column} is {value!r}, where a number is expected")
    return value


def _time(row: Row, column: str) -> datetime:
    at = datetime.fromisoformat(_text(row, column))
    if at.tzinfo is None:
        raise ValueError(f"its {column} carries no time zone")
    return at


def _time_or_none(row: Row, column: str) -> datetime | None:
    return None if row[column] is None else _time(row, column)
