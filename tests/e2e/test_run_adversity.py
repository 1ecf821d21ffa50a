"""`birthmark run` where little is to be had, and where things come early, or from an unusual side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from birthmark.platforms import load
from birthmark.testing import puppet
from tests.e2e.fronts import DEAF, RUN, STAYS, environment, front, pinned, send

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="`birthmark run` needs Linux's subreaper")


# -- little to be had ----------------------------------------------------------


DEAF_WIDE = """\
for number in range(60):
    if os.fork() == 0:
        os.setsid()
        while True: signal.pause()
ready()
sys.exit(3)
"""

DEAF_DEEP = """\
for number in range(60):
    if os.fork():
        while True: signal.pause()
ready()
while True: signal.pause()
"""


@pytest.mark.parametrize(("script", "code"), [(DEAF_WIDE, 3), (DEAF_DEEP, 128 + signal.SIGKILL)])
def test_a_set_larger_than_the_descriptors_we_may_have_is_ended(script: str, code: int) -> None:
    few = ("prlimit", "--nofile=40:40", *RUN, "--grace", "100ms", "--eof-grace", "0s", "--")
    with puppet(DEAF + script, under=few, env=environment()) as child:
        child.wait_ready()
        child.close_stdin()
        child.wait_tree_gone()
        assert child.reap().code == code


def test_a_paper_the_disk_takes_only_half_of_is_none_and_costs_one_line(birthmark_home: Path) -> None:
    subprocess.run([*RUN, "--", "true"], env=environment(), check=True, timeout=20)
    before = set((birthmark_home / "births").iterdir())
    done = subprocess.run(
        ["prlimit", "--fsize=300:300", *RUN, "--", "sh", "-c", "exit 4"],
        env=environment(),
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 4
    assert done.stderr.startswith(b"birthmark run: warning: ")
    assert done.stderr.count(b"\n") == 1
    assert set((birthmark_home / "births").iterdir()) == before


def test_a_client_that_does_not_read_stderr_does_not_keep_us() -> None:
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(write, b"x" * 512)
        os.set_blocking(write, True)
        done = subprocess.run(
            [*RUN, "-v", "--", "sh", "-c", "exit 8"], env=environment(), stderr=write, timeout=20, check=False
        )
        assert done.returncode == 8
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("path", ["", "bin:"])
def test_a_working_directory_that_is_gone_keeps_nothing_on_the_path_from_being_found(
    path: str, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", *RUN, "--", "true"],
        env=environment(PATH=f"{path}:{os.environ['PATH']}"),
        cwd=gone,
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="hiding /proc needs root")
def test_without_procfs_nothing_is_started() -> None:
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "sh",
            "-c",
            'mount -t tmpfs none /proc && exec "$@"',
            "sh",
            *RUN,
            "--",
            "echo",
            "ran",
        ],
        env=environment(),
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"no procfs" in done.stderr


# -- early ---------------------------------------------------------------------


def test_a_signal_to_the_group_just_before_the_command_is_born_reaches_it() -> None:
    # The witness has fallen to it by then, and still the command never got it.
    early = """\
import os, signal, sys
from birthmark.keeper import front
born = front._launched
def launched(*words):
    os.killpg(0, signal.SIGTERM)
    return born(*words)
front._launched = launched
sys.exit(front.main(sys.argv[1:]))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", early, "--", "sleep", "300"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 128 + signal.SIGTERM  # not KILL, as from somebody who would not hear


def test_an_interrupt_before_we_listen_ends_us_without_a_traceback() -> None:
    early = """\
import signal, sys
from birthmark.interfaces.cli.entry import main
from birthmark.keeper import front
front.main = lambda words: signal.raise_signal(signal.SIGINT)
sys.argv = ["birthmark", "run", "--", "true"]
main()
"""
    done = subprocess.run([sys.executable, "-I", "-c", early], capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


# -- from an unusual side ------------------------------------------------------


@pytest.mark.parametrize("sig", [signal.SIGABRT, signal.SIGPROF, signal.SIGSEGV, signal.SIGURG])
def test_no_signal_but_sigkill_ends_us_before_the_command(sig: signal.Signals) -> None:
    script = "signal.signal(int(sys.argv[1]), lambda number, _: tell(number)); ready()" + STAYS
    with front(script, argv=[str(int(sig))]) as child:
        child.wait_ready()
        send(child, sig)
        assert child.hear() == sig


def test_a_script_without_an_interpreter_line_runs_under_nohup_too(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("grep SigIgn /proc/self/status; echo $1; exit 4\n")
    script.chmod(0o755)
    done = subprocess.run(
        ["nohup", *RUN, "--", str(script), "hello"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout) == (4, b"SigIgn:\t0000000000000001\nhello\n")


@pytest.mark.namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="entering a namespace from outside needs root")
def test_as_pid_1_a_signal_from_somebody_put_into_the_container_counts() -> None:
    unshare = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    script = "tell(os.getppid()); signal.signal(signal.SIGTERM, lambda *_: tell('heard'))" + STAYS
    with puppet(script, under=(*unshare, *RUN, "--"), env=environment()) as child:
        assert child.hear() == 1
        (inner,) = load().children_of(child.pid)
        with pinned(inner):
            # Its sender stays, so that it can be looked at: it has a parent, but not in there.
            shell = "kill -TERM 1; read line"
            with subprocess.Popen(
                ["nsenter", "--target", str(inner), "--pid", "--mount", "sh", "-c", shell],
                stdin=subprocess.PIPE,
            ) as sender:
                assert child.hear() == "heard"
                assert sender.stdin is not None
                sender.stdin.close()
                sender.wait(5)
            child.wait_tree_gone()
