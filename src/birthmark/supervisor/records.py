"""A service as the registry remembers it: what is wanted, and what it was, without the value of any secret."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from birthmark.config.model import HIDDEN, ServiceSpec
from birthmark.core.outcomes import Receipt
from birthmark.core.service import ServiceName
from birthmark.core.states import Desired
from birthmark.registry.contract import ServiceRecord
from birthmark.supervisor.house import House

_CUT_AT: Final = 1000
"""Command lines shorter than this, in characters, were read whole: the platforms read 4096 bytes, four to a character."""

_TELLS_NOTHING: Final = 3
"""So many characters of a secret give nothing away."""


def service_record(spec: ServiceSpec, desired: Desired, at: datetime) -> ServiceRecord:
    """Return the record of a service."""
    shown = shown_spec(spec)
    text = json.dumps(shown, sort_keys=True)
    return ServiceRecord(
        name=spec.name,
        kind=spec.kind,
        desired=desired,
        spec=shown,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        changed_at=at,
    )


def shown_spec(spec: ServiceSpec) -> dict[str, object]:
    """Return a service's specification as plain values that may be shown.

    The command stands as it was written, with references in place of what they mean; of one that was
    not written by anybody only the program is told, since any argument may be a secret. Values of the
    environment are never told, whoever declared them: nobody can say which of them is harmless.
    """
    return {
        "command": list(spec.written)
        if spec.written
        else [*spec.command[:1], *[HIDDEN for _ in spec.command[1:]]],
        "env": sorted(spec.env),
        "env_profile": spec.env_profile.value,
        "cwd": None if spec.cwd is None else str(spec.cwd),
        "port": spec.port,
        "port_range": None if spec.port_range is None else list(spec.port_range),
        "url": spec.written_url,
        "transport": spec.transport.value,
        "restart": spec.restart.value,
        "ready": spec.ready.kind.value,
        "enabled": spec.enabled,
        "source": spec.source,
        "line": spec.line,
    }


def hide_secrets(spec: ServiceSpec | None, receipt: Receipt | None) -> None:
    """Put references back in place of what they mean, in the command lines that a receipt shows."""
    if spec is None or receipt is None:
        return
    written = spec.written or (*spec.command[:1], *[HIDDEN for _ in spec.command[1:]])
    shown = {
        meant: said for meant, said in zip(spec.command, written, strict=False) if meant and meant != said
    }
    shown |= {value: HIDDEN for name, value in spec.env.items() if name in spec.secrets and value}
    shown |= {_as_listed(value): said for value, said in shown.items()}
    # The longest first: one secret may be a part of another.
    for value in sorted(shown, key=len, reverse=True):
        for member in receipt.members:
            member.command = member.command.replace(value, shown[value])
    for member in receipt.members:
        member.command = _without_a_beginning(member.command, shown)


def _as_listed(value: str) -> str:
    """Return an argument as the platforms list it: what cannot be printed is escaped."""
    raw = value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in raw)


def _without_a_beginning(command: str, shown: Mapping[str, str]) -> str:
    """Return a command line whose end is no beginning of a secret: a long one is cut where it is read."""
    if len(command) < _CUT_AT:
        return command
    for value in sorted(shown, key=len, reverse=True):
        for length in range(min(len(value) - 1, len(command)), _TELLS_NOTHING, -1):
            if command.endswith(value[:length]):
                return command[:-length] + shown[value]
    return command


def remembered(house: House) -> Mapping[ServiceName, Desired]:
    """Return what is wanted of each service written down.

    Raises:
        RegistryError: It cannot be read; a record that cannot be decoded is named.
    """
    return {record.name: record.desired for record in house.registry.services()}
