"""`ports`: who listens, and whose they are."""

from __future__ import annotations

from typing import Final

import click

from birthmark.children.installation import open_installation
from birthmark.children.ports import Holder, PortState, holders_of
from birthmark.errors import LookFailed
from birthmark.interfaces.cli.options import json_option
from birthmark.interfaces.cli.records import read_records, written_down
from birthmark.interfaces.cli.render import NONE, print_json, table
from birthmark.interfaces.faces import Exit
from birthmark.interfaces.ownership import Owner, Records, Whose
from birthmark.interfaces.whose import whose

HEADS: Final = ("PORT", "ADDRESS", "PID", "OWNER", "SERVICE", "WHY", "COMMAND")
_COLOURS: Final = {
    "ours": "green",
    "stranger": "red",
    "unknown": "yellow",
    "unseen": "yellow",
    "could not look": "red",
}


@click.command(
    epilog="""\b
Owners: ours, stranger, unknown (may be ours, and is never signalled), unseen (somebody this user may not see),
nobody, could not look. Exit codes: 0, or 4 when a port could not be looked at.

\b
Examples:
  birthmark ports
  birthmark ports 8080
  birthmark ports --json 8080 | jq '.ports[0].holders[].pid'
"""
)
@click.argument("port", type=click.IntRange(1, 65535), required=False)
@json_option
def ports(port: int | None, as_json: bool) -> int:
    """Say who listens on a port, or on each port that is leased to a service, and whose they are."""
    installation = open_installation()
    with written_down(installation) as registry:
        records = read_records(installation, registry)
        leases = {lease.port: str(lease.service) for lease in (registry.leases() if registry else [])}
        wanted = [port] if port is not None else sorted(leases)
        found = [_look(number, records, leases.get(number)) for number in wanted]
    if as_json:
        print_json({"ports": found})
    elif not found:
        click.echo("no port is leased to a service; `birthmark ports PORT` looks at any other")
    else:
        click.echo(table(HEADS, [row for each in found for row in _rows(each)], colour=_colour))
    looked = all(each["state"] != PortState.COULD_NOT_LOOK.value for each in found)
    return Exit.DONE if looked else Exit.UNKNOWN


def _look(port: int, records: Records, lease: str | None) -> dict[str, object]:
    expected = [
        identity.pid
        for record, identity in records.leaders()
        if lease is None or str(record.service) == lease
    ]
    answer = holders_of(port, expected=expected, all_holders=True)
    return {
        "port": port,
        "state": answer.state.value,
        "leased_to": lease,
        "cause": answer.cause,
        "holders": [_holder(each, records) for each in answer.holders],
        "unseen": [{"address": str(each), "uid": each.uid} for each in answer.unseen],
    }


def _holder(holder: Holder, records: Records) -> dict[str, object]:
    try:
        found = whose(holder.pid, records)
    except LookFailed as err:
        found = Whose(pid=holder.pid, owner=Owner.UNKNOWN, why=(str(err),))
    return {**found.to_dict(), "addresses": [str(each) for each in holder.listeners], "shared": holder.shared}


def _rows(found: dict[str, object]) -> list[list[str]]:
    """Return one row a holder, and one for what has none."""
    port = str(found["port"])
    leased = f"leased to {found['leased_to']}" if found["leased_to"] else NONE
    match found["state"]:
        case PortState.NOBODY.value:
            return [[port, NONE, NONE, "nobody", NONE, leased, NONE]]
        case PortState.COULD_NOT_LOOK.value:
            return [[port, NONE, NONE, "could not look", NONE, str(found["cause"]), NONE]]
    holders, unseen = found["holders"], found["unseen"]
    assert isinstance(holders, list)
    assert isinstance(unseen, list)
    rows = [
        [
            port,
            ", ".join(each["addresses"]) or NONE,
            str(each["pid"]),
            each["owner"],
            each["service"] or NONE,
            each["why"][0],
            each["command"],
        ]
        for each in holders
    ]
    for each in unseen:
        why = f"a process of user {each['uid']} that this user may not see"
        rows.append([port, each["address"], NONE, "unseen", NONE, why, NONE])
    return rows or [[port, NONE, NONE, "unseen", NONE, "a process that this user may not see", NONE]]


def _colour(head: str, cell: str) -> str | None:
    return _COLOURS.get(cell) if head == "OWNER" else None
