"""A caller that is woken by the exec itself has the right child, and leaves nothing behind. Real processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from birthmark.platforms.launch import why_pure
from tests.conftest import LINUX

pytestmark = [
    pytest.mark.skipif(not LINUX, reason="launches are Linux's here"),
    pytest.mark.skipif(LINUX and why_pure() is not None, reason=f"no native spawner: {LINUX and why_pure()}"),
]

BEGIN = """
import os, threading
from birthmark.platforms.launch import Launch, LaunchFailed
from birthmark.platforms.native_launch import launch
NULL = os.open(os.devnull, os.O_RDWR)
THREE = ((NULL, 0), (NULL, 1), (NULL, 2))
def start(path, *words, **more):
    return launch(Launch(path=path, argv=(path, *words), env=(), descriptors=THREE, **more))
"""


def told(script: str) -> str:
    """Run a script as a host of its own; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_child_that_is_reaped_at_once_is_not_missed_by_the_thread_that_forked_it() -> None:
    script = """
        def ends(times):
            for number in range(times):
                try:
                    pid, fd = start(b"/bin/true" if number % 4 else b"/nowhere")
                except LaunchFailed as err:
                    assert err.step == "exec", err
                    continue
                assert os.waitpid(pid, 0) == (pid, 0)
                os.close(fd)
        ends(1)
        before = set(os.listdir("/proc/self/fd"))
        threads = [threading.Thread(target=ends, args=(100,)) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        try:
            left = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            left = None
        print(left, set(os.listdir("/proc/self/fd")) == before)
    """
    assert told(script) == "None True\n"


def test_a_child_with_other_credentials_is_waited_for_by_the_thread() -> None:
    script = """
        mine = dict(uid=os.getuid(), gid=os.getgid())
        for _ in range(20):
            pid, fd = start(b"/bin/true", **mine)
            assert os.waitpid(pid, 0) == (pid, 0)
            os.close(fd)
        print("done")
    """
    assert told(script) == "done\n"
