"""Make `.venv` from `dev.lock`, say so, and hand the command over to it.

Runs on any Python 3.11 with the standard library alone, since nothing is installed yet. What is
already as the lock says is left as it is, so the second call costs a few milliseconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
VENV: Final = ROOT / ".venv"
LOCK: Final = ROOT / "dev.lock"
NATIVE: Final = ROOT / "src/birthmark/_native"

HELP: Final = """\
usage: ./dev COMMAND [ARGUMENTS]

  demo    real MCP servers and an agent: up, proved, killed, restarted, stopped
  test    format, lint and types, then the suite as you, as a nobody, and in namespaces of its own
          with ARGUMENTS: pytest only, once, with those   (--as user or --as namespaces for the other two)
  lint    ruff format --check, ruff check, mypy --strict
  format  ruff format and ruff's safe fixes
  bench   the table of benchmarks
  shell   a shell with .venv in front of PATH
  lock    dev.lock anew, at today's versions
  help    this text

Each makes .venv from dev.lock first, if it is not there or the lock has changed.
"""


def main(arguments: list[str]) -> int:
    """Run one command of the workshop; return its exit code."""
    if not arguments or arguments[0] in ("help", "-h", "--help"):
        print(HELP, end="")
        return 0 if arguments else 2
    with alone():
        make()
    command = [str(interpreter()), "-m", "workshop", *arguments]
    os.chdir(ROOT)  # where `-m workshop` is found
    if os.name == "nt":  # exec on Windows returns to the shell before the command has ended
        return subprocess.run(command, check=False).returncode
    sys.stdout.flush()
    os.execv(command[0], command)


def make() -> None:
    """Bring `.venv` to what the lock and the package's build files say."""
    tools = f"{LOCK.read_text()} {sys.implementation.cache_tag} {ROOT}"
    package = tools + "".join(
        path.read_text()
        for path in [ROOT / "pyproject.toml", ROOT / "setup.py", *sorted(NATIVE.glob("*.[ch]"))]
        if path.exists()
    )
    if not works(interpreter()):
        create()
    if stale("tools", tools):
        say("installing the tools that dev.lock pins")
        pip("install", "--require-hashes", "--requirement", str(LOCK))
        remember("tools", tools)
    if stale("package", package):
        say("installing birthmark itself, editable")
        for old in NATIVE.glob("*.so"):
            old.unlink()  # a build that fails must not leave yesterday's extension in its place
        pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        if sys.platform == "linux" and (NATIVE / "spawn.c").exists():
            built = any(NATIVE.glob("*.so"))
            say("native spawner: built" if built else "native spawner: not built, the pure path is used")
        remember("package", package)


def create() -> None:
    """Make an empty environment, or say which package is missing for it."""
    if importlib.util.find_spec("ensurepip") is None:
        wanted = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        raise SystemExit(
            f"dev: {sys.executable} cannot make virtual environments: ensurepip is missing.\n"
            f"     On Debian and Ubuntu: apt-get install {wanted}"
        )
    say(f"making .venv with Python {sys.version.split()[0]} ({sys.executable})")
    venv.EnvBuilder(with_pip=True, clear=True, symlinks=os.name != "nt").create(VENV)


def interpreter() -> Path:
    """Return where the environment's Python is, or would be."""
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def works(python: Path) -> bool:
    """Tell whether an environment is there, runs and has pip; one whose base has moved does not."""
    if (VENV / ".tools").exists() and python.exists():
        return True
    try:
        return (
            subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode
            == 0
        )
    except OSError:
        return False


def pip(*arguments: str) -> None:
    """Run the environment's pip; its words appear only where it fails."""
    command = [str(interpreter()), "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    done = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}\ndev: pip {' '.join(arguments)} failed with {done.returncode}")


def stale(name: str, content: str) -> bool:
    """Tell whether the stamp of that name is missing or was made for something else."""
    try:
        return (VENV / f".{name}").read_text() != digest(content)
    except FileNotFoundError:
        return True


def remember(name: str, content: str) -> None:
    """Stamp the environment as made for this content."""
    (VENV / f".{name}").write_text(digest(content))


def digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Let one `./dev` at a time look at and change the environment; the others wait."""
    try:
        import fcntl
    except ImportError:  # Windows: two first calls at the same instant are the caller's affair
        yield
        return
    with (ROOT / ".venv.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def say(what: str) -> None:
    print(f"dev: {what}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
