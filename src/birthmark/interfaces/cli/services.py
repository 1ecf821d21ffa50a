"""`start`, `stop` and `restart`: one wish each, sent to the running supervisor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from birthmark.children.installation import open_installation, state_home
from birthmark.interfaces.cli.client import ErrorAnswer, ask, service_path
from birthmark.interfaces.cli.explain import leader_of, members
from birthmark.interfaces.cli.options import json_option, timeout_option
from birthmark.interfaces.cli.ps import Status, chosen
from birthmark.interfaces.cli.records import read_records, written_down
from birthmark.interfaces.cli.render import has_survivors, one_line, print_json, receipt_lines
from birthmark.interfaces.faces import Exit
from birthmark.interfaces.whose import whose


@click.command(
    epilog="""\b
Examples:
  birthmark stop time
  birthmark stop --force time fetch      SIGKILL at once
  birthmark stop --dry-run time          what would be signalled; nothing is
"""
)
@click.argument("services", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Leave out the polite rungs: SIGKILL at once.")
@click.option("--dry-run", is_flag=True, help="Only list what would be signalled.")
@timeout_option
@json_option
def stop(services: tuple[str, ...], force: bool, dry_run: bool, timeout_s: float, as_json: bool) -> int:
    """Stop services: every process of each, whoever forked it. They stay down until `start`."""
    names = _known(services)
    if dry_run:
        _show_members({name: _members_of(name) for name in names}, as_json)
        return Exit.DONE
    answers = {name: _stop(name, force, timeout_s) for name in names}
    if as_json:
        print_json({"stopped": list(answers.values())})
    else:
        for name, answer in answers.items():
            _print_receipt(name, answer.get("receipt"))
    survive = [
        isinstance(each := answer.get("receipt"), dict) and has_survivors(each) for answer in answers.values()
    ]
    return Exit.SURVIVORS if any(survive) else Exit.DONE


@click.command(
    epilog="""\b
Examples:
  birthmark start time
"""
)
@click.argument("services", nargs=-1, required=True)
@timeout_option
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
@timeout_option
@json_option
def restart(services: tuple[str, ...], timeout_s: float, as_json: bool) -> int:
    """Stop services and start them anew."""
    return _act(services, "restart", timeout_s, as_json)


def _stop(name: str, force: bool, timeout_s: float) -> Mapping[str, object]:
    """Stop one service. Survivors are named by the receipt, so that the other services are stopped all the same."""
    try:
        return ask(state_home(), "POST", service_path(name, "stop"), {"force": force}, timeout_s=timeout_s)
    except ErrorAnswer as err:
        if err.type != "StopTimedOut" or not isinstance(err.body.get("receipt"), dict):
            raise
        return err.body


def _members_of(name: str) -> list[dict[str, object]]:
    installation = open_installation()
    with written_down(installation) as registry:
        records = read_records(installation, registry)
        pid = leader_of(name, records)
        return [] if pid is None else members(whose(pid, records), installation)


def _show_members(would: Mapping[str, Sequence[Mapping[str, object]]], as_json: bool) -> None:
    if as_json:
        print_json({"would_signal": would})
        return
    for name, each in would.items():
        click.echo(f"{one_line(name)}: {'would signal' if each else 'nothing runs'}")
        for member in each:
            click.echo(f"  {member['pid']}  {member['found']}  {one_line(str(member['command']))}".rstrip())


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
    return list(dict.fromkeys(services))


def _print_receipt(name: str, receipt: object) -> None:
    if isinstance(receipt, dict):
        click.echo("\n".join(receipt_lines(receipt)))
    else:
        click.echo(f"{one_line(name)}: was not running; it stays down until `birthmark start`")
