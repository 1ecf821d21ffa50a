"""What the field cases share: marked children under the library's own spawner, and scripts in namespaces."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from birthmark import Child, ChildKind, Command, Session, Spawner, Stdio, StopPolicy, mark_child, stop_set_now

WITHIN_S: Final = 5.0
QUICK: Final = StopPolicy(stdin_grace_s=0.3, term_grace_s=0.3)
PATIENT: Final = StopPolicy(stdin_grace_s=5, term_grace_s=5)
PRELUDE: Final = "import os, signal, sys, threading, time\nready = lambda: os.write(1, b'R')\n"


@contextmanager
def shell(script: str, *, readies: int = 0, service: str = "case", **options: object) -> Iterator[Child]:
    """Run a shell script as a service; `readies` is how many R bytes to wait for on its stdout."""
    with service_of("sh", "-c", script, readies=readies, service=service, **options) as child:
        yield child


@contextmanager
def python(script: str, *, readies: int = 1, service: str = "case", **options: object) -> Iterator[Child]:
    """Run a Python script as a service; ``ready()`` in it sends one R."""
    with service_of(
        sys.executable, "-c", PRELUDE + script, readies=readies, service=service, **options
    ) as child:
        yield child


@contextmanager
def service_of(*words: str, readies: int, service: str, **options: object) -> Iterator[Child]:
    """Run a command as a service in a session of its own, and end its whole set afterwards."""
    chosen: dict[str, object] = {
        "stdin": Stdio.PIPE,
        "stdout": Stdio.PIPE,
        "session": Session.NEW_SESSION,
        **options,
    }
    command = Command(*words, **chosen)  # type: ignore[arg-type]
    with (
        Spawner() as spawner,
        spawner.spawn_owned_supervised(mark_child(command, ChildKind.MCP, service)) as child,
    ):
        try:
            for _ in range(readies):
                assert read(child, 1) == b"R"
            yield child
        finally:
            held = child.pinned if child.is_running() else None
            stop_set_now(child.identity, QUICK, asked_by="the end of a field case", held=held)
            child.poll()


def read(child: Child, size: int, within_s: float = WITHIN_S) -> bytes:
    """Read up to `size` bytes of its stdout; end-of-file is empty. The wait is bounded."""
    assert child.stdout is not None
    if not select.select([child.stdout], [], [], within_s)[0]:
        raise TimeoutError(f"{child} said nothing for {within_s:g} s")
    return os.read(child.stdout.fileno(), size)


def wait_lifeline_end(child: Child, within_s: float = WITHIN_S) -> None:
    """Wait until nobody holds the child's stdout any more: the whole tree that inherited it is gone."""
    deadline = time.monotonic() + within_s
    while read(child, 4096, max(0.0, deadline - time.monotonic())):
        pass


def in_pid_namespace(script: str, *, mounts: str = "", timeout_s: float = 60) -> str:
    """Run a Python script as pid 1 of a fresh pid namespace with a procfs of its own; return what it printed.

    Raises:
        AssertionError: It failed; its stderr is shown.
    """
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", mounts + script],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


RECYCLE: Final = '''
import os, subprocess, sys, time
def next_pid(pid):
    """Make the kernel give `pid` to the next process."""
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(pid - 1))
'''
"""For `in_pid_namespace`: the means to give a number to somebody else."""
