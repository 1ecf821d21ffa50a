"""`birthmark run` on real processes: what the command gets, what becomes of its set, and what we exit with."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from birthmark.core.identity import Identity
from birthmark.core.markers import TAG_RESOURCE, tag_of
from birthmark.core.service import birth_id
from birthmark.platforms import load
from birthmark.testing import Puppet, puppet, wait_exited
from tests.e2e.fronts import (
    DEAF,
    HOST,
    RUN,
    SETSID_DEAF,
    STAYS,
    TELLS_SIGNALS,
    command,
    environment,
    front,
    pinned,
    send,
    send_group,
    send_to,
    until,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="`birthmark run` needs Linux's subreaper")


def run(
    *words: str, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run the words after `birthmark run`, to their end."""
    return subprocess.run(
        [*RUN, *words],
        env=environment() if env is None else env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )


def hear_two(child: Puppet) -> tuple[Any, Any]:
    """Return two values told at once; Any: they are what JSON makes of them."""
    told = child.hear()
    assert isinstance(told, list)
    first, second = told
    return first, second


# -- exit codes ----------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 2, 125, 255])
def test_the_exit_code_is_the_commands(code: int) -> None:
    done = run("--", "sh", "-c", f"exit {code}")
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
def test_a_command_ended_by_a_signal_is_128_and_the_signal(sig: signal.Signals) -> None:
    assert run("--", "sh", "-c", f"kill -{int(sig)} $$").returncode == 128 + sig


def test_a_missing_command_is_127_and_says_where_it_was_looked_for() -> None:
    done = run("--", "no-such-program-here", env=environment(PATH="/nowhere:/neither"))
    assert done.returncode == 127
    assert done.stderr == b"birthmark run: no-such-program-here: not found; searched PATH=/nowhere:/neither\n"


def test_a_path_to_nothing_is_127() -> None:
    done = run("--", "/nowhere/program")
    assert done.returncode == 127
    assert done.stderr == b"birthmark run: /nowhere/program: No such file or directory [ENOENT]\n"


def test_a_directory_is_126() -> None:
    done = run("--", "/tmp")
    assert (done.returncode, done.stderr) == (126, b"birthmark run: /tmp: it is a directory, not a program\n")


def test_a_file_without_permission_is_126(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    done = run("--", str(script))
    assert done.returncode == 126
    assert b"may not be executed" in done.stderr


def test_a_script_whose_interpreter_is_missing_is_127_and_says_so(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/nowhere/interpreter\n")
    script.chmod(0o755)
    done = run("--", str(script))
    assert done.returncode == 127
    assert b"interpreter" in done.stderr


def test_a_script_without_an_interpreter_line_runs_in_the_shell(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo $1; exit 4\n")
    script.chmod(0o755)
    done = run("--", str(script), "hello")
    assert (done.returncode, done.stdout) == (4, b"hello\n")


def test_a_relative_program_is_found_from_the_working_directory(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\necho $0 $1\n")
    script.chmod(0o755)
    done = run("--", "./script", "x", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/./script x\n".encode())


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "the command is missing"),
        (["--"], "the command is missing"),
        (["--", ""], "the command's name is empty"),
        (["--name"], "--name needs a value"),
        (["--name", "", "--", "true"], "--name: the service name is empty"),
        (["--name", "a=b", "--", "true"], "--name: the service name 'a=b' holds '='"),
        (["--name", "a\nb", "--", "true"], "--name: the service name 'a\\nb' holds '\\n'"),
        (["--name", "api", "--", "true"], "reserved"),
        (["--kind", "api", "--", "true"], "--kind is 'api'"),
        (["--grace", "5", "--", "true"], "a time with a unit"),
        (["--grace", "-1s", "--", "true"], "between 0s and 24h"),
        (["--grace", "nans", "--", "true"], "--grace is 'nans'"),
        (["--grace=25h", "--", "true"], "between 0s and 24h"),
        (["--no-such-option", "--", "true"], "no such option: --no-such-option"),
    ],
)
def test_wrong_usage_is_2_names_the_problem_and_starts_nothing(
    words: list[str], problem: str, birthmark_home: Path
) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert problem in done.stderr.decode()
    assert b"Usage: birthmark run" in done.stderr
    assert b"Traceback" not in done.stderr
    assert not birthmark_home.exists()


def test_help_has_examples_and_goes_to_stdout() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert b"birthmark run -- npx -y" in done.stdout


def test_what_follows_the_command_is_the_commands() -> None:
    assert run("echo", "--name", "--", "-v").stdout == b"--name -- -v\n"


# -- what the command gets -----------------------------------------------------


def test_the_command_gets_the_clients_own_streams() -> None:
    script = "tell([[s.st_dev, s.st_ino] for s in map(os.fstat, (0, 1, 2))])"
    with front(script) as child:
        assert child.process.stdin is not None
        assert child.process.stdout is not None
        ours = [os.fstat(fd) for fd in (child.process.stdin.fileno(), child.process.stdout.fileno(), 2)]
        assert child.hear() == [[s.st_dev, s.st_ino] for s in ours]


def test_the_front_holds_no_copy_of_stdout_and_stdin_only_to_see_its_end() -> None:
    with front("ready(); stay()") as child:
        child.wait_ready()
        assert child.process.stdout is not None
        lifeline = os.readlink(f"/proc/self/fd/{child.process.stdout.fileno()}")
        held = {fd: os.readlink(f"/proc/{child.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{child.pid}/fd")}
        assert lifeline not in held.values()
        assert held["1"] == "/dev/null"


def test_an_agents_front_holds_no_stdin_at_all() -> None:
    with front("ready(); stay()", "--kind", "agent") as child:
        child.wait_ready()
        assert os.readlink(f"/proc/{child.pid}/fd/0") == "/dev/null"


def test_further_descriptors_of_the_client_are_passed_on_and_let_go_of() -> None:
    reading, writing = os.pipe()
    try:
        with front(
            "os.write(int(sys.argv[1]), b'x'); ready(); stay()", argv=[str(writing)], pass_fds=[writing]
        ) as child:
            child.wait_ready()
            assert os.read(reading, 1) == b"x"
            assert str(writing) not in os.listdir(f"/proc/{child.pid}/fd")
    finally:
        os.close(reading)
        os.close(writing)


def test_a_client_that_closed_streams_costs_nothing() -> None:
    # Whatever we open must not take the place of one of the three: signals still arrive, and nothing hangs up.
    reading, writing = os.pipe()
    script = (
        f"signal.signal(signal.SIGUSR1, lambda *_: os.write({writing}, b'U')); os.write({writing}, b'R')"
        + STAYS
    )
    with subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- >&-', "sh", *command(script, "--eof-grace", "0s")],
        env=environment(),
        pass_fds=[writing],
    ) as process:
        os.close(writing)
        with open(reading, "rb", buffering=0) as answers, pinned(process.pid) as the_front:
            assert answers.read(1) == b"R"
            send_to(the_front, signal.SIGUSR1)
            assert answers.read(1) == b"U"
            send_to(the_front, signal.SIGTERM)
            assert process.wait(5) == 128 + signal.SIGTERM


def test_the_environment_is_the_clients_with_our_mark_in_front() -> None:
    # In the C locale Python adds LC_CTYPE to what it was given; the command must not see that.
    given = {
        "PATH": os.environ["PATH"],
        "BIRTHMARK_HOME": os.environ["BIRTHMARK_HOME"],
        "LC_ALL": "C",
        "B": "2",
        "A": "1",
    }
    given |= {"BIRTHMARK_AGENT": "a stranger's", "PYTHONPATH": "/nowhere"}
    done = run("--name", "it", "--", "env", "-0", env=given)
    names = [entry.split("=")[0] for entry in done.stdout.decode().split("\0")[:-1]]
    ours = ["BIRTHMARK_SUBPROCESS", "BIRTHMARK_MCP", "BIRTHMARK_INSTALLATION", "BIRTHMARK_BIRTH"]
    assert names[:4] == ours
    assert sorted(names[4:]) == ["A", "B", "LC_ALL", "PATH", "PYTHONPATH"]


def test_the_command_carries_mark_and_tag_of_its_birth_and_names_the_birth_it_lies_in() -> None:
    script = "import resource; tell([dict(os.environ), resource.getrlimit(15)])"
    with front(
        script, "--kind", "agent", "--name", "outer", env=environment(BIRTHMARK_BIRTH="0" * 31 + "1")
    ) as child:
        environ, limit = hear_two(child)
    assert environ["BIRTHMARK_AGENT"] == "outer"
    assert environ["BIRTHMARK_PARENT"] == "0" * 31 + "1"
    assert limit[0] == tag_of(birth_id(environ["BIRTHMARK_BIRTH"]))
    assert TAG_RESOURCE == 15


def test_the_command_stays_in_the_clients_group_and_session_and_is_our_child() -> None:
    with front("tell([os.getppid(), os.getpgrp(), os.getsid(0)])") as child:
        assert child.hear() == [child.pid, child.pid, child.pid]


def test_no_signal_is_blocked_or_ignored_in_the_command() -> None:
    lines = run("--", "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status").stdout.split(b"\n")
    assert {line.split()[1] for line in lines if line} == {b"0" * 16}


def test_what_the_client_had_us_ignore_stays_ignored() -> None:
    script = 'trap "" HUP; exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *RUN, "--", "grep", "^SigIgn", "/proc/self/status"],
        env=environment(),
        capture_output=True,
        timeout=20,
        check=True,
    )
    assert done.stdout == b"SigIgn:\t0000000000000001\n"


# -- the set -------------------------------------------------------------------


def test_what_a_command_leaves_behind_ends_with_it() -> None:
    with front("if os.fork() == 0: os.setsid(); ready(); stay()\nelse: time.sleep(0); sys.exit(7)") as child:
        child.wait_tree_gone()
        assert child.reap().code == 7


def test_a_daemon_deaf_to_sigterm_is_killed_and_the_exit_code_is_still_the_commands() -> None:
    with front(SETSID_DEAF + "sys.exit(3)", "--grace", "100ms") as child:
        with pinned(child.hear_pid()) as daemon:
            wait_exited(daemon)
        assert child.reap().code == 3


def test_a_storm_of_forks_is_ended() -> None:
    storm = """\
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid()
ready()
for _ in range(300):  # bounded, should the test fail
    if os.fork() == 0:
        time.sleep(0.01)
        continue
    if _ > 3: os._exit(0)
    time.sleep(0.01)
"""
    with front(
        f"if os.fork() == 0:\n  exec({storm!r})\n  os._exit(0)\nstay()",
        "--grace",
        "100ms",
        "--eof-grace",
        "0s",
    ) as child:
        child.wait_ready()
        child.close_stdin()
        child.wait_tree_gone(within_s=15)  # each link lives for 10 ms, and has to be met in them
        child.reap()


def test_what_falls_to_us_is_reaped_while_the_command_lives() -> None:
    # A grandchild whose parent is gone becomes our child, and ends: nobody else would reap it.
    script = """\
for line in sys.stdin:
    if os.fork() == 0:
        child = os.fork()
        if child: tell(child); os._exit(0)
        os._exit(0)
    os.wait()
"""
    with front(script) as child:
        child.say("0")
        orphan = child.hear_pid()
        until(lambda: load().start_ticks_of(orphan) is None)


def test_a_killed_front_takes_the_command_along() -> None:
    with front(DEAF + "tell(os.getpid());" + STAYS) as child:
        with pinned(child.hear_pid()) as leader:
            send(child, signal.SIGKILL)
            wait_exited(leader)


def test_a_port_held_by_what_was_left_is_free_again() -> None:
    script = """\
import socket
server = socket.create_server(("127.0.0.1", 0))
tell(server.getsockname()[1])
if os.fork() == 0:
    os.setsid()
    while True: signal.pause()
os._exit(0)
"""
    with front(script) as child:
        port = child.hear_pid()
        child.reap()
        with socket.create_server(("127.0.0.1", port)):
            pass


# -- the end of the input ------------------------------------------------------


def test_a_hang_up_ends_a_server_that_does_not_look_at_its_input() -> None:
    with front("ready();" + STAYS, "--eof-grace", "50ms") as child:
        child.wait_ready()
        child.close_stdin()
        child.wait_tree_gone()
        assert child.reap().code == 128 + signal.SIGTERM


def test_a_server_that_leaves_at_the_end_of_its_input_gets_no_signal() -> None:
    with front(TELLS_SIGNALS + "ready(); stay(); tell('end')", "--eof-grace", "20s") as child:
        child.wait_ready()
        child.close_stdin()
        assert child.hear() == "end"
        child.wait_tree_gone()
        assert child.reap().code == 0


def test_a_server_deaf_to_everything_is_killed_after_a_hang_up() -> None:
    with front(DEAF + "ready();" + STAYS, "--eof-grace", "20ms", "--grace", "50ms") as child:
        child.wait_ready()
        child.close_stdin()
        child.wait_tree_gone()
        assert child.reap().code == 128 + signal.SIGKILL


@pytest.mark.parametrize("how", ["closed", "half closed"])
def test_a_socket_pair_hangs_up_too(how: str) -> None:
    ours, theirs = socket.socketpair()
    with (
        ours,
        subprocess.Popen(
            [*command("ready();" + STAYS, "--eof-grace", "50ms")],
            stdin=theirs.fileno(),
            stdout=subprocess.PIPE,
            env=environment(),
        ) as process,
    ):
        theirs.close()
        assert process.stdout is not None
        assert process.stdout.read(1) == b"R"
        if how == "closed":
            ours.close()
        else:
            ours.shutdown(socket.SHUT_WR)
        assert process.wait(5) == 128 + signal.SIGTERM


def test_unread_input_is_no_hindrance_and_is_not_eaten() -> None:
    with front(
        "ready(); signal.signal(signal.SIGTERM, lambda *_: (tell(sys.stdin.read()), os._exit(0)));" + STAYS,
        "--eof-grace",
        "50ms",
    ) as child:
        child.wait_ready()
        child.say("x" * 1000)
        child.close_stdin()
        assert child.hear() == "x" * 1000 + "\n"
        child.wait_tree_gone()


@pytest.mark.parametrize("source", ["/dev/null", __file__])
def test_a_file_never_hangs_up(source: str) -> None:
    script = "signal.signal(signal.SIGUSR1, lambda *_: ready()); ready()" + STAYS
    with (
        open(source, "rb") as file,
        subprocess.Popen(
            command(script, "--eof-grace", "0s"), stdin=file, stdout=subprocess.PIPE, env=environment()
        ) as process,
    ):
        assert process.stdout is not None
        with pinned(process.pid) as the_front:
            # Each answer comes by way of the front, which has looked at its stdin before.
            for _ in range(3):
                assert process.stdout.read(1) == b"R"
                send_to(the_front, signal.SIGUSR1)
            send_to(the_front, signal.SIGTERM)
            assert process.wait(5) == 128 + signal.SIGTERM


def test_an_agents_finite_input_is_normal() -> None:
    script = (
        "signal.signal(signal.SIGUSR1, lambda *_: (tell('worked on'), os._exit(0))); stay(); ready()" + STAYS
    )
    with front(script, "--kind", "agent", "--eof-grace", "0s") as child:
        child.close_stdin()
        child.wait_ready()
        send(child, signal.SIGUSR1)
        assert child.hear() == "worked on"
        child.wait_tree_gone()
        assert child.reap().code == 0


# -- the client's death --------------------------------------------------------


@pytest.mark.parametrize("kind", ["mcp", "agent"])
def test_a_killed_client_takes_everything_along(kind: str) -> None:
    words = command(
        SETSID_DEAF + DEAF + "ready();" + STAYS, "--kind", kind, "--grace", "50ms", "--eof-grace", "50ms"
    )
    with puppet(HOST, argv=words, env=environment()) as host:
        host.hear_pid()
        with pinned(host.hear_pid()) as daemon:
            host.wait_ready()
            send(host, signal.SIGKILL)
            wait_exited(daemon)
            host.wait_tree_gone()


def test_a_write_end_leaked_to_a_sibling_does_not_keep_the_server_alive() -> None:
    reading, writing = os.pipe()
    host_script = """\
import subprocess
front = subprocess.Popen(sys.argv[2:], stdin=int(sys.argv[1]))
os.close(int(sys.argv[1]))
stay()
"""
    words = command("ready();" + STAYS, "--eof-grace", "50ms")
    try:
        # The write end stays open in this process, which outlives the client.
        with puppet(host_script, argv=[str(reading), *words], pass_fds=[reading], env=environment()) as host:
            host.wait_ready()
            send(host, signal.SIGKILL)
            host.wait_tree_gone()
    finally:
        os.close(reading)
        os.close(writing)


def test_a_client_thread_that_ends_is_not_the_clients_death() -> None:
    host_script = """\
import subprocess
def start():
    global front
    front = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
thread = threading.Thread(target=start); thread.start(); thread.join()
for line in sys.stdin:
    front.stdin.write(line.encode()); front.stdin.flush()
"""
    with puppet(host_script, argv=command("ready(); obey()", "--eof-grace", "0s"), env=environment()) as host:
        host.wait_ready()
        host.ask()
        host.ask()


def test_a_command_started_with_hup_ignored_outlives_the_client_as_it_would_without_us() -> None:
    host_script = "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + HOST
    words = command(
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); tell(os.getpid());"
        "signal.sigtimedwait([signal.SIGUSR1], 5); tell('still here')",
        "--eof-grace",
        "0s",
    )
    with puppet(host_script, argv=words, env=environment()) as host:
        with pinned(host.hear_pid()) as the_front, pinned(host.hear_pid()) as leader:
            send(host, signal.SIGKILL)
            host.wait_exited()
            send_to(leader, signal.SIGUSR1)
            assert host.hear() == "still here"
            wait_exited(the_front)


# -- signals -------------------------------------------------------------------


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_front_reaches_the_command_once_and_ends_it(sig: signal.Signals) -> None:
    with front(TELLS_SIGNALS + "ready();" + STAYS, "--grace", "300ms") as child:
        child.wait_ready()
        send(child, sig)
        heard = [child.hear()]
        with pytest.raises(EOFError):
            while True:
                heard.append(child.hear())
        # A leader that only had HUP or INT is asked with TERM before it is killed.
        assert heard == ([sig.name] if sig == signal.SIGTERM else [sig.name, "SIGTERM"])
        assert child.reap().code == 128 + signal.SIGKILL


def test_an_interrupt_followed_by_sigterm_is_one_stop() -> None:
    with front(TELLS_SIGNALS + "ready();" + STAYS, "--grace", "400ms") as child:
        child.wait_ready()
        send(child, signal.SIGINT)
        assert child.hear() == "SIGINT"
        send(child, signal.SIGTERM)
        assert child.hear() == "SIGTERM"
        with pytest.raises(EOFError):
            child.hear()


def test_a_second_request_shortens_the_grace() -> None:
    with front(TELLS_SIGNALS + "ready();" + STAYS, "--grace", "1h") as child:
        child.wait_ready()
        send(child, signal.SIGTERM)
        assert child.hear() == "SIGTERM"
        send(child, signal.SIGTERM)
        child.wait_tree_gone()
        assert child.reap().code == 128 + signal.SIGKILL


@pytest.mark.parametrize("sig", [signal.SIGUSR1, signal.SIGQUIT])
def test_other_signals_are_passed_on_and_stop_nothing(sig: signal.Signals) -> None:
    with front(TELLS_SIGNALS + "ready(); obey()") as child:
        child.wait_ready()
        send(child, sig)
        assert child.hear() == sig.name
        child.ask()


def test_a_signal_the_command_sends_to_its_own_group_is_its_own_affair() -> None:
    script = "signal.signal(signal.SIGTERM, lambda *_: ready()); os.killpg(0, signal.SIGTERM); obey()"
    with front(script, "--grace", "50ms") as child:
        child.wait_ready()
        child.ask()
        child.ask()


def test_a_stopped_command_is_ended_all_the_same() -> None:
    with front("ready(); os.kill(os.getpid(), signal.SIGSTOP); stay()", "--grace", "5s") as child:
        child.wait_ready()
        send(child, signal.SIGTERM)
        child.wait_tree_gone()
        assert child.reap().code == 128 + signal.SIGTERM


def test_the_rest_of_the_set_is_asked_before_it_is_killed() -> None:
    script = f"""\
{DEAF}
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: (tell("asked"), os._exit(0)))
    ready()
    while True: signal.pause()
{STAYS}
"""
    with front(script, "--grace", "600ms") as child:
        child.wait_ready()
        send(child, signal.SIGTERM)
        assert child.hear() == "asked"
        child.wait_tree_gone()


def test_a_group_signal_of_the_client_ends_everything() -> None:
    with front(SETSID_DEAF + "ready();" + STAYS, "--grace", "50ms") as child:
        with pinned(child.hear_pid()) as daemon:
            child.wait_ready()
            send_group(child, signal.SIGTERM)
            wait_exited(daemon)
        assert child.reap().code == 128 + signal.SIGTERM


# -- places --------------------------------------------------------------------


@pytest.mark.namespaces
def test_as_pid_1_of_a_namespace_it_works_and_reaps() -> None:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    unshare = ["unshare", *user, "--pid", "--fork", "--mount-proc", "--kill-child"]
    script = "(sleep 0 &) ; (setsid sleep 300 &) ; echo $PPID; exit 9"
    done = subprocess.run(
        [*unshare, *RUN, "--", "sh", "-c", script],
        env=environment(),
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (9, b"1\n", b"")


@pytest.mark.namespaces
def test_as_pid_1_of_a_namespace_sigterm_ends_it() -> None:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    unshare = ("unshare", *user, "--pid", "--fork", "--mount-proc", "--kill-child")
    script = "tell(os.getppid()); signal.sigtimedwait([signal.SIGUSR1], 5)"
    with puppet(script, under=(*unshare, *RUN, "--"), env=environment()) as child:
        assert child.hear() == 1
        (inner,) = load().children_of(child.pid)
        with pinned(inner) as pid_1:
            send_to(pid_1, signal.SIGTERM)
            child.wait_tree_gone()


def test_a_file_in_the_working_directory_stands_in_for_no_module(tmp_path: Path) -> None:
    for name in ("signal", "ctypes", "select", "json", "birthmark"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    done = run("--", "true", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("way", ["script", "module"])
def test_a_clients_pythonpath_is_for_the_command_and_not_for_us(way: str, tmp_path: Path) -> None:
    for name in ("select", "json", "ctypes", "platformdirs", "resource"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    words = (
        [sys.executable, "-m", "birthmark"]
        if way == "module"
        else [str(Path(sys.executable).with_name("birthmark"))]
    )
    if not Path(words[0]).exists():
        pytest.skip(f"there is no {words[0]}")
    done = subprocess.run(
        [*words, "run", "--", "printenv", "PYTHONPATH"],
        env=environment(PYTHONPATH=str(tmp_path)),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{tmp_path}\n".encode(), b"")


# -- papers --------------------------------------------------------------------


def test_a_birth_is_written_down_before_after_and_at_its_end(birthmark_home: Path) -> None:
    with front(
        "tell([os.environ['BIRTHMARK_BIRTH'], os.getpid()]); stay(); sys.exit(5)", "--name", "it"
    ) as child:
        birth, pid = hear_two(child)
        folder = birthmark_home / "births" / birth
        intent = json.loads((folder / "intent.json").read_text())
        assert (intent["service"], intent["kind"], intent["by"], intent["by_pid"]) == (
            "it",
            "mcp",
            "run",
            child.pid,
        )
        until((folder / "identity.json").exists)
        identity = Identity.from_dict(json.loads((folder / "identity.json").read_text())["identity"])
        assert (identity.pid, identity.birth, identity.service) == (pid, birth, "it")
        assert not (folder / "exit.json").exists()
        child.close_stdin()
        child.reap()
    end = json.loads((folder / "exit.json").read_text())
    assert end["exit"] == {"code": 5, "signal": None, "core_dumped": False}
    assert (end["born"], end["survivors"]) == (True, [])
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        "intent.json": 0o600, "identity.json": 0o600, "exit.json": 0o600,
    }  # fmt: skip


def test_a_command_that_never_ran_is_written_down_as_such(birthmark_home: Path, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/nowhere/interpreter\n")
    script.chmod(0o755)
    assert run("--", str(script)).returncode == 127
    (folder,) = (birthmark_home / "births").iterdir()
    assert json.loads((folder / "exit.json").read_text())["born"] is False


def test_a_state_folder_that_cannot_be_made_costs_one_line_and_not_the_start(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    done = run(
        "--",
        "sh",
        "-c",
        'echo "$BIRTHMARK_MCP"; exit 6',
        env=environment(BIRTHMARK_HOME=str(place / "state")),
    )
    assert (done.returncode, done.stdout) == (6, b"sh\n")
    assert done.stderr.startswith(b"birthmark run: warning: ")
    assert done.stderr.count(b"\n") == 1


def test_verbose_says_what_was_signalled() -> None:
    done = run("-v", "--", "sh", "-c", "setsid sleep 300 & exit 0")
    assert done.returncode == 0
    assert b"birthmark run: ended because the command ended\n" in done.stderr


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_whole_group_is_not_given_to_the_command_again(sig: signal.Signals) -> None:
    with front(TELLS_SIGNALS + "ready()" + STAYS, "--grace", "400ms") as child:
        child.wait_ready()
        send_group(child, sig)
        heard = [child.hear()]
        with pytest.raises(EOFError):
            while True:
                heard.append(child.hear())
        assert heard == ([sig.name] if sig == signal.SIGTERM else [sig.name, "SIGTERM"])


def test_signals_to_the_group_and_to_the_front_alone_are_told_apart_again_and_again() -> None:
    with front(TELLS_SIGNALS + "ready()" + STAYS) as child:
        child.wait_ready()
        for _ in range(5):
            send_group(child, signal.SIGUSR1)
            assert child.hear() == "SIGUSR1"
            send(child, signal.SIGQUIT)
            assert child.hear() == "SIGQUIT"  # a second SIGUSR1 would have come first
