"""`demo`: real servers up, proved, spoken to, killed, restarted and stopped, with nothing to configure."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from birthmark.interfaces.cli.options import json_option
from birthmark.interfaces.cli.render import print_json
from birthmark.interfaces.faces import Exit


@click.command(
    epilog="""\b
It uses an installation of its own, in a temporary folder, and two free ports. The servers are installed
once, from PyPI, into the user's cache folder.

\b
Examples:
  birthmark demo
  birthmark demo --keep       leaves the configuration and the logs to look at
"""
)
@click.option("--keep", is_flag=True, help="Leave the demo's folder: configuration, logs, registry.")
@click.option("--offline", is_flag=True, help="Install nothing; say what is missing.")
@json_option
def demo(keep: bool, offline: bool, as_json: bool) -> int:
    """Show it all on real servers: up, proved, spoken to, killed, up again, stopped."""
    if os.name != "posix":
        raise click.ClickException("the demo needs Linux or macOS: it starts and kills as they do")
    from birthmark.interfaces.demo.play import show
    from birthmark.interfaces.demo.telling import Teller

    teller = Teller(as_json)
    with _told_to_stop():
        done = show(teller, offline=offline, keep=keep)
    if as_json:
        print_json(teller.to_dict())
    if kept := teller.facts.get("folder"):
        teller.end(f"The configuration, the logs and the registry are in {kept}")
    if done:
        teller.end(f"All of it in {teller.took_s:.0f} s. Now yours: birthmark up -f .mcp.json")
    else:
        teller.end("The demo has not shown what it promises; the reason is above.")
    return Exit.DONE if done else Exit.FAILED


@contextmanager
def _told_to_stop() -> Iterator[None]:
    """Have SIGTERM and a hang-up end the demo as ^C does: what it started is stopped first."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    heeded = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL
    ]
    for number in heeded:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, signal.SIG_DFL)
