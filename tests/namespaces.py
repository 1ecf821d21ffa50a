"""Run a piece of Python where the kernel is arranged as a test needs it: namespaces, another user, no pidfds.

The script is a process of its own, with `os sys signal time json subprocess resource` and `birthmark`'s core and
Linux platform imported (`linux`, `judge`, `Verdict`, `Reason`, `EnvironState`, …), and a `drop()` that gives up root for
good. What it prints is returned; an assertion that fails in it fails the test, with its words.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
WITHIN_S: Final = 30.0
NOBODY: Final = 65534

PRELUDE: Final = f"""\
import ctypes, dataclasses, json, os, resource, select, signal, subprocess, sys, time
from birthmark.core.identity import *
from birthmark.core.judging import *
from birthmark.core.markers import *
from birthmark.core.outcomes import *
from birthmark.core.service import *
from birthmark.errors import *
from birthmark.platforms import linux, load, launch
from birthmark.platforms.contract import Pinned
load()

def drop():
    '''Become a user without rights, for good; nothing for one who already is.'''
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
        os.setresuid({NOBODY}, {NOBODY}, {NOBODY})

def fork(body):
    '''Run body() in a fork, which then ends; return its pid once it has written a byte to the descriptor it is given.'''
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # it ends with us, should we be ended
            os.close(reading)
            body(writing)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    assert os.read(reading, 1) == b'R', 'the fork did not get ready'
    os.close(reading)
    return pid

def pause(writing):
    os.write(writing, b'R')
    signal.pause()

def end(pid):
    '''End a child of ours, and reap it.'''
    with linux.pin(pid) as pinned:
        linux.deliver(pinned, signal.SIGKILL, Warrant(basis=Basis.CHILD, asked_by='a test'))
    os.waitpid(pid, 0)

"""


def run_python(
    script: str, *, under: Sequence[str] = (), argv: Sequence[str] = (), within_s: float = WITHIN_S
) -> str:
    """Run the script in a process of its own, behind the words of `under`; return what it printed.

    Raises:
        AssertionError: It failed; with its standard error.
    """
    done = subprocess.run(
        [*under, sys.executable, "-W", "error", "-c", PRELUDE + script, *argv],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_in_namespaces(
    script: str,
    *,
    pid: bool = True,
    mount: bool = True,
    net: bool = False,
    mount_proc: bool = True,
    argv: Sequence[str] = (),
    within_s: float = WITHIN_S,
) -> str:
    """Run the script as `run_python` does, in namespaces of its own; in a new pid namespace it is pid 1.

    Mark the test `namespaces`, so that it is skipped, with the reason, where none can be made. Without root
    it is root of a user namespace that knows no other user.

    Args:
        pid: A pid namespace.
        mount: A mount namespace, from which no mount comes back to ours.
        net: A network namespace, its loopback down.
        mount_proc: Whether ``/proc`` shows the new pid namespace; else it goes on showing ours.
    """
    words = ["unshare"]
    if os.geteuid() != 0:
        words += ["--user", "--map-root-user"]
    if pid:
        words += ["--pid", "--fork", "--kill-child"]
    if mount:
        words += ["--mount"]
    if net:
        words += ["--net"]
    if pid and mount_proc:
        words += ["--mount-proc"]
    return run_python(script, under=[*words, "--"], argv=argv, within_s=within_s)


def run_without_pidfds(
    script: str, *, errno: int, argv: Sequence[str] = (), within_s: float = WITHIN_S
) -> str:
    """Run the script as `run_python` does, on a kernel that answers `errno` to every call about pidfds."""
    return run_python(
        f"from tests.seccomp import forbid_pidfds\nforbid_pidfds({errno})\n" + script,
        argv=argv,
        within_s=within_s,
    )


def need_pidfs_inode() -> None:
    """Skip the test, with the reason, on a kernel whose pidfds have no inodes of their own."""
    from birthmark.platforms import load

    if not load().capabilities().pidfs_inode:
        pytest.skip("pidfds have inodes of their own from Linux 6.9 on")
