"""The suite, three times: as the one who calls, as a user that owns nothing, and in namespaces of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workshop import checks, system
from workshop.environment import ROOT, say

WITHIN_S: Final = 1200
"""Seconds one pass may take; far above what it does take, far below any CI's patience."""
IMPOSSIBLE: Final = 77
"""Exit code of a pass that this machine cannot run."""
ONCE: Final = ("-m", "not slow and not real_server")
"""What needs a registry or minutes is run by the first pass only; the others have no network or no time for it."""
UNSHARE: Final = ("unshare", "--pid", "--net", "--mount", "--mount-proc", "--fork", "--kill-child")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one part of the run ended: `code` 0 is well, IMPOSSIBLE means it could not be tried here."""

    title: str
    code: int
    took_s: float
    why: str = ""


def main(arguments: list[str]) -> int:
    """Check and test everything, or with arguments run pytest once with them; return the exit code."""
    passes: dict[str, Callable[[list[str]], Outcome]] = {
        "me": as_caller,
        "user": as_user,
        "namespaces": in_namespaces,
    }
    system.provide()
    if arguments:
        chosen = "me"
        if arguments[0] == "--as":
            chosen, arguments = (arguments[1:2] or ["?"])[0], arguments[2:]
        if chosen not in passes:
            print(f"dev: --as wants one of {', '.join(passes)}", file=sys.stderr)
            return 2
        outcome = passes[chosen](arguments)
        if outcome.code == IMPOSSIBLE:
            say(f"{outcome.title}: not possible here: {outcome.why}")
        return outcome.code
    began = time.monotonic()
    checked = Outcome("format, lint, types", checks.lint(), time.monotonic() - began)
    return conclude([checked, *(run([]) for run in passes.values())])


def conclude(outcomes: list[Outcome]) -> int:
    """Print one line for each part; return 1 if any failed."""
    print()
    for outcome in outcomes:
        word = {0: "ok", IMPOSSIBLE: "not possible here"}.get(outcome.code, f"FAILED ({outcome.code})")
        why = f": {outcome.why}" if outcome.why else ""
        say(f"{outcome.title}: {word}{why} · {outcome.took_s:.0f} s")
    return int(any(outcome.code not in (0, IMPOSSIBLE) for outcome in outcomes))


def as_caller(arguments: list[str]) -> Outcome:
    """Run pytest as the user who called."""
    who = "root" if is_root() else "you"
    with folder() as place:
        command = pytest(place / "t", arguments)
        if sys.platform == "linux":
            command = [*reaper(), "--", *command]
        return run(f"pass 1 of 3, as {who}", command)


def as_user(arguments: list[str]) -> Outcome:
    """Run pytest as a user of its own, without groups, capabilities or anybody's files."""
    title = "pass 2 of 3, as an unprivileged user"
    if not is_root():
        return impossible(title, "only root can become another user; pass 1 was an unprivileged one")
    why = forbidden("--mount")
    if why:
        return impossible(title, why)
    with folder() as place:
        place.chmod(0o755)
        mine = place / "u"
        mine.mkdir()
        command = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "--",
            sys.executable,
            "-m",
            "workshop.nobody",
        ]
        command += [str(mine), "--", "--within", str(WITHIN_S), "--"]
        command += pytest(mine / "t", [*ONCE, "-p", "no:cacheprovider", *arguments])
        return run(title, command)


def in_namespaces(arguments: list[str]) -> Outcome:
    """Run pytest as the child of a small init, in fresh pid, network and mount namespaces."""
    title = "pass 3 of 3, in pid, network and mount namespaces"
    unshare = UNSHARE if is_root() else (UNSHARE[0], "--user", "--map-root-user", *UNSHARE[1:])
    why = forbidden(*unshare[1:])
    if why:
        return impossible(title, why)
    with folder() as place:
        command = [*unshare, "--", *reaper(), "--loopback", "--"]
        command += pytest(place / "t", [*ONCE, "-p", "no:cacheprovider", *arguments])
        return run(title, command)


def pytest(base: Path, arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", f"--basetemp={base}", *arguments]


def reaper() -> list[str]:
    return [sys.executable, "-m", "workshop.reaper", "--within", str(WITHIN_S)]


def run(title: str, command: list[str]) -> Outcome:
    """Print a header, run the command without a terminal to read from, and tell how it ended."""
    print(f"\n──── {title} ────", flush=True)
    began = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode
    return Outcome(title, code, time.monotonic() - began, "the reason is above" if code == IMPOSSIBLE else "")


def impossible(title: str, why: str) -> Outcome:
    print(f"\n──── {title} ────\nnot possible here: {why}", flush=True)
    return Outcome(title, IMPOSSIBLE, 0.0, why)


def forbidden(*options: str) -> str:
    """Return why `unshare` with these options is not to be had here; empty when it is."""
    if sys.platform != "linux":
        return "namespaces are Linux's"
    try:
        done = subprocess.run(
            ["unshare", *options, "--", "true"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "unshare is missing (Debian package util-linux)"
    return "" if done.returncode == 0 else done.stderr.strip() or f"unshare failed with {done.returncode}"


def is_root() -> bool:
    return sys.platform != "win32" and os.geteuid() == 0


@contextmanager
def folder() -> Iterator[Path]:
    """Make a folder with a short name, since socket paths may have 107 bytes only; remove it afterwards."""
    short = "/tmp" if os.name != "nt" else None
    place = Path(tempfile.mkdtemp(prefix="bm", dir=short))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
