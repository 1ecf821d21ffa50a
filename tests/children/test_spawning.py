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
from birthmark.core.outcomes import Basis, Warrant
from birthmark.platforms import launch, load
from birthmark.platforms.launch import Launch
from birthmark.testing.puppet import puppet, wait_exited
from tests.contracts.worlds import audit
from tests.namespaces import run_in_namespaces, run_python

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


# -- what a stranger or another thread could do to a child's number --------------------------


NUMBERS = """
from birthmark import Command, Spawner
from birthmark.testing.puppet import wait_exited

def ended(pid):
    with linux.pin(pid) as pinned: wait_exited(pinned)

def number_is_free(pid):
    while linux.start_ticks_of(pid) is not None: os.sched_yield()

def under(pid, command):
    '''Spawn the command under the number of one that was reaped.'''
    for _ in range(200):
        with open('/proc/sys/kernel/ns_last_pid', 'w') as file: file.write(str(pid - 1))
        child = spawner.spawn_owned_supervised(command)
        if child.pid == pid: return child
        child.wait(5)
        child.close()
    raise AssertionError('the number was not to be had')

spawner = Spawner()
first = spawner.spawn_owned_supervised(Command('true'))
first.close()
while spawner.exit_status(first.pid) is None: os.sched_yield()
second = under(first.pid, Command('sh', '-c', 'exit 7'))
assert spawner.exit_status(first.pid) is None, 'the status of one long gone'
"""


@pytest.mark.namespaces
@pytest.mark.parametrize("act", ["first.poll()", "first.close()", "del first; import gc; gc.collect()"])
def test_a_child_that_was_let_go_touches_nobody_who_has_its_number_now(act: str) -> None:
    run_in_namespaces(
        NUMBERS
        + f"""
ended(second.pid)
{act}
assert second.pid in spawner._held, 'forgotten for another'
assert second.poll() == ExitStatus(code=7), second.poll()
second.close()
spawner.close()
"""
    )


def test_a_child_that_was_let_go_still_tells_how_it_ended() -> None:
    with Spawner() as spawner:
        child = spawner.spawn_owned_supervised(Command("sh", "-c", "exit 7"))
        child.close()
        with_status(spawner, child.pid, ExitStatus(code=7))
        assert child.wait(WITHIN_S) == ExitStatus(code=7)
        assert child.poll() == ExitStatus(code=7)
        assert not child.is_running()


def test_waiting_for_a_child_that_was_let_go_ends_with_it() -> None:
    with Spawner() as spawner:
        child = spawner.spawn_owned_supervised(Command("sh", "-c", "exec sleep 0.2"))
        child.close()
        assert child.wait(WITHIN_S) == ExitStatus(code=0)


def test_a_closed_spawner_keeps_neither_a_thread_nor_a_descriptor() -> None:
    before = {thread.ident for thread in threading.enumerate()}
    spawner = Spawner()
    pid = spawner.spawn_supervised(Command("true"))
    with_status(spawner, pid, ExitStatus(code=0))
    spawner.close()
    for thread in threading.enumerate():
        if thread.ident not in before:
            thread.join(WITHIN_S)
            assert not thread.is_alive()


def test_dropped_children_that_are_left_are_reaped_and_then_the_thread_ends() -> None:
    before = {thread.ident for thread in threading.enumerate()}
    spawner = Spawner()
    child = spawner.spawn_owned_supervised(talker())
    pid, stdin = child.pid, child.stdin
    assert stdin is not None
    with load().pin(pid) as pinned:
        spawner.dropped(child)
        spawner.close(children="leave")
        child.close_stdin()
        wait_exited(pinned)
    with_status(spawner, pid, ExitStatus(code=0))
    for thread in threading.enumerate():
        if thread.ident not in before:
            thread.join(WITHIN_S)
            assert not thread.is_alive()
    child.close()


def test_closing_stops_what_an_exited_child_has_left_in_its_group() -> None:
    spawner = Spawner()
    script = "import os, signal; os.fork() or (os.write(1, b'R'), signal.pause())"
    child = spawner.spawn_owned_supervised(Command(sys.executable, "-c", script, stdout=Stdio.PIPE))
    assert child.stdout is not None
    assert child.stdout.read(1) == b"R"
    wait_exited(child.pinned)
    spawner.close(children="stop")
    assert child.stdout.readall() == b""
    assert child.poll() == ExitStatus(code=0)
    child.close()


def test_a_spawn_that_a_close_overtakes_leaves_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    from birthmark.children import spawning

    spawner = Spawner()
    real = launch.launch
    born: list[int] = []

    def slow(request: Launch) -> tuple[int, int | None]:
        pid, pidfd = real(request)
        born.append(pid)
        spawner.close()  # as another thread would, between the birth and its being written down
        return pid, pidfd

    monkeypatch.setattr(spawning, "launch", slow)
    with pytest.raises(SpawnerClosed):
        spawner.spawn_owned_supervised(talker())
    assert load().start_ticks_of(born[0]) is None


def test_a_requester_interrupted_after_the_birth_closes_no_descriptor_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from birthmark.children import spawning

    class Interrupted(dict):  # type: ignore[type-arg]
        def __setitem__(self, key: object, value: object) -> None:
            super().__setitem__(key, value)
            raise KeyboardInterrupt

    spawner = Spawner()
    closed: list[int | None] = []

    def ended(pid: int, pidfd: int | None) -> None:
        launch.end_unclaimed(pid, pidfd)
        closed.append(pidfd)

    monkeypatch.setattr(spawning, "end_unclaimed", ended)
    monkeypatch.setattr(spawner, "_held", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        spawner.spawn_owned_supervised(talker())
    assert len(closed) == 1
    # Whoever has the number of that descriptor next keeps it.
    reader, writer = os.pipe()
    gc.collect()
    os.write(writer, b"x")
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    os.close(writer)
    assert spawner.children() == []
    spawner.close()


def test_a_fork_while_a_lock_is_held_can_still_spawn_and_drop() -> None:
    out = run_python("""
import gc, threading
from birthmark import Command, Spawner, spawn_owned_supervised
from birthmark.children import spawning
spawner = Spawner()
child = spawner.spawn_owned_supervised(Command('sleep', '60'))
held, done = threading.Event(), threading.Event()

def hold():
    with spawner._lock, spawner._reaper._lock, child._lock, spawning._default_lock:
        held.set()
        done.wait(20)

thread = threading.Thread(target=hold)
thread.start()
held.wait(5)
pid = os.fork()
if not pid:
    signal.alarm(10)
    assert child.poll() is None
    del child
    gc.collect()
    assert spawner.children() == [] and spawner.exit_status(1) is None
    spawner.close()
    with spawn_owned_supervised(Command('true')) as other: assert other.wait(5).code == 0
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
done.set()
thread.join()
assert child.is_running()
spawner.close(children='stop')
child.close()
""")
    assert out == "0\n"


def test_a_status_can_be_asked_for_while_dropped_children_are_being_stopped() -> None:
    spawner = Spawner()
    deaf = (
        "import os, signal; signal.signal(15, signal.SIG_IGN); os.write(1, b'R'); os.close(1); signal.pause()"
    )
    child = spawner.spawn_owned_supervised(talker(deaf))
    assert child.stdout is not None
    assert child.stdout.read(1) == b"R"
    pid = child.pid
    child.close()
    with load().pin(pid) as pinned, audit() as records:
        closing = threading.Thread(target=lambda: spawner.close(children="stop"))
        closing.start()
        while not records:
            os.sched_yield()
        # It has been asked, and has five seconds: nobody else waits that long.
        assert spawner.exit_status(4_000_000) is None
        assert spawner.children() == [pid]
        assert closing.is_alive()
        load().deliver(pinned, signal.SIGKILL, Warrant(basis=Basis.CHILD, asked_by="a test"))
        closing.join(WITHIN_S)
    with_status(spawner, pid, ExitStatus(signal=signal.SIGKILL))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"user": -1}, "user"),
        ({"user": 2**32 - 1}, "user"),
        ({"user": 2**40}, "user"),
        ({"group": -1}, "group"),
        ({"extra_groups": [-1]}, "group"),
        ({"session": 7}, "session"),
        ({"limits": {1: (-5, 1)}}, "limit"),
    ],
)
def test_what_would_silently_change_nothing_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Command("true", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"user": 1.5},
        {"user": True},
        {"group": b"x"},
        {"extra_groups": "root"},
        {"session": "x"},
        {"limits": {1: 2}},
    ],
)
def test_what_is_of_the_wrong_type_is_a_type_error(options: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        Command("true", **options)  # type: ignore[arg-type]


def test_a_program_is_found_from_a_working_directory_that_is_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "tool").write_text("#!/bin/sh\npwd\n")
    (folder / "tool").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert output(Command("./tool", cwd="inner", stdout=Stdio.PIPE)) == f"{folder}\n".encode()
    assert (
        output(Command("tool", cwd="inner", env={"PATH": "."}, stdout=Stdio.PIPE)) == f"{folder}\n".encode()
    )


def test_our_own_working_directory_that_is_gone_is_a_failed_spawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with Spawner() as spawner, pytest.raises(SpawnFailed) as caught:
        spawner.spawn_owned_supervised(Command("./tool"))
    assert caught.value.errno == errno.ENOENT


def test_ids_that_are_none_mark_nothing() -> None:
    for options in ({"installation": "mine"}, {"birth": "x"}):
        command = Command("true")
        with pytest.raises(ValueError, match="id"):
            mark_child(command, ChildKind.MCP, "x", **options)  # type: ignore[arg-type]
        assert command.mark is None


def test_what_is_no_command_is_a_type_error() -> None:
    with Spawner() as spawner, pytest.raises(TypeError, match="Command"):
        spawner.spawn_owned_supervised("true")  # type: ignore[arg-type]


def test_a_wait_longer_than_a_month_is_a_wait() -> None:
    with Spawner() as spawner, spawner.spawn_owned_supervised(Command("true")) as child:
        assert child.wait(1e10) == ExitStatus(code=0)
