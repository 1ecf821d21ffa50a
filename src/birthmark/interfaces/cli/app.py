"""The commands by name, each loaded when it is asked for, and what becomes of their errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final, TextIO

import click

from birthmark import __version__
from birthmark.errors import SupervisionError
from birthmark.interfaces.cli.client import ErrorAnswer
from birthmark.interfaces.faces import Exit, face_of

COMMANDS: Final[Mapping[str, str]] = {
    "up": "birthmark.interfaces.cli.up:up",
    "ps": "birthmark.interfaces.cli.ps:ps",
    "status": "birthmark.interfaces.cli.ps:status",
    "start": "birthmark.interfaces.cli.services:start",
    "stop": "birthmark.interfaces.cli.services:stop",
    "restart": "birthmark.interfaces.cli.services:restart",
    "down": "birthmark.interfaces.cli.down:down",
    "logs": "birthmark.interfaces.cli.logs:logs",
    "run": "birthmark.interfaces.cli.running:run",
    "wrap": "birthmark.interfaces.cli.wrap:wrap",
    "unwrap": "birthmark.interfaces.cli.wrap:unwrap",
    "explain": "birthmark.interfaces.cli.explain:explain",
    "ports": "birthmark.interfaces.cli.ports:ports",
    "orphans": "birthmark.interfaces.cli.orphans:orphans",
    "check": "birthmark.interfaces.cli.check:check",
    "doctor": "birthmark.interfaces.cli.doctor:doctor",
    "demo": "birthmark.interfaces.cli.demo:demo",
}
"""In the order in which a reader meets them; each as module and name."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for, and not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in our order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command; None when there is none of that name."""
        target = COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, _, name = target.partition(":")
        try:
            command = getattr(import_module(module), name)
        except ModuleNotFoundError as err:
            if err.name != module:
                raise
            return None  # an installation without that part; the list of commands goes on without it
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; a name close to one there is is named in the error."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            # Imported here: it is needed for a mistake only.
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"there is no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 not running, 4 unknown or no supervisor,
5 refused (not ours, not trusted), 6 survivors, 124 time-out. `run` ends as its command did.

\b
Completion, for bash (zsh and fish alike):
  eval "$(_BIRTHMARK_COMPLETE=bash_source birthmark)"
""",
)
@click.version_option(__version__, message="birthmark %(version)s")
def cli() -> None:
    """Supervise agents and MCP servers. Every child is stamped at birth; nothing without the mark is signalled.

    \b
    birthmark up -f .mcp.json          everything in that file, up until ^C
    birthmark run -- npx -y SERVER     one server, gone when its client is
    birthmark explain 4711             whose is that process, and why
    """


def run_command(words: Sequence[str]) -> int:
    """Run the command line `words`; returns the exit code. No exception but SystemExit leaves it."""
    _fill_standard_descriptors()
    _make_printable(sys.stdout)
    _make_printable(sys.stderr)
    try:
        code = cli.main(args=list(words), prog_name="birthmark", standalone_mode=False)
        # What was printed is only done once it has arrived.
        if _given(sys.stdout):
            sys.stdout.flush()
        return code if isinstance(code, int) else Exit.DONE
    except click.UsageError as err:
        _complain(err.format_message().rstrip("."))
        if err.ctx is not None:
            click.echo(f"  `{err.ctx.command_path} --help` shows how", err=True)
        return Exit.USAGE
    except click.ClickException as err:
        _complain(err.format_message())
        return Exit.FAILED
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        return 130
    except ErrorAnswer as err:
        _complain(str(err))
        return err.face.exit_code
    except SupervisionError as err:
        _complain(str(err))
        return face_of(err).exit_code
    except TimeoutError as err:
        _complain(str(err) or "timed out")
        return Exit.TIMED_OUT
    except BrokenPipeError:
        # The reader has left (`birthmark ps | head`). Python would complain once more at its end.
        if _given(sys.stdout):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except Exception as err:
        if os.environ.get("BIRTHMARK_DEBUG"):
            raise
        _complain(
            f"{type(err).__name__}: {err}. This is a defect of birthmark's; BIRTHMARK_DEBUG=1 shows where it is"
        )
        return Exit.FAILED


def _complain(text: str) -> None:
    try:
        click.echo(f"birthmark: {text}", err=True)
    except OSError:
        pass  # nobody reads it; the exit code says it too


def _fill_standard_descriptors() -> None:
    """Open what was closed when we began: else the next file or socket gets its number, and somebody's words."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is given: this one


def _make_printable(stream: TextIO) -> None:
    """Have characters that the terminal's encoding lacks escaped: a name in another script fails no command."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _given(stream: object) -> bool:
    """Say whether a standard stream is there: Python has None for one that was closed when it began."""
    return stream is not None
