"""`explain`: whose a process is, why, and what a stop would signal."""

from __future__ import annotations

from typing import Final

import click

from birthmark.children.installation import Installation, open_installation
from birthmark.children.proving import pin_or_none
from birthmark.core.parsers import signalable_pid
from birthmark.errors import UnknownService
from birthmark.interfaces.cli.options import json_option
from birthmark.interfaces.cli.records import read_records, written_down
from birthmark.interfaces.cli.render import one_line, print_json, tint
from birthmark.interfaces.faces import Exit
from birthmark.interfaces.ownership import Owner, Records, Whose
from birthmark.interfaces.whose import whose
from birthmark.platforms.contract import Pinned

_EXITS: Final = {
    Owner.OURS: Exit.DONE,
    Owner.GONE: Exit.NOT_RUNNING,
    Owner.UNKNOWN: Exit.UNKNOWN,
    Owner.STRANGER: Exit.REFUSED,
}
_COLOURS: Final = {Owner.OURS: "green", Owner.GONE: None, Owner.UNKNOWN: "yellow", Owner.STRANGER: "red"}


@click.command(
    # A pid of -1 is a mistake to be explained, not an option.
    context_settings={"ignore_unknown_options": True},
    epilog="""\b
Exit codes: 0 ours, 3 gone or not running, 4 unknown (never signalled), 5 a stranger (never signalled).

\b
Examples:
  birthmark explain 4711
  birthmark explain time
  birthmark explain --json 4711 | jq .would_signal
""",
)
@click.argument("subject", metavar="PID|SERVICE")
@json_option
def explain(subject: str, as_json: bool) -> int:
    """Say whose a process is and why, and what a stop would signal. Signals nothing."""
    pid = _pid(subject)
    installation = open_installation()
    with written_down(installation) as registry:
        records = read_records(installation, registry)
        if pid is None:
            pid = leader_of(subject, records)
        found = whose(pid, records) if pid is not None else _not_running(subject, records)
    would = members(found, installation)
    if as_json:
        print_json({**found.to_dict(), "would_signal": would})
    else:
        click.echo("\n".join(_lines(found, would)))
    return _EXITS[found.owner]


def _pid(subject: str) -> int | None:
    """Return the pid a person typed; None when it is the name of a service.

    Raises:
        UsageError: It is a number, and no process can have it.
    """
    # `int` would also take `1_0`, full-width digits and blanks.
    digits = subject.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        if not subject:
            raise click.UsageError(
                "the service's name is empty; give a pid, or a name that `birthmark ps` lists"
            )
        return None
    pid = int(subject)
    if signalable_pid(pid) is None:
        what = (
            "names our own process group"
            if pid == 0
            else "names a group, or everything"
            if pid < 0
            else "is too big"
        )
        raise click.UsageError(f"{subject} is no pid of a process: it {what}; pids are 1 to 2147483647")
    return pid


def leader_of(name: str, records: Records) -> int | None:
    """Return the pid of the leader of the service's open birth; None when none is open here.

    A birth on record from another host, boot or pid namespace says nothing of our pids.
    """
    from birthmark.platforms import load

    here = load().facts()
    for record, identity in records.leaders():
        if str(record.service) == name and identity.facts == here:
            return identity.pid
    return None


def _not_running(name: str, records: Records) -> Whose:
    """Say of a known service without an open birth how its last one ended.

    Raises:
        UnknownService: Nothing of that name was ever written down.
    """
    registry = records.registry
    known = {str(each.name): each for each in (registry.services() if registry else [])}
    if registry is None or name not in known:
        raise UnknownService(name, sorted(known))
    why = ["it does not run"]
    for last in registry.births_of(known[name].name, last=1):
        how = str(last.exit) if last.exit is not None else "nobody saw how it ended"
        why.append(f"its last birth, {last.birth}, is {last.state.value}: {how}")
        if last.why:
            why.append(f"the record says: {last.why}")
    return Whose(pid=0, owner=Owner.GONE, why=tuple(why), service=name, kind=known[name].kind.value)


def members(found: Whose, installation: Installation) -> list[dict[str, object]]:
    """Return what a stop of the process's birth would signal, and how each was found: the finder is the stop's own."""
    from birthmark.children.members import set_of
    from birthmark.platforms import load

    if found.owner is not Owner.OURS or found.birth is None:
        return []
    platform = load()
    rows: list[dict[str, object]] = []
    held: list[Pinned] = []
    leader = pin_or_none(found.leader) if found.leader is not None else None
    try:
        if leader is not None and not platform.exited(leader):
            rows.append({"pid": leader.pid, "found": "leader", "command": platform.command_line(leader.pid)})
        known = [leader] if leader is not None else []
        for pinned, how in set_of(leader, birth=found.birth, installation=installation.id)(known):
            held.append(pinned)
            command = platform.command_line(pinned.pid)
            rows.append({"pid": pinned.pid, "found": how.value, "command": command})
    finally:
        for pinned in held:
            pinned.close()
        if leader is not None:
            leader.close()
    return rows


def _lines(found: Whose, would: list[dict[str, object]]) -> list[str]:
    subject = f"process {found.pid}" if found.pid else f"service {one_line(found.service or '')}"
    lines = [f"{subject}: {tint(found.owner.value, _COLOURS[found.owner])}"]
    if found.command:
        lines.append(f"  command   {one_line(found.command)}")
    if found.parent is not None:
        lines.append(f"  parent    {found.parent}")
    if found.service is not None and found.pid:
        kind = f" ({found.kind})" if found.kind else ""
        lines.append(f"  service   {one_line(found.service)}{kind}")
    if found.birth is not None:
        lines.append(f"  birth     {found.birth}")
    lines += [f"  {'why' if number == 0 else '':<9} {one_line(why)}" for number, why in enumerate(found.why)]
    if found.never is not None:
        lines.append(f"  never     signalled from here: {found.never}")
    if found.owner in (Owner.STRANGER, Owner.UNKNOWN):
        lines.append("  a stop    would not touch it")
    for number, each in enumerate(would):
        head = "a stop" if number == 0 else ""
        verb = "would signal" if number == 0 else "       and   "
        lines.append(
            f"  {head:<9} {verb} {each['pid']} ({each['found']})  {one_line(str(each['command']))}".rstrip()
        )
    return lines
