"""Spawning through the library's own door: commands, children, spawners. Real processes, on the path in use."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import resource
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest

from birthmark import (
    ChildKind,
    ChildrenAlive,
    Command,
    ExitStatus,
    Session,
    Spawner,
    SpawnerClosed,
    SpawnFailed,
    Stdio,
    Verdict,
    exit_status,
    find_carriers,
    mark_child,
    open_installation,
    place_in_own_process_group,
    spawn_owned_supervised,
    spawn_supervised,
)
from birthmark.children.command import unarmed_reason
from birthmark.core.markers import TAG_RESOURCE, tag_of
from birthmark.platforms import load
from birthmark.testing.puppet import puppet, wait_exited

SAY_READY = "import os, sys; os.write(1, b'R'); sys.stdin.read()"
WITHIN_S = 5.0


def talker(script: str = SAY_READY, **options: object) -> Command:
    return Command(sys.executable, "-c", script, stdin=Stdio.PIPE, stdout=Stdio.PIPE, **options)  # type: ignore[arg-type]


def output(command: Command) -> bytes:
    with Spawner() as spawner, spawner.spawn_owned_supervised(command) as child:
        assert child.stdout is not None
        text = child.stdout.readall()
        assert child.wait(WITHIN_S) == ExitStatus(code=0)
        return text


# -- the mark --------------------------------------------------------------------


def test_the_mark_stands_first_and_every_other_variable_of_ours_is_scrubbed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BIRTHMARK_AGENT", "the outer one")
    monkeypatch.setenv("BIRTHMARK_ANYTHING", "x")
    command = Command(
        "env", env={"BIRTHMARK_MCP": "forged", "ZED": "1", "PATH": os.environ["PATH"]}, stdout=Stdio.PIPE
    )
    mark_child(command, ChildKind.MCP, "time")
    assert command.mark is not None
    lines = output(command).decode().splitlines()
    assert lines == [
        "BIRTHMARK_SUBPROCESS=1",
        "BIRTHMARK_MCP=time",
        f"BIRTHMARK_INSTALLATION={open_installation().id}",
        f"BIRTHMARK_BIRTH={command.mark.birth}",
        "ZED=1",
        f"PATH={os.environ['PATH']}",
    ]


def test_a_child_without_an_environment_of_its_own_inherits_ours_but_no_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BIRTHMARK_AGENT", "the outer one")
    monkeypatch.setenv("SOME_VALUE", "kept")
    lines = output(Command("env", stdout=Stdio.PIPE)).decode().splitlines()
    assert "SOME_VALUE=kept" in lines
    assert not [line for line in lines if line.startswith("BIRTHMARK_")]


def test_a_birth_inside_a_birth_names_the_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIRTHMARK_BIRTH", "a" * 32)
    command = mark_child(Command("env", stdout=Stdio.PIPE), ChildKind.AGENT, "inner")
    assert f"BIRTHMARK_PARENT={'a' * 32}" in output(command).decode().splitlines()


def test_the_tag_is_in_the_soft_limit_and_the_hard_one_is_left_alone() -> None:
    with Spawner() as spawner:
        child = spawner.spawn_owned_supervised(mark_child(talker(), ChildKind.MCP, "time"))
        assert child.birth is not None
        soft, hard = resource.prlimit(child.pid, TAG_RESOURCE)
        assert soft == tag_of(child.birth)
        assert hard == resource.getrlimit(TAG_RESOURCE)[1]
        child.close()


@pytest.mark.parametrize("name", ["", "api", "a=b", "a\0b", "a\nb", "\x1b", "a\ud800"])
def test_a_name_no_service_may_have_marks_nothing(name: str) -> None:
    command = Command("true")
    with pytest.raises(ValueError, match=r"service name|reserved"):
        mark_child(command, ChildKind.MCP, name)
    assert command.mark is None


def test_a_kind_that_is_none_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="ChildKind"):
        mark_child(Command("true"), "mcp", "time")  # type: ignore[arg-type]


# -- identity at birth -------------------------------------------------------------


def test_a_child_is_proven_from_its_first_moment_and_gone_after_its_end() -> None:
    with Spawner() as spawner:
        child = spawner.spawn_owned_supervised(mark_child(talker(), ChildKind.MCP, "time"))
        assert child.proof().verdict is Verdict.SAME
        assert child.identity.pid == child.pid
        child.close_stdin()
        assert child.wait(WITHIN_S) == ExitStatus(code=0)
        assert child.proof().verdict is Verdict.GONE
        child.close()


def test_an_identity_survives_its_record() -> None:
    with Spawner() as spawner:
        child = spawner.spawn_owned_supervised(mark_child(talker(), ChildKind.MCP, "time/ü b"))
        written = child.identity.to_dict()
        assert type(child.identity).from_dict(written) == child.identity
        assert pickle.loads(pickle.dumps(child.identity)) == child.identity
        child.close()


# -- what a command may be -----------------------------------------------------------


def test_a_program_that_is_not_on_the_childs_path_names_the_path_searched(tmp_path: Path) -> None:
    command = Command("no-such-program", env={"PATH": f"{tmp_path}:/usr/bin"})
    with Spawner() as spawner, pytest.raises(SpawnFailed) as caught:
        spawner.spawn_owned_supervised(command)
    assert caught.value.errno == errno.ENOENT
    assert f"searched PATH={tmp_path}:/usr/bin" in str(caught.value)
    assert "no-such-program" in str(caught.value)


def test_a_failed_spawn_harms_nobody_else() -> None:
    with Spawner() as spawner:
        first = spawner.spawn_owned_supervised(talker())
        for _ in range(5):
            with pytest.raises(SpawnFailed):
                spawner.spawn_owned_supervised(Command("/no/such/program"))
        second = spawner.spawn_owned_supervised(talker())
        assert first.is_running()
        assert second.is_running()
        first.close()
        second.close()


def test_a_directory_is_no_program(tmp_path: Path) -> None:
    with Spawner() as spawner, pytest.raises(SpawnFailed) as caught:
        spawner.spawn_owned_supervised(Command(tmp_path))
    assert caught.value.errno == errno.EACCES
    assert str(tmp_path) in str(caught.value)


def test_a_working_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with Spawner() as spawner, pytest.raises(SpawnFailed) as caught:
        spawner.spawn_owned_supervised(Command("/bin/true", cwd=gone))
    assert caught.value.step == "cwd"
    assert str(gone) in str(caught.value)


def test_a_script_whose_interpreter_is_missing_says_so(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    with Spawner() as spawner, pytest.raises(SpawnFailed, match="interpreter its first line names"):
        spawner.spawn_owned_supervised(Command(script))


def test_an_environment_too_large_names_its_biggest_variables() -> None:
    command = Command("/bin/true", env={"HUGE_ONE": "x" * 200_000, "SMALL": "y"})
    with Spawner() as spawner, pytest.raises(SpawnFailed, match=r"HUGE_ONE \(200000 bytes\)") as caught:
        spawner.spawn_owned_supervised(command)
    assert caught.value.errno == errno.E2BIG


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (("",), {}, ValueError, "empty"),
        (("a\0b",), {}, ValueError, "NUL"),
        (("true", "a\0b"), {}, ValueError, "NUL"),
        ((7,), {}, TypeError, "not text"),
        (("true", 7), {}, TypeError, "not text"),
        (("true",), {"env": {"A=B": "1"}}, ValueError, "cannot name"),
        (("true",), {"env": {"": "1"}}, ValueError, "cannot name"),
        (("true",), {"env": {"A": "1\0"}}, ValueError, "NUL"),
        (("true",), {"env": {"A": 1}}, TypeError, "not text"),
        (("true",), {"stdin": -1}, ValueError, "no descriptor"),
        (("true",), {"stdin": "pipe"}, TypeError, "Stdio"),
        (("true",), {"umask": 0o1000}, ValueError, "umask"),
        (("true",), {"pass_fds": {2: 5}}, ValueError, "3 and above"),
        (("true",), {"parent_death": 0}, ValueError, "not a signal"),
        (("true",), {"parent_death": 65}, ValueError, "not a signal"),
    ],
)
def test_a_command_no_kernel_could_start_is_refused_at_once(
    arguments: tuple[object, ...], options: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Command(*arguments, **options)  # type: ignore[arg-type]


def test_cwd_umask_descriptors_and_limits_are_the_childs_own(tmp_path: Path) -> None:
    script = """
import os, resource, sys
mask = os.umask(0)
print(os.getcwd(), oct(mask), resource.getrlimit(resource.RLIMIT_NOFILE)[0], os.read(9, 4).decode(),
      sorted(int(f) for f in os.listdir("/proc/self/fd") if int(f) < 64)[:5])
"""
    reader, writer = os.pipe()
    os.write(writer, b"mail")
    # An inheritable descriptor that nobody declared stays here.
    leaky = os.dup2(reader, 40, inheritable=True)
    command = Command(
        sys.executable,
        "-c",
        script,
        stdout=Stdio.PIPE,
        cwd=tmp_path,
        umask=0o027,
        limits={resource.RLIMIT_NOFILE: (64, 64)},
        pass_fds={9: reader},
    )
    try:
        words = output(command).decode()
    finally:
        for fd in (reader, writer, leaky):
            os.close(fd)
    assert words.startswith(f"{tmp_path} 0o27 64 mail ")
    assert "[0, 1, 2, 3, 9]" in words  # 3 is the listing's own


def test_an_ignored_signal_and_a_blocked_one_do_not_leak_into_a_child() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        text = output(Command("grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status", stdout=Stdio.PIPE)).decode()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGUSR1, before)
    assert text.split() == ["SigBlk:", "0" * 16, "SigIgn:", "0" * 16]


@pytest.mark.parametrize("session", list(Session))
def test_a_child_leads_a_group_or_a_session_or_neither(session: Session) -> None:
    script = "import os; print(os.getpid(), os.getpgid(0), os.getsid(0))"
    command = Command(sys.executable, "-c", script, stdout=Stdio.PIPE, session=session)
    pid, pgid, sid = map(int, output(command).split())
    assert (pgid == pid) is (session is not Session.INHERIT)
    assert (sid == pid) is (session is Session.NEW_SESSION)
    assert (sid == os.getsid(0)) is (session is not Session.NEW_SESSION)


def test_place_in_own_process_group_makes_a_group_and_no_session() -> None:
    command = Command("true", session=Session.INHERIT)
    assert place_in_own_process_group(command) is command
    assert command.session is Session.NEW_GROUP


def test_a_child_of_another_user_has_that_users_ids_and_groups(as_root: None) -> None:
    text = output(Command("id", user=65534, group=65534, extra_groups=[65534], stdout=Stdio.PIPE)).decode()
    assert "uid=65534" in text
    assert "gid=65534" in text
    assert "root" not in text


def test_a_user_that_does_not_exist_is_named() -> None:
    with Spawner() as spawner, pytest.raises(SpawnFailed, match="no-such-user"):
        spawner.spawn_owned_supervised(Command("true", user="no-such-user"))


def test_a_program_that_the_kernel_disarms_is_reported_as_unarmed(tmp_path: Path) -> None:
    program = tmp_path / "sleeper"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755 | stat.S_ISUID)
    assert unarmed_reason(str(program)) == "the program is set-user-id"
    program.chmod(0o755 | stat.S_ISGID)
    assert unarmed_reason(str(program)) == "the program is set-group-id"
    program.chmod(0o755)
    assert unarmed_reason(str(program)) is None
    with Spawner() as spawner, spawner.spawn_owned_supervised(Command("true", parent_death=None)) as child:
        assert child.unarmed_reason == "not asked for"
        assert not child.armed


def test_a_program_with_file_capabilities_is_reported_as_unarmed(as_root: None, tmp_path: Path) -> None:
    program = tmp_path / "sleeper"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    # struct vfs_cap_data, revision 2: CAP_NET_BIND_SERVICE permitted and effective.
    capability = (0x02000001).to_bytes(4, "little") + (1 << 10).to_bytes(4, "little") + bytes(12)
    try:
        os.setxattr(program, "security.capability", capability)
    except OSError as err:
        pytest.skip(f"this file system keeps no capabilities: {err}")
    assert unarmed_reason(str(program)) == "the program has file capabilities"


# -- parent death -----------------------------------------------------------------


def test_a_child_gets_sigterm_when_the_process_that_spawned_it_is_killed() -> None:
    script = """
from birthmark import Command, Spawner, Stdio
code = "import os, signal, sys; signal.signal(15, lambda *_: (os.write(1, b'D'), sys.exit())); os.write(1, b'R'); signal.pause()"
child = Spawner().spawn_owned_supervised(Command(sys.executable, "-c", code, stdout=Stdio.INHERIT))
tell(child.pid)
stay()
"""
    with puppet(script) as host:
        # The child's own R may come before or after the pid it is told under.
        heard = {bytes([b]) for b in host_bytes(host.process.stdout.fileno(), b"R", b"\n")}  # type: ignore[union-attr]
        assert b"R" in heard
        os.kill(host.pid, signal.SIGKILL)
        assert b"D" in host_bytes(host.process.stdout.fileno(), b"D")  # type: ignore[union-attr]
        host.wait_tree_gone()


def host_bytes(fd: int, *until: bytes) -> bytes:
    """Read until each of `until` was seen; the wait is bounded."""
    import select

    found = b""
    while not all(word in found for word in until):
        if not select.select([fd], [], [], WITHIN_S)[0]:
            raise TimeoutError(f"only {found!r} came")
        piece = os.read(fd, 4096)
        if not piece:
            raise EOFError(f"end after {found!r}")
        found += piece
    return found


def test_children_outlive_the_thread_that_asked_for_them() -> None:
    with Spawner() as spawner:
        children = []
        for _ in range(20):
            thread = threading.Thread(
                target=lambda: children.append(spawner.spawn_owned_supervised(talker()))
            )
            thread.start()
            thread.join(WITHIN_S)
        assert len(children) == 20
        for child in children:
            assert child.stdout is not None
            assert child.stdout.read(1) == b"R"
            assert child.is_running()
        for child in children:
            child.close_stdin()
            assert child.wait(WITHIN_S) == ExitStatus(code=0)
            child.close()


def test_a_fork_of_the_host_leaves_the_hosts_children_and_statuses_alone() -> None:
    with Spawner() as spawner:
        child = spawner.spawn_owned_supervised(talker())
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                try:
                    spawner.spawn_owned_supervised(Command("true"))
                except SpawnerClosed:
                    code = 0 if child.poll() is None else 2
                spawner.close()
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert child.is_running()
        child.close()


# -- exits and reaping -------------------------------------------------------------


@pytest.mark.anyio
async def test_an_exit_is_awaited_on_the_pidfd_by_several_waiters_at_once() -> None:
    with Spawner() as spawner:
        child = spawner.spawn_owned_supervised(talker("import sys; sys.stdin.read(); sys.exit(7)"))
        found: list[ExitStatus] = []

        async def wait() -> None:
            found.append(await child.wait_exit())

        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                tasks.start_soon(wait)
                child.close_stdin()
        assert found == [ExitStatus(code=7)] * 2
        child.close()


def test_waiting_has_a_bound_when_one_is_given() -> None:
    with Spawner() as spawner:
        child = spawner.spawn_owned_supervised(talker())
        with pytest.raises(TimeoutError, match="still runs"):
            child.wait(0.01)
        child.close()


def test_a_dropped_child_is_reaped_and_its_status_can_be_asked_for() -> None:
    with Spawner() as spawner:
        pid = spawner.spawn_supervised(Command("sh", "-c", "exit 7"))
        with_status(spawner, pid, ExitStatus(code=7))
        assert load().start_ticks_of(pid) is None
        child = spawner.spawn_owned_supervised(Command("sh", "-c", "exit 8"))
        pid = child.pid
        del child
        gc.collect()
        with_status(spawner, pid, ExitStatus(code=8))


def with_status(spawner: Spawner, pid: int, expected: ExitStatus) -> None:
    """Wait, bounded, until the spawner knows how `pid` ended."""
    try:
        pinned = load().pin(pid)
    except Exception:
        pinned = None
    if pinned is not None:
        with pinned:
            wait_exited(pinned)
    assert spawner.exit_status(pid) == expected


@pytest.mark.keeps_descriptors
def test_the_processs_own_spawner_serves_the_module_level_functions() -> None:
    child = spawn_owned_supervised(talker())
    child.close_stdin()
    assert child.wait(WITHIN_S) == ExitStatus(code=0)
    child.close()
    assert exit_status(4_000_000) is None
    code = """
import sys
from birthmark import Command, exit_status, spawn_supervised
from birthmark.platforms import load
from birthmark.testing.puppet import wait_exited
pid = spawn_supervised(Command("sh", "-c", "exit 3"))
try:
    with load().pin(pid) as pinned: wait_exited(pinned)
except Exception: pass
print(exit_status(pid).code)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout == "3\n"
    assert spawn_supervised is not None


# -- closing -----------------------------------------------------------------------


def test_closing_with_living_children_refuses_until_it_is_told_what_becomes_of_them() -> None:
    spawner = Spawner()
    child = spawner.spawn_owned_supervised(talker())
    with pytest.raises(ChildrenAlive, match=str(child.pid)):
        spawner.close()
    assert spawner.spawn_owned_supervised(Command("true")).wait(WITHIN_S) == ExitStatus(code=0)
    spawner.close(children="stop")
    assert child.poll() == ExitStatus(signal=signal.SIGTERM)
    child.close()


def test_children_that_are_left_run_on_and_can_still_be_waited_for() -> None:
    spawner = Spawner()
    child = spawner.spawn_owned_supervised(talker())
    spawner.close(children="leave")
    spawner.close(children="leave")
    with pytest.raises(SpawnerClosed):
        spawner.spawn_owned_supervised(Command("true"))
    assert child.is_running()
    child.close_stdin()
    assert child.wait(WITHIN_S) == ExitStatus(code=0)
    child.close()


def test_a_spawner_closed_twice_and_a_wrong_word_are_defined() -> None:
    spawner = Spawner()
    spawner.close()
    spawner.close(children="stop")
    with pytest.raises(ValueError, match="neither"):
        spawner.close(children="kill")  # type: ignore[arg-type]


def test_at_interpreter_exit_armed_children_end_and_nothing_is_printed() -> None:
    script = """
from birthmark import Command, Spawner, Stdio
code = "import os, signal; os.write(1, b'R'); signal.pause()"
child = Spawner().spawn_owned_supervised(Command(sys.executable, "-c", code, stdout=Stdio.INHERIT))
stay()
"""
    with puppet(script) as host:
        host.wait_ready()
        host.close_stdin()
        host.wait_exited()
        host.wait_tree_gone()
        assert host.reap() == ExitStatus(code=0)


def test_find_carriers_finds_a_child_and_what_escaped_from_it() -> None:
    script = "env -i setsid sh -c 'echo; sleep 60' & echo; exec sleep 60"
    with Spawner() as spawner:
        command = mark_child(Command("sh", "-c", script, stdout=Stdio.PIPE), ChildKind.MCP, "escaping")
        child = spawner.spawn_owned_supervised(command)
        assert child.stdout is not None
        assert child.birth is not None
        assert child.stdout.read(1) + child.stdout.read(1) == b"\n\n"
        found = find_carriers([child.birth], open_installation().id)
        assert child.pid in {carrier.pid for carrier in found}
        assert len(found) >= 2
        from birthmark import StopPolicy, stop_set_now

        receipt = stop_set_now(child.identity, StopPolicy(), asked_by="a test", held=child.pinned)
        assert not receipt.survivors
        assert find_carriers([child.birth], open_installation().id) == []
        child.wait(WITHIN_S)
        child.close()
