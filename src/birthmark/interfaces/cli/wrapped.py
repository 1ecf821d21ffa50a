"""What stands in front of wrapped servers: whether it still starts, and which of a user's files hold what does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from birthmark.config.files import Unreadable, read_regular
from birthmark.config.find import home_of
from birthmark.config.known import known_files
from birthmark.config.replacing import LIMIT_BYTES
from birthmark.config.wrapping import has_servers, wrappers_in
from birthmark.errors import ConfigError

LAUNCHES: Final = ("-I", "-m", "birthmark", "run")
"""What an interpreter needs to become `birthmark run`, whatever the client's variables and folder are."""

_ANSWERS_WITHIN_S: Final = 20.0
_CACHES: Final = frozenset({".cache", "archive-v0"})
"""Folders of uvx and pipx from which an interpreter may vanish any day."""


class Wrapped(NamedTuple):
    """A user's file with wrapped servers; `trouble` is None when all their wrappers start."""

    host: str
    path: Path
    servers: tuple[str, ...]
    trouble: str | None


def wrapped_files() -> Iterator[Wrapped]:
    """Yield each of the user's own host files in which servers are wrapped. A file that cannot be read is left out."""
    for host, path in known_files(sys.platform, os.environ, home_of(os.environ)):
        try:
            raw = read_regular(path, LIMIT_BYTES)
            found = wrappers_in(path, raw) if has_servers(path, raw) else []
        except (Unreadable, ConfigError):
            continue  # whether its host can read it is not ours to say
        troubles = [(each.server, trouble_with(each.words)) for each in found]
        gone = [(server, trouble) for server, trouble in troubles if trouble is not None]
        if gone:
            yield Wrapped(host, path, tuple(server for server, _ in gone), gone[0][1])
        elif found:
            yield Wrapped(host, path, tuple(each.server for each in found), None)


def trouble_with(wrapper: Sequence[str]) -> str | None:
    """Return why a wrapper does not start, None when it does.

    An interpreter is started and asked for birthmark's version; other programs are only looked for.
    """
    program = wrapper[0]
    if not os.path.isabs(program):
        # A client with a window may have another PATH; what we can say is that ours does not have it.
        return None if shutil.which(program) else f"{program} is not on PATH"
    if not os.path.isfile(program):
        return f"there is no {program}"
    if not os.access(program, os.X_OK):
        return f"{program} cannot be executed"
    return _no_answer(program) if tuple(wrapper[1 : 1 + len(LAUNCHES)]) == LAUNCHES else None


@cache
def _no_answer(interpreter: str) -> str | None:
    try:
        done = subprocess.run(
            [interpreter, *LAUNCHES[:-1], "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            cwd="/" if sys.platform != "win32" else None,
            timeout=_ANSWERS_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{interpreter} did not answer within {_ANSWERS_WITHIN_S:g} s"
    except OSError as err:
        return f"{interpreter} cannot be started: {err.strerror}"
    if done.returncode == 0 and done.stdout.startswith("birthmark "):
        return None
    said = done.stderr.strip().splitlines()
    return f"{interpreter} does not find birthmark" + (f": {said[-1]}" if said else "")


def launcher() -> tuple[str, ...]:
    """Return the words that start `birthmark run` from anywhere: the absolute interpreter that runs us, and its options.

    Raises:
        ConfigError: It would not start so, or not for long.
    """
    program = os.path.abspath(sys.executable) if sys.executable else ""
    trouble = None
    if not program:
        trouble = "Python does not say which interpreter this is"
    elif not program.isprintable() or "$" in program:
        trouble = "its path holds characters that not every host leaves as they are"
    elif _CACHES & set(Path(program).parts):
        trouble = "it lies in a cache, from which it may vanish"
    else:
        trouble = trouble_with((program, *LAUNCHES))
    if trouble is not None:
        hint = "Install birthmark where it stays: `uv tool install` or `pipx install` will do"
        raise ConfigError(program or "the interpreter", trouble, hint=hint)
    return (program, *LAUNCHES)
