"""The few options of `birthmark run`, read by hand: it stands before every server a client starts."""

from __future__ import annotations

from typing import Final, NamedTuple

from birthmark.core.markers import ChildKind
from birthmark.core.service import ServiceName

GRACE_S: Final = 1.5
"""TERM to KILL. Hosts kill what has not ended 2 s after their own SIGTERM."""

EOF_GRACE_S: Final = 1.5
"""End-of-file, or the client's death, to TERM. Hosts send SIGTERM 2 s after they closed stdin."""

USAGE: Final = "birthmark run [--name NAME] [--kind mcp|agent] [--grace TIME] [--eof-grace TIME] [-v] -- COMMAND [ARG]..."

HELP: Final = f"""\
Usage: {USAGE}

Run one command so that nothing of it outlives its client.

The command gets our stdin, stdout, stderr, environment and process group, untouched. Whatever it starts is
ended (SIGTERM, then SIGKILL) when it ends, when the client dies, when its stdin hangs up (--kind mcp), and on
SIGTERM, SIGINT or SIGHUP. What is typed at a terminal (^C, ^\\, ^Z) reaches the command as it would without us.

Options:
  --name NAME       What to call it; default: the program's name, seen through npx, uvx, python -m and the like.
  --kind mcp|agent  mcp (default): the end of its input ends it. agent: a finite input is normal.
  --grace TIME      From SIGTERM to SIGKILL; default {GRACE_S:g}s.
  --eof-grace TIME  From the end of its input, or the client's death, to SIGTERM; default {EOF_GRACE_S:g}s.
  -v, --verbose     Say on stderr what was signalled, and why.
  -h, --help        Show this and exit.

TIME has a unit: 300ms, 1.5s, 2m.

Exit code: the command's, or 128 + the signal that ended it; 2 wrong usage, 125 we could not do our part,
126 the command cannot be executed, 127 it was not found.

Examples:
  birthmark run -- npx -y @modelcontextprotocol/server-everything
  birthmark run --name clock -- uvx mcp-server-time
  birthmark run --kind agent --grace 10s -- codex exec --json "say hello"
  claude mcp add clock -- birthmark run -- uvx mcp-server-time
"""

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST_S: Final = 24 * 3600.0
_VALUED: Final = ("--name", "--kind", "--grace", "--eof-grace")


class BadUsage(Exception):
    """The command line cannot be understood; the text says what and the way out."""


class HelpAsked(Exception):
    """Somebody wants to read the help."""


class Request(NamedTuple):
    """What `birthmark run` was asked for."""

    command: tuple[str, ...]
    name: ServiceName | None = None
    """None: to be derived from the command."""
    kind: ChildKind = ChildKind.MCP
    grace_s: float = GRACE_S
    eof_grace_s: float = EOF_GRACE_S
    verbose: bool = False


def parse(words: list[str]) -> Request:
    """Read the words after ``run``. The first word that is no option, or all after ``--``, is the command.

    Raises:
        BadUsage: They make no sense.
        HelpAsked: ``--help`` is among the options.
    """
    request = Request(())
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            at -= 1
            break
        if word in ("-h", "--help"):
            raise HelpAsked
        if word in ("-v", "--verbose"):
            request = request._replace(verbose=True)
            continue
        option, equals, value = word.partition("=")
        if option not in _VALUED:
            raise BadUsage(f"no such option: {word}. Options of the command itself come after `--`")
        if not equals:
            if at == len(words) or words[at] == "--":
                raise BadUsage(f"{option} needs a value")
            value = words[at]
            at += 1
        request = _with_option(request, option, value)
    command = tuple(words[at:])
    if not command:
        raise BadUsage("the command is missing; say what to run after `--`")
    if not command[0]:
        raise BadUsage("the command's name is empty")
    return request._replace(command=command)


def _with_option(request: Request, option: str, value: str) -> Request:
    match option:
        case "--name":
            try:
                return request._replace(name=ServiceName(value))
            except ValueError as err:
                raise BadUsage(f"--name: {err}") from err
        case "--kind":
            if value not in (ChildKind.MCP.value, ChildKind.AGENT.value):
                raise BadUsage(f"--kind is {value!r}; mcp or agent is expected")
            return request._replace(kind=ChildKind(value))
        case "--grace":
            return request._replace(grace_s=seconds(option, value))
        case _:
            return request._replace(eof_grace_s=seconds(option, value))


def seconds(option: str, text: str) -> float:
    """Return a length of time written with its unit, in seconds.

    Raises:
        BadUsage: It has no unit, is no number, is below zero or longer than a day.
    """
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(number) :]
    try:
        value = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        raise BadUsage(f"{option} is {text!r}; a time with a unit is expected: 300ms, 1.5s, 2m") from None
    # Not a number compares with nothing, so the question is asked this way round.
    if not 0 <= value <= _LONGEST_S:
        raise BadUsage(f"{option} is {text!r}; between 0s and 24h is expected")
    return value
