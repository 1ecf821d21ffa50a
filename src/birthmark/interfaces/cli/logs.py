"""`logs`: what services wrote, from the files themselves; no supervisor is asked."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

import click

from birthmark.children.installation import Installation, open_installation
from birthmark.core.service import service_name
from birthmark.errors import UnknownService
from birthmark.interfaces.cli.options import json_option
from birthmark.interfaces.cli.records import written_down
from birthmark.interfaces.cli.render import one_line
from birthmark.interfaces.faces import Exit
from birthmark.supervisor.journal import log_path

LOOK_EVERY_S: Final = 0.25
"""How often a followed file is looked at: its writer tells nobody, and an inotify needs no less code."""

_LINES: Final = 100


class Line(NamedTuple):
    """One line of a log."""

    service: str
    at: str
    stream: str
    text: str


@click.command(
    epilog="""\b
Examples:
  birthmark logs time
  birthmark logs -f time fetch
  birthmark logs -n 0 -f --stderr time
  birthmark logs --json time | jq -r .text
"""
)
@click.argument("services", nargs=-1, required=True)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on, until ^C.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=_LINES,
    show_default=True,
    help="Begin with the last N lines of each service.",
)
@click.option("--stderr", "only_stderr", is_flag=True, help="Leave out standard output.")
@json_option
def logs(services: tuple[str, ...], follow: bool, lines: int, only_stderr: bool, as_json: bool) -> int:
    """Print what services wrote, newest last. JSON is one object a line."""
    installation = open_installation()
    names = list(dict.fromkeys(services))
    for name in names:
        _require_known(name, installation)
    printer = _Printer(as_json, named=len(names) > 1)
    tails = [Tail(name, log_path(installation.logs, name), only_stderr) for name in names]
    try:
        found = [line for tail in tails for line in tail.last(lines)]
        # Each begins with its time; a service's own lines stay in their order.
        printer.show(sorted(found, key=lambda line: line.at))
        while follow:
            time.sleep(LOOK_EVERY_S)
            printer.show(sorted((line for tail in tails for line in tail.more()), key=lambda line: line.at))
    except KeyboardInterrupt:
        # The usual way to end following; nothing has failed.
        if not follow:
            raise
    finally:
        for tail in tails:
            tail.close()
    return Exit.DONE


def _require_known(name: str, installation: Installation) -> None:
    """Make sure that the service has a log, or is known and may have one.

    Raises:
        UnknownService: Neither.
        UsageError: No service can have that name.
    """
    try:
        service_name(name)
    except ValueError as err:
        raise click.UsageError(str(err)) from err
    if log_path(installation.logs, name).exists():
        return
    with written_down(installation) as registry:
        known = sorted(str(each.name) for each in (registry.services() if registry else []))
    if name not in known:
        raise UnknownService(name, known)


class Tail:
    """The end of one service's log, followed across rotations. Holds at most one file open; close it."""

    def __init__(self, service: str, path: Path, only_stderr: bool = False) -> None:
        self._service, self._path, self._only_stderr = service, path, only_stderr
        self._file: IO[bytes] | None = None
        self._rest = b""

    def last(self, count: int) -> list[Line]:
        """Return the last `count` lines, older files included; `more` goes on behind them."""
        newest = self.more()
        found = deque(newest, maxlen=count)
        number = 1
        while len(found) < count:
            try:
                raw = self._path.with_name(f"{self._path.name}.{number}").read_bytes()
            except OSError:
                break
            older = self._parse(raw.splitlines())
            found.extendleft(reversed(older[len(older) - min(len(older), count - len(found)) :]))
            number += 1
        return list(found)

    def more(self) -> list[Line]:
        """Return what has been written since the last call."""
        found = self._read()
        if self._file is not None and self._rotated(self._file):
            # Its last lines were written before the file was moved: read once more, then change over.
            found += self._read()
            self._file.close()
            self._file, self._rest = None, b""
            found += self._read()
        return found

    def close(self) -> None:
        """Let go of the file. Closing twice is harmless."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self) -> list[Line]:
        if self._file is None:
            try:
                self._file = open(self._path, "rb")  # noqa: SIM115 - it outlives this call
            except OSError:
                return []
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        return self._parse(whole)

    def _rotated(self, file: IO[bytes]) -> bool:
        try:
            named = os.stat(self._path)
        except OSError:
            return False
        ours = os.fstat(file.fileno())
        return (named.st_dev, named.st_ino) != (ours.st_dev, ours.st_ino)

    def _parse(self, raw: Sequence[bytes]) -> list[Line]:
        lines = []
        for each in raw:
            at, _, rest = each.decode("utf-8", "backslashreplace").partition(" ")
            stream, _, text = rest.partition(" ")
            if not self._only_stderr or stream != "stdout":
                lines.append(Line(self._service, at, stream, text))
        return lines


class _Printer:
    def __init__(self, as_json: bool, *, named: bool) -> None:
        self._as_json, self._named = as_json, named

    def show(self, lines: Sequence[Line]) -> None:
        for line in lines:
            if self._as_json:
                click.echo(json.dumps(line._asdict(), ensure_ascii=False))
                continue
            head = f"{one_line(line.service)} | " if self._named else ""
            # What a server wrote could move the cursor or retitle the window.
            click.echo(f"{head}{line.at} {line.stream} {one_line(line.text.expandtabs())}")
