"""`up`: read the configuration, ask for trust, supervise in the foreground until told to stop."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from birthmark.children.installation import Installation, open_installation
from birthmark.config.model import Config
from birthmark.config.trust import grant_trust, require_trust
from birthmark.core.outcomes import ApiServerStamp
from birthmark.errors import ConfigError, NotTrusted, UnknownService
from birthmark.interfaces.cli.configuring import allow_unset_option, load
from birthmark.interfaces.cli.options import json_option
from birthmark.interfaces.cli.render import one_line, print_json, receipt_lines
from birthmark.interfaces.faces import Exit


@click.command(
    epilog="""\b
The configuration is what -f names, else BIRTHMARK_CONFIG, else the nearest birthmark.toml upwards, else
the user's own. A file in a project (a folder with version control) is asked about before it starts
anything; without a terminal the exit code is 5, and --trust says yes.

\b
With --json, standard output gets one object a line: the supervisor once it listens, the receipts at its
end. Words go to standard error.

\b
Examples:
  birthmark up
  birthmark up -f .mcp.json
  birthmark up -f .mcp.json time fetch
"""
)
@click.argument("services", nargs=-1)
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Read this file; may be repeated.",
)
@click.option("--trust", "trusted", is_flag=True, help="Trust the files as they are now, and remember it.")
@allow_unset_option
@json_option
def up(
    services: tuple[str, ...], files: tuple[Path, ...], trusted: bool, allow_unset: bool, as_json: bool
) -> int:
    """Start services, keep them up, and serve the API, until ^C stops them all.

    Without names: all that the configuration enables and that were not stopped by hand.
    """
    # First of all: it replaces this process's image, and what was opened before would be lost.
    stamp = _stamp()
    speaker = Speaker(as_json)
    config = load(files, allow_unset=allow_unset)
    installation = open_installation()
    _introduce(config, installation, stamp, speaker)
    _require_services(config, services)
    _require_trust(config, installation, trusted, speaker)

    from birthmark.interfaces.cli.serving import serve

    receipts = serve(config, list(services) or None, installation, stamp, say=speaker.say, tell=speaker.tell)
    values = [each.to_dict() for each in receipts]
    speaker.tell({"receipts": values})
    for value in values:
        speaker.say("\n".join(receipt_lines(value)))
    survivors = [member.pid for each in receipts for member in each.survivors]
    if survivors:
        speaker.say(f"still alive: {', '.join(map(str, survivors))}")
        return Exit.SURVIVORS
    speaker.say("all stopped" if receipts else "nothing was running")
    return Exit.DONE


class Speaker:
    """Where an `up` says things: words for people, and objects for programs. Never fails for want of a listener."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def say(self, line: str) -> None:
        """Say a line to a person."""
        try:
            click.echo(line, err=self._as_json)
        except (OSError, ValueError):
            pass  # the terminal has gone; the services have not

    def tell(self, value: object) -> None:
        """Tell a program, if one listens."""
        if not self._as_json:
            return
        try:
            print_json(value)
            sys.stdout.flush()
        except (OSError, ValueError):
            pass


def _stamp() -> ApiServerStamp | str:
    """Take the API server's mark on; returns the stamp, or why there is none."""
    from birthmark.children.stamping import stamp_api_server

    try:
        return stamp_api_server()
    except OSError as err:
        return f"{err.strerror}"


def _introduce(
    config: Config, installation: Installation, stamp: ApiServerStamp | str, speaker: Speaker
) -> None:
    for source in config.sources:
        speaker.say(f"configuration: {source.path}")
    for warning in config.warnings:
        speaker.say(f"warning: {one_line(warning)}")
    speaker.say(f"installation:  {installation.home} ({installation.id})")
    if installation.new_because is not None and installation.new_because != "first use":
        speaker.say(f"a new id was made: {installation.new_because}")
    if stamp is not ApiServerStamp.STAMPED:
        why = "this system shows no process's environment" if stamp is ApiServerStamp.UNVERIFIABLE else stamp
        speaker.say(f"the supervisor carries no mark: {why}")


def _require_services(config: Config, names: Sequence[str]) -> None:
    """Make sure that there is something to do, and that every name means something.

    Raises:
        ConfigError, UnknownService: It is not so.
    """
    known = [str(each.name) for each in config.services]
    if not known:
        listed = ", ".join(str(source.path) for source in config.sources)
        raise ConfigError(listed, "it names no service", hint="Add one; `birthmark check` shows what is read")
    for name in names:
        if name not in known:
            raise UnknownService(name, known)


def _require_trust(config: Config, installation: Installation, trusted: bool, speaker: Speaker) -> None:
    """Start nothing of a project's file before somebody has said yes to it, for the bytes that were read.

    Raises:
        NotTrusted: Nobody did.
    """
    if not trusted:
        try:
            require_trust(config, installation.home)
            return
        except NotTrusted as refusal:
            if not (sys.stdin.isatty() and sys.stderr.isatty()) or not _says_yes(refusal):
                raise
    granted = grant_trust(config, installation.home)
    if granted:
        speaker.say(f"trusted, as they are now: {', '.join(str(each.path) for each in granted)}")


def _says_yes(refusal: NotTrusted) -> bool:
    """Ask a person at a terminal."""
    click.echo(f"{refusal.source} lies in a project. It would start:", err=True)
    for line in refusal.commands:
        click.echo(f"    {line}", err=True)
    return click.confirm("Trust it, as it is now?", err=True)
