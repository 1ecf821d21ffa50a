"""The first lines that run: `run` and `--version` are answered before click is loaded."""

from __future__ import annotations

import sys


def main() -> int:
    """Run one command; returns its exit code. The command line is `sys.argv`."""
    match sys.argv[1:]:
        case ["run", *words]:
            # It stands before every server a client starts, so it loads nothing that it does not use.
            from birthmark.keeper.front import main as run

            return run(words)
        case ["--version"]:
            from birthmark import __version__

            print(f"birthmark {__version__}")
            return 0
    from birthmark.interfaces.cli.app import run_command

    return run_command(sys.argv[1:])
