"""The first lines that run: `run` and `--version` are answered before click is loaded."""

from __future__ import annotations

import sys


def main() -> int:
    """Run one command; returns its exit code. The command line is `sys.argv`."""
    match sys.argv[1:]:
        case ["run", *words]:
            # It stands before every server a client starts, so it loads nothing that it does not use.
            _interrupted_without_a_traceback()
            _last_what_the_client_put_first()
            from birthmark.keeper.front import main as run

            return run(words)
        case ["--version"]:
            from birthmark import __version__

            print(f"birthmark {__version__}")
            return 0
    from birthmark.interfaces.cli.app import run_command

    return run_command(sys.argv[1:])


def _interrupted_without_a_traceback() -> None:
    """Let ^C end us as it ends any program that has not begun, until `run` reads its signals itself."""
    import signal

    # Not what was ignored when we were started: that stays as it is.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _last_what_the_client_put_first() -> None:
    """Look for modules on PYTHONPATH and in the working directory last: they are there for the command, not for us.

    Nothing is taken away, since birthmark itself may be installed there. With -I there is nothing to move.
    """
    if sys.flags.isolated:
        return
    import os

    # Relative entries and the empty one mean the working directory, which may be gone.
    theirs = {
        os.path.normpath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry
    }
    sys.path.sort(key=lambda entry: not os.path.isabs(entry) or os.path.normpath(entry) in theirs)
