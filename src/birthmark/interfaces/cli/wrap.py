"""`wrap` and `unwrap`: a client's file with each stdio server under `birthmark run`, and back."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import click

from birthmark.config.files import Unreadable, read_regular
from birthmark.config.find import home_of
from birthmark.config.known import known_files
from birthmark.config.replacing import LIMIT_BYTES, replace_content
from birthmark.config.trust import version_control_of
from birthmark.config.wrapping import Rewriting, has_servers, unwrapped, wrapped
from birthmark.errors import ConfigError, NotConfirmed, SupervisionError, Unsupported
from birthmark.interfaces.cli.options import json_option
from birthmark.interfaces.cli.render import one_line, print_json, tint
from birthmark.interfaces.cli.wrapped import launcher
from birthmark.interfaces.faces import Exit, face_of

_F = TypeVar("_F", bound=Callable[..., object])
_CONTEXT_LINES: Final = 1
"""Around a change in the diff: what is beside a command may be a token."""

_COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}


def _options(verb: str) -> Callable[[_F], _F]:
    def give(command: _F) -> _F:
        command = json_option(command)
        command = click.option(
            "-y", "--yes", "agreed", is_flag=True, help="Write without asking, also under version control."
        )(command)
        command = click.option(
            "--all",
            "everything",
            is_flag=True,
            help=f"Offer to {verb} each known client's own file there is.",
        )(command)
        return click.argument("file", required=False, type=click.Path(path_type=Path))(command)

    return give


@click.command(
    epilog="""\b
Only the command lines change; comments, order, unknown keys and layout stay, byte for byte. What there
was is kept beside the file, as FILE.birthmark-backup-TIME, and `unwrap` writes the same bytes again. The
client has to be restarted. A project's file is several people's, and the path is yours alone: under
version control --yes is needed. Without a terminal, nothing is written without --yes either.

\b
Exit codes: 0, also when nothing was to be done; 1 it cannot be written; 2 something in it is not
understood; 5 nobody said yes.

\b
Examples:
  birthmark wrap ~/.cursor/mcp.json
  birthmark wrap --all
  birthmark wrap --yes --json ~/.claude.json
"""
)
@_options("wrap")
def wrap(file: Path | None, everything: bool, agreed: bool, as_json: bool) -> int:
    """Have a client start each stdio server in its FILE under `birthmark run`, so that none outlives it."""
    if sys.platform != "linux":
        raise Unsupported("`birthmark run`, which the servers would be started by,", sys.platform)
    front = launcher()
    work = _Work("wrap", lambda path, raw: wrapped(path, raw, front), agreed, as_json)
    return work.on(file, everything)


@click.command(
    epilog="""\b
Exit codes: as `wrap`.

\b
Examples:
  birthmark unwrap ~/.cursor/mcp.json
  birthmark unwrap --all --yes
"""
)
@_options("unwrap")
def unwrap(file: Path | None, everything: bool, agreed: bool, as_json: bool) -> int:
    """Take `birthmark run` out of a client's FILE again: the servers stand there as before `wrap`."""
    return _Work("unwrap", unwrapped, agreed, as_json).on(file, everything)


@dataclass
class _Work:
    """One command's run over its files."""

    verb: str
    rewrite: Callable[[Path, bytes], Rewriting]
    agreed: bool
    as_json: bool
    told: list[dict[str, object]] = field(default_factory=list)

    def on(self, file: Path | None, everything: bool) -> int:
        """Change the file given, or offer each known one; returns the exit code."""
        if (file is None) is not everything:
            raise click.UsageError(f"name one file, or say --all; `birthmark {self.verb} --all` finds them")
        try:
            return self.on_all() if file is None else self.on_one(_absolute(file))
        finally:
            if self.as_json and (self.told or everything):
                print_json({"files": self.told})

    def on_one(self, path: Path) -> int:
        """Change one file."""
        self.change(path, _read(path), None)
        return Exit.DONE

    def on_all(self) -> int:
        """Offer every known file with servers in it. One that is refused does not keep the next from its turn."""
        code: int = Exit.DONE
        found = False
        for host, path in known_files(sys.platform, os.environ, home_of(os.environ)):
            try:
                raw = _read(path)
                if not has_servers(path, raw):
                    continue
                found = True
                self.change(path, raw, host)
            except SupervisionError as err:
                found = True
                click.echo(f"birthmark: {one_line(str(err))}", err=True)
                if not self.told or self.told[-1]["path"] != str(path):
                    self.told.append({"path": str(path), "host": host, "changed": False})
                self.told[-1]["refused"] = str(err)
                code = code or face_of(err).exit_code
        if not found:
            self.say("no known client has a file with servers here")
        return code

    def change(self, path: Path, raw: bytes, host: str | None) -> None:
        """Show what would change in one file, ask, and write it.

        Raises:
            ConfigError: It is not understood.
            NotConfirmed: Nobody said yes.
            NotReplaced: It cannot be written.
        """
        result = self.rewrite(path, raw)
        host = host or result.host
        told: dict[str, object] = {"path": str(path), "host": host, "changed": False}
        told["servers"] = [
            {
                "name": each.name,
                "place": each.place,
                "action": self.verb if each.changed else "leave",
                "why": each.why,
            }
            for each in result.servers
        ]
        self.told.append(told)
        self.say(f"{one_line(str(path))} ({host})")
        for each in result.servers:
            self.say(f"  {one_line(each.name)}: {self.verb if each.changed else f'left: {each.why}'}")
        if result.after == result.before:
            self.say(f"nothing to {self.verb}")
            return
        diff = list(diff_of(result))
        told["diff"] = "\n".join(diff)
        for line in diff:
            self.say(tint(line, _COLOURS.get(line[:1])))
        self.require_yes(path)
        backup = replace_content(path, result.before, result.after)
        told["changed"], told["backup"] = True, str(backup)
        self.say(f"written; what there was is in {one_line(str(backup))}")
        client = "the client" if host.startswith("a host not known") else host
        self.say(f"restart {client}: it reads the file when it starts")

    def require_yes(self, path: Path) -> None:
        """Return once somebody has said yes.

        Raises:
            NotConfirmed: Nobody did.
        """
        if self.agreed:
            return
        folder = version_control_of(path) if self.verb == "wrap" else None
        if folder is not None:
            raise NotConfirmed(
                str(path),
                f"it is under version control ({folder}), and the path of the interpreter is yours alone; "
                "--yes writes it all the same",
            )
        if not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
            raise NotConfirmed(str(path), "nobody is here to be asked; --yes says yes")
        if not click.confirm(f"Write this to {one_line(str(path))}?", err=True):
            raise NotConfirmed(str(path), "the answer was no")

    def say(self, line: str) -> None:
        """Say a line to a person; standard output is the program's with --json."""
        click.echo(line, err=self.as_json)


def diff_of(result: Rewriting) -> Iterator[str]:
    """Yield the lines of a unified diff, none of which can drive a terminal."""
    before, after = (_lines(content) for content in (result.before, result.after))
    name = str(result.path)
    for line in difflib.unified_diff(before, after, name, name, lineterm="", n=_CONTEXT_LINES):
        yield one_line(line.replace("\t", "    "))


def _lines(content: bytes) -> Sequence[str]:
    lines = content.decode("utf-8-sig").split("\n")
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def _absolute(path: Path) -> Path:
    try:
        return Path(os.path.abspath(path))
    except OSError as err:
        raise ConfigError(str(path), f"the working directory cannot be used: {err.strerror}") from None


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, LIMIT_BYTES)
    except Unreadable as err:
        raise ConfigError(str(path), f"cannot be read: {err}") from None


def _is_terminal(stream: object) -> bool:
    # A standard stream that was closed when we began is None.
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and bool(isatty())
