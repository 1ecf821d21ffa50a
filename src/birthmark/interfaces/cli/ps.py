"""`ps` and `status`: what should be, what was last seen, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

from birthmark.children.installation import state_home
from birthmark.errors import UnknownService
from birthmark.interfaces.cli.client import ask
from birthmark.interfaces.cli.options import json_option
from birthmark.interfaces.cli.render import NONE, length, print_json, table
from birthmark.interfaces.faces import Exit

Status = Mapping[str, object]
"""One service as the API shows it."""

HEADS: Final = ("NAME", "KIND", "DESIRED", "OBSERVED", "PID", "PORT", "UPTIME", "RESTARTS", "WHY")

_COLOURS: Final = {
    "ready": "green",
    "starting": "yellow",
    "stopping": "yellow",
    "backoff": "yellow",
    "unready": "yellow",
    "blocked": "red",
    "gave_up": "red",
    "unknown": "red",
}
_RUNNING: Final = frozenset({"starting", "ready", "unready", "stopping"})


@click.command(
    epilog="""\b
Examples:
  birthmark ps
  birthmark ps --json | jq '.services[] | select(.observed != "ready")'
"""
)
@click.argument("services", nargs=-1)
@json_option
def ps(services: tuple[str, ...], as_json: bool) -> int:
    """List the services of the running supervisor: all, or those named."""
    show(chosen(services), as_json)
    return Exit.DONE


@click.command(
    epilog="""\b
Exit codes, as systemd's: 0 all of them run, 3 one does not, 4 one is unknown, or there is no supervisor.

\b
Examples:
  birthmark status time || echo "time is not running"
"""
)
@click.argument("services", nargs=-1)
@json_option
def status(services: tuple[str, ...], as_json: bool) -> int:
    """As `ps`; the exit code says whether the services run."""
    found = chosen(services)
    show(found, as_json)
    return Exit.DONE if all(each.get("observed") in _RUNNING for each in found) else Exit.NOT_RUNNING


def chosen(names: Sequence[str]) -> list[Status]:
    """Ask the supervisor for its services; return those named, in that order, or all.

    Raises:
        UnknownService: It has none of a given name.
        SupervisorUnreachable: None runs.
    """
    answer = ask(state_home(), "GET", "/v1/services").get("services")
    services = {str(each.get("name")): each for each in (answer if isinstance(answer, list) else [])}
    for name in names:
        if name not in services:
            raise UnknownService(name, sorted(services))
    return [services[name] for name in dict.fromkeys(names)] if names else list(services.values())


def show(services: Sequence[Status], as_json: bool) -> None:
    """Print services as a table, or as JSON."""
    if as_json:
        print_json({"services": list(services)})
    elif not services:
        click.echo("the supervisor runs no service")
    else:
        click.echo(table(HEADS, [_row(each) for each in services], colour=_colour))


def _row(service: Status) -> list[str]:
    def text(key: str) -> str:
        value = service.get(key)
        return NONE if value is None else str(value)

    uptime = service.get("uptime_s")
    return [
        text("name"),
        text("kind"),
        text("desired"),
        text("observed"),
        text("pid"),
        text("port"),
        length(float(uptime)) if isinstance(uptime, int | float) else NONE,
        text("restarts"),
        text("why"),
    ]


def _colour(head: str, cell: str) -> str | None:
    return _COLOURS.get(cell) if head == "OBSERVED" else None
