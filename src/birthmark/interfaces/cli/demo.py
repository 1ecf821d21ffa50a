"""`demo`: real servers up, proved, spoken to, killed, restarted and stopped, with nothing to configure."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from birthmark.interfaces.cli.render import json_option, print_json
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
    from birthmark.errors import SupervisionError
    from birthmark.interfaces.demo.play import play
    from birthmark.interfaces.demo.telling import DemoFailed, Teller

    teller = Teller(as_json)
    with _told_to_stop(), _folder(keep, teller.end) as folder:
        try:
            play(teller, folder, offline=offline)
        except DemoFailed as failure:
            teller.failed(failure)
        except SupervisionError as err:
            teller.failed(DemoFailed(str(err)))
    told = teller.to_dict()
    if as_json:
        print_json(told)
    if not told["ok"]:
        teller.end("The demo did not show what it promises; the reason is above.")
        return Exit.FAILED
    teller.end(f"That was birthmark, in {teller.took_s:.0f} s. Yours: birthmark up -f .mcp.json")
    return Exit.DONE


@contextmanager
def _folder(keep: bool, say: object) -> Iterator[Path]:
    """Make the folder of this one demo; removed at the end, unless it is to be kept."""
    folder = Path(tempfile.mkdtemp(prefix="birthmark-demo-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _told_to_stop() -> Iterator[None]:
    """Have SIGTERM and a hang-up end the demo as ^C does: what it started is stopped first."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    heeded = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in heeded:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, signal.SIG_DFL)
