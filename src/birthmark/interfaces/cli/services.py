"""`start`, `stop`, `restart` and `down`: one wish each, sent to the running supervisor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import click

from birthmark.children.installation import state_home
from birthmark.interfaces.cli.client import ErrorAnswer, ask, service_path
from birthmark.interfaces.cli.ps import Status, chosen
from birthmark.interfaces.cli.render import has_survivors, json_option, one_line, print_json, receipt_lines
from birthmark.interfaces.faces import Exit

ACT_WITHIN_S: Final = 120.0

_F = TypeVar("_F", bound=Callable[..., object])


def _timeout_option(command: _F) -> _F:
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, min_open=True),
        default=ACT_WITHIN_S,
        show_default=True,
        metavar="SECONDS",
        help="Wait no longer for the answer. What was asked for goes on; the exit code is 124.",
    )(command)


@click.command(
    epilog="""\b
Examples:
  birthmark stop time
  birthmark stop --force time fetch      SIGKILL at once
"""
)
@click.argument("services", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Leave out the polite rungs: SIGKILL at once.")
@_timeout_option
@json_option
def stop(services: tuple[str, ...], force: bool, timeout_s: float, as_json: bool) -> int:
    """Stop services: every process of each, whoever forked it. They stay down until `start`."""
    home = state_home()
    answers = []
    for name in _known(services):
        try:
            path = service_path(name, "stop")
            answers.append(ask(home, "POST", path, {"force": force}, timeout_s=timeout_s))
        except ErrorAnswer as err:
            # What lives on is named by its receipt; the other services are stopped all the same.
            if err.type != "StopTimedOut" or not isinstance(err.body.get("receipt"), dict):
                raise
            answers.append({"receipt": err.body["receipt"], "status": None, "error": err.body.get("error")})
    receipts = [each["receipt"] for each in answers if isinstance(each.get("receipt"), dict)]
    if as_json:
        print_json({"stopped": answers})
    else:
        for name, answer in zip(_known_order(services), answers, strict=True):
            _print_receipt(name, answer.get("receipt"))
    return Exit.SURVIVORS if any(map(_survives, receipts)) else Exit.DONE


@click.command(
    epilog="""\b
Examples:
  birthmark start time
"""
)
@click.argument("services", nargs=-1, required=True)
@_timeout_option
@json_option
def start(services: tuple[str, ...], timeout_s: float, as_json: bool) -> int:
    """Start services that were stopped or gave up. What runs already is left as it is."""
    return _act(services, "start", timeout_s, as_json)


@click.command(
    epilog="""\b
Examples:
  birthmark restart time
"""
)
@click.argument("services", nargs=-1, required=True)
@_timeout_option
@json_option
def restart(services: tuple[str, ...], timeout_s: float, as_json: bool) -> int:
    """Stop services and start them anew."""
    return _act(services, "restart", timeout_s, as_json)


@click.command(
    epilog="""\b
Examples:
  birthmark down
  birthmark down --json | jq '.receipts[].took_ms'
"""
)
@_timeout_option
@json_option
def down(timeout_s: float, as_json: bool) -> int:
    """Stop all services and end the supervisor."""
    answer = ask(state_home(), "POST", "/v1/down", timeout_s=timeout_s)
    found = answer.get("receipts")
    receipts = found if isinstance(found, list) else []
    if as_json:
        print_json(answer)
    else:
        for receipt in receipts:
            click.echo("\n".join(receipt_lines(receipt)))
        if not receipts:
            click.echo("nothing was running")
    return Exit.SURVIVORS if any(map(_survives, receipts)) else Exit.DONE


def _act(services: Sequence[str], verb: str, timeout_s: float, as_json: bool) -> int:
    """Ask for one verb of each service, and print how each stands then."""
    home = state_home()
    statuses: list[Status] = []
    for name in _known(services):
        status = ask(home, "POST", service_path(name, verb), timeout_s=timeout_s).get("status")
        statuses.append(status if isinstance(status, dict) else {})
    if as_json:
        print_json({"services": statuses})
    else:
        for status in statuses:
            why = f" ({one_line(str(status['why']))})" if status.get("why") else ""
            click.echo(f"{one_line(str(status.get('name')))}: {status.get('observed')}{why}")
    return Exit.DONE


def _known(services: Sequence[str]) -> list[str]:
    """Return the names, each once, having made sure that all are known before anything is asked for."""
    chosen(services)
    return _known_order(services)


def _known_order(services: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(services))


def _print_receipt(name: str, receipt: object) -> None:
    if isinstance(receipt, dict):
        click.echo("\n".join(receipt_lines(receipt)))
    else:
        click.echo(f"{one_line(name)}: was not running; it stays down until `birthmark start`")


def _survives(receipt: object) -> bool:
    return isinstance(receipt, dict) and has_survivors(receipt)
