"""`down`: stop everything and end the supervisor, also one that does not answer."""

from __future__ import annotations

from functools import partial
from typing import Final

import click

from birthmark.children.installation import Installation, open_installation, state_home
from birthmark.core.identity import Verdict
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import NotOurs, Stopped
from birthmark.core.service import API_SERVER_SERVICE
from birthmark.errors import IdentityMismatch, SupervisorUnreachable
from birthmark.interfaces.cli.client import ask
from birthmark.interfaces.cli.options import json_option, timeout_option
from birthmark.interfaces.cli.records import written_down
from birthmark.interfaces.cli.render import has_survivors, print_json, receipt_lines
from birthmark.interfaces.faces import Exit

GRACE_S: Final = 90.0
"""More than the bound of a whole shutdown, which the signal begins: killed in the middle, it would leave it to the next."""


@click.command(
    epilog="""\b
Examples:
  birthmark down
  birthmark down --json | jq '.receipts[].took_ms'
"""
)
@timeout_option
@json_option
def down(timeout_s: float, as_json: bool) -> int:
    """Stop all services and end the supervisor."""
    home = state_home()
    try:
        answer = ask(home, "POST", "/v1/down", timeout_s=timeout_s)
    except SupervisorUnreachable:
        if not home.exists() or (stopped := stop_unanswered(open_installation(home))) is None:
            raise
        return _show_unanswered(stopped, as_json)
    found = answer.get("receipts")
    receipts = [each for each in (found if isinstance(found, list) else []) if isinstance(each, dict)]
    if as_json:
        print_json(answer)
    else:
        for receipt in receipts:
            click.echo("\n".join(receipt_lines(receipt)))
        if not receipts:
            click.echo("nothing was running")
    return Exit.SURVIVORS if any(map(has_survivors, receipts)) else Exit.DONE


def stop_unanswered(installation: Installation) -> Stopped | None:
    """Stop the supervisor on record if it is proven to be the one; None when there is none.

    Raises:
        IdentityMismatch: A process has its pid, and it is not proven to be the supervisor. Nothing was signalled.
        StopTimedOut: It lives on.
        RegistryError, LookFailed: We could not know.
    """
    with written_down(installation) as registry:
        owner = registry.owner() if registry is not None else None
    if owner is None or owner.identity is None:
        return None
    # Imported here: the usual `down` asks through the socket, and loads no event loop.
    import anyio

    from birthmark.children.control import stop_owned

    ask = partial(stop_owned, installation=installation.id, identity=owner.identity)
    outcome = anyio.run(ask, owner.identity.pid, ChildKind.API, API_SERVER_SERVICE, GRACE_S)
    if isinstance(outcome, NotOurs):
        if outcome.proof.verdict is Verdict.DIFFERENT:
            return None  # its number is somebody else's by now: the supervisor is gone
        raise IdentityMismatch(outcome.proof)
    return outcome if isinstance(outcome, Stopped) else None


def _show_unanswered(stopped: Stopped, as_json: bool) -> int:
    receipt = None if stopped.receipt is None else stopped.receipt.to_dict()
    if as_json:
        print_json({"receipts": [], "supervisor": {"pid": stopped.pid, "receipt": receipt}})
    else:
        click.echo(
            f"the supervisor did not answer on its socket; process {stopped.pid} was proven to be it, and stopped"
        )
        click.echo("\n".join(receipt_lines(receipt or {})))
    return Exit.DONE
