"""The commands of `./dev`, once its environment is there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from workshop import checks, locking, passes
from workshop.environment import HELP, ROOT, VENV


def main(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code."""
    name, *rest = arguments
    match name:
        case "demo":
            return become([str(scripts() / "birthmark"), "demo", *rest])
        case "test":
            return passes.main(rest)
        case "lint":
            return checks.lint()
        case "format":
            return checks.reformat()
        case "bench":
            if not (ROOT / "benchmarks").is_dir():
                print("dev: there are no benchmarks/ in this tree", file=sys.stderr)
                return 2
            return become([sys.executable, "-m", "benchmarks", *rest])
        case "shell":
            return shell(rest)
        case "lock":
            return locking.relock(rest)
        case _:
            print(f"dev: no command named {name!r}\n\n{HELP}", file=sys.stderr, end="")
            return 2


def shell(arguments: list[str]) -> int:
    """Become the user's shell, or the given command, with the environment in front of PATH."""
    os.environ["VIRTUAL_ENV"] = str(VENV)
    os.environ["PATH"] = f"{scripts()}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    usual = "cmd.exe" if os.name == "nt" else "/bin/sh"
    return become(arguments or [os.environ.get("SHELL", usual)])


def become(command: list[str]) -> int:
    """Replace this process by the command, so that signals and the terminal are its own."""
    if os.name == "nt":
        return subprocess.run(command, check=False).returncode
    sys.stdout.flush()
    os.execvp(command[0], command)


def scripts() -> Path:
    return Path(sys.executable).parent


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
