"""The original's outcome tables, case by case, and what they gained. Real processes, under asyncio and trio."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading

import anyio
import anyio.to_thread
import pytest

from birthmark import (
    ChildKind,
    Command,
    NotOurs,
    NotRunning,
    NotSignalable,
    ProcessLiveness,
    Reason,
    Session,
    Spawner,
    Stdio,
    Stopped,
    SubprocessLiveness,
    Termination,
    Verdict,
    is_running,
    is_zombie,
    live_pid_is_subprocess,
    mark_child,
    open_installation,
    owns,
    pids_listening_on,
    process_group,
    stop_owned,
    terminate_gracefully,
    terminate_group_gracefully,
)
from birthmark.children.proving import prove
from birthmark.core.identity import Identity
from birthmark.core.markers import mark_entries
from birthmark.core.service import BirthId, InstallationId, ServiceName
from birthmark.platforms import load
from birthmark.testing.puppet import Puppet, puppet, wait_exited

pytestmark = pytest.mark.anyio

HUGE = 2**31
GRACE_S = 5.0
SHORT_S = 0.2
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready(); obey()"
BIRTH = BirthId("0" * 31 + "1")


def marked(kind: ChildKind, service: str, installation: InstallationId | None = None) -> dict[str, str]:
    owner = installation or open_installation().id
    marks = mark_entries(kind=kind, service=ServiceName(service), installation=owner, birth=BIRTH)
    return {**marks, "PATH": os.environ["PATH"]}


# -- is_running ----------------------------------------------------------------


@pytest.mark.parametrize("pid", [0, -1, HUGE, 2**32, 4_000_000])
async def test_a_number_that_is_no_process_does_not_run(pid: int) -> None:
    assert not await is_running(pid)


async def test_we_ourselves_are_never_a_target() -> None:
    assert not await is_running(os.getpid())


@pytest.mark.parametrize("bad", [None, "1", 1.0, True])
async def test_a_pid_that_is_no_int_is_a_type_error(bad: object) -> None:
    with pytest.raises(TypeError, match="pid"):
        await is_running(bad)  # type: ignore[arg-type]


async def test_asking_whether_it_runs_never_steals_the_exit_status() -> None:
    with puppet("ready(); stay(); sys.exit(7)") as child:
        child.wait_ready()
        assert await is_running(child.pid)
        child.close_stdin()
        child.wait_exited()
        assert not await is_running(child.pid)
        assert is_zombie(child.pid)
        assert child.reap().code == 7
        assert not await is_running(child.pid)


async def test_a_stopped_process_runs() -> None:
    with puppet() as child:
        child.wait_ready()
        os.kill(child.pid, signal.SIGSTOP)
        assert await is_running(child.pid)
        os.kill(child.pid, signal.SIGCONT)
        child.ask()


async def test_a_leader_whose_main_thread_has_ended_runs_while_others_serve() -> None:
    script = """
import ctypes
threading.Thread(target=obey).start()
tell(0)
ctypes.CDLL(None).pthread_exit(None)
"""
    with puppet(script) as child:
        child.hear()
        child.ask()
        # The other thread answers; when the main thread is through with its exit, nobody tells us.
        for _ in range(1000):
            if state(child.pid) == "Z":
                break
            child.ask()
        assert state(child.pid) == "Z"
        assert await is_running(child.pid)
        assert not is_zombie(child.pid)
        assert await terminate_gracefully(child.pid, GRACE_S) is Termination.EXITED


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat", "rb") as file:
        text = file.read()
    return text[text.rindex(b")") + 2 :].split()[0].decode()


async def test_a_process_of_pid_1s_user_that_we_may_not_signal_runs() -> None:
    assert await is_running(1)


# -- owns ----------------------------------------------------------------------


async def test_a_marked_child_is_owned_as_its_kind_and_name_only() -> None:
    with puppet(env=marked(ChildKind.MCP, "time")) as child:
        child.wait_ready()
        assert await owns(child.pid, ChildKind.MCP, "time")
        assert not await owns(child.pid, ChildKind.MCP, "time-staging")
        assert not await owns(child.pid, ChildKind.MCP, "tim")
        assert not await owns(child.pid, ChildKind.AGENT, "time")
        assert not await owns(child.pid, ChildKind.API, "api")
        assert await SubprocessLiveness().owns(child.pid, ServiceName("time"))
        assert not await SubprocessLiveness().owns(child.pid, ServiceName("other"))


async def test_a_child_of_another_installation_is_not_owned() -> None:
    with puppet(env=marked(ChildKind.MCP, "time", InstallationId("f" * 32))) as child:
        child.wait_ready()
        assert not await owns(child.pid, ChildKind.MCP, "time")
        outcome = await stop_owned(child.pid, ChildKind.MCP, "time", GRACE_S)
        assert isinstance(outcome, NotOurs)
        assert outcome.proof.reason is Reason.MARK_OF_ANOTHER_INSTALLATION
        child.ask()


async def test_an_unmarked_process_is_not_owned_and_not_signalled() -> None:
    with puppet() as child:
        child.wait_ready()
        assert not await owns(child.pid, ChildKind.AGENT, "greeter")
        outcome = await stop_owned(child.pid, ChildKind.AGENT, "greeter", GRACE_S)
        assert isinstance(outcome, NotOurs)
        assert outcome.proof.reason is Reason.NO_MARK
        child.ask()


@pytest.mark.parametrize("pid", [0, -1, HUGE])
async def test_nobody_owns_a_number_that_is_no_process(pid: int) -> None:
    assert not await owns(pid, ChildKind.MCP, "time")
    assert await stop_owned(pid, ChildKind.MCP, "time", GRACE_S) == NotRunning(pid)


async def test_stopping_ourselves_is_not_running() -> None:
    assert await stop_owned(os.getpid(), ChildKind.MCP, "time", GRACE_S) == NotRunning(os.getpid())


@pytest.mark.parametrize("name", ["", "a=b", "a\0b", "a\nb", "\x7f"])
async def test_a_name_no_service_can_have_is_refused_by_every_question(name: str) -> None:
    with pytest.raises(ValueError, match="service name"):
        await owns(1, ChildKind.MCP, name)
    with pytest.raises(ValueError, match="service name"):
        await stop_owned(1, ChildKind.MCP, name, GRACE_S)


@pytest.mark.parametrize("grace", [-1, float("nan"), float("inf")])
async def test_a_grace_that_is_no_length_of_time_is_refused(grace: float) -> None:
    with pytest.raises(ValueError, match="grace period"):
        await terminate_gracefully(4_000_000, grace)
    with pytest.raises(TypeError, match="grace period"):
        await terminate_group_gracefully(4_000_000, "1")  # type: ignore[arg-type]


# -- process_group -------------------------------------------------------------


async def test_the_group_of_a_process_is_known_also_when_it_is_a_zombie() -> None:
    with puppet("ready()") as child:
        child.wait_exited()
        assert await process_group(child.pid) == child.pid


@pytest.mark.parametrize("pid", [0, -1, HUGE, 4_000_000])
async def test_a_number_that_is_no_process_has_no_group(pid: int) -> None:
    assert await process_group(pid) is None


async def test_our_own_group_is_not_told() -> None:
    assert await process_group(os.getpid()) is None


# -- terminate -----------------------------------------------------------------


async def test_a_child_that_honours_sigterm_has_exited() -> None:
    with puppet() as child:
        child.wait_ready()
        assert await terminate_gracefully(child.pid, GRACE_S) is Termination.EXITED
        child.wait_tree_gone()
        assert child.reap().signal == signal.SIGTERM


async def test_a_child_deaf_to_sigterm_is_killed_after_its_grace() -> None:
    with puppet(DEAF) as child:
        child.wait_ready()
        assert await terminate_gracefully(child.pid, SHORT_S) is Termination.KILLED
        assert child.reap().signal == signal.SIGKILL


async def test_a_grace_of_nothing_is_one_look_and_then_sigkill() -> None:
    with puppet(DEAF) as child:
        child.wait_ready()
        assert await terminate_gracefully(child.pid, 0) is Termination.KILLED


async def test_a_zombie_has_exited_already_and_no_grace_is_waited() -> None:
    with puppet("ready()") as child:
        child.wait_exited()
        with anyio.fail_after(5):
            assert await terminate_gracefully(child.pid, 3600) is Termination.ALREADY_EXITED
            assert await terminate_group_gracefully(child.pid, 3600) is Termination.ALREADY_EXITED


@pytest.mark.parametrize("pid", [0, -1, HUGE, 4_000_000])
async def test_terminating_a_number_that_is_no_process_signals_nothing(pid: int) -> None:
    assert await terminate_gracefully(pid, GRACE_S) is Termination.ALREADY_EXITED
    assert await terminate_group_gracefully(pid, GRACE_S) is Termination.ALREADY_EXITED


async def test_terminating_ourselves_signals_nothing() -> None:
    assert await terminate_gracefully(os.getpid(), GRACE_S) is Termination.ALREADY_EXITED


async def test_an_ancestor_is_never_signalled_whoever_vouches_for_it() -> None:
    # Under an init of its own, the suite's parent is pid 1, which is refused before its descent is looked at.
    with pytest.raises(NotSignalable, match="ancestor|pid 1"):
        await terminate_gracefully(os.getppid(), GRACE_S)


async def test_a_reaped_pid_has_exited_already() -> None:
    with puppet("ready()") as child:
        pid = child.pid
        child.reap()
    assert await terminate_gracefully(pid, GRACE_S) is Termination.ALREADY_EXITED


async def test_another_users_process_is_an_error_and_gets_nothing(as_root: None) -> None:
    code = """
import os, sys, anyio
os.setgroups([]); os.setgid(65534); os.setuid(65534)
from birthmark import terminate_gracefully, NotPermitted
async def main():
    try: await terminate_gracefully(int(sys.argv[1]), 1)
    except NotPermitted as err: print(err, end="")
anyio.run(main)
"""
    with puppet() as child:
        child.wait_ready()
        done = await anyio.to_thread.run_sync(run_python, _PRELOAD + code, str(child.pid))
        assert f"not permitted to send SIGTERM to process {child.pid}" in done.stdout, done.stderr
        child.ask()


def run_python(code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=30, check=False
    )


# Everything is imported before the rights are given up: the interpreter may live in a closed folder.
_PRELOAD = """
import anyio, anyio.to_thread, asyncio, anyio._backends._asyncio
import birthmark.children.control, birthmark.platforms.linux, birthmark.platforms.launch
"""


async def test_a_stopped_process_gets_its_chance_to_leave() -> None:
    with puppet("signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); ready(); obey()") as child:
        child.wait_ready()
        os.kill(child.pid, signal.SIGSTOP)
        assert await terminate_gracefully(child.pid, GRACE_S) is Termination.EXITED
        assert child.reap().code == 3


# -- groups --------------------------------------------------------------------


async def test_a_group_stop_waits_for_every_member() -> None:
    script = """
if os.fork() == 0:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(sys.stdin.readline() and 0))
ready()
signal.pause()
"""
    with puppet(script) as child:
        child.wait_ready()
        child.wait_ready()

        async def release() -> None:
            # The leader dies of TERM at once; the member only when it is told to.
            await anyio.to_thread.run_sync(child.wait_exited)
            child.say("go")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(release)
            assert await terminate_group_gracefully(child.pid, GRACE_S) is Termination.EXITED
        child.wait_tree_gone()


async def test_a_member_deaf_to_sigterm_is_killed_although_the_leader_left() -> None:
    script = "os.fork() or signal.signal(signal.SIGTERM, signal.SIG_IGN); ready(); signal.pause()"
    with puppet(script) as child:
        child.wait_ready()
        child.wait_ready()
        assert await terminate_group_gracefully(child.pid, SHORT_S) is Termination.KILLED
        child.wait_tree_gone()


async def test_a_dead_leader_with_a_living_member_is_stopped_not_skipped() -> None:
    with puppet("os.fork() or (ready(), signal.pause())") as child:
        child.wait_ready()
        child.wait_exited()
        assert await terminate_group_gracefully(child.pid, GRACE_S) is Termination.EXITED
        child.wait_tree_gone()


async def test_a_process_that_leads_no_group_is_stopped_alone_and_that_is_said() -> None:
    with puppet("pid = os.fork()\nif pid == 0: signal.pause()\ntell(pid); stay()") as parent:
        member = parent.hear_pid()
        assert await process_group(member) == parent.pid
        assert await terminate_group_gracefully(member, GRACE_S) is Termination.EXITED
        assert await is_running(parent.pid)


async def test_stop_owned_says_when_the_process_led_no_group() -> None:
    with Spawner() as spawner:
        command = Command(
            sys.executable, "-c", _WIPED, stdin=Stdio.PIPE, stdout=Stdio.PIPE, session=Session.INHERIT
        )
        child = spawner.spawn_owned_supervised(mark_child(command, ChildKind.MCP, "alone"))
        assert child.stdout is not None
        assert child.stdout.read(1) == b"R"
        outcome = await stop_owned(child.pid, ChildKind.MCP, "alone", GRACE_S)
        assert isinstance(outcome, Stopped)
        assert outcome.receipt is not None
        assert outcome.receipt.notes == ["not a group leader: only the process itself was stopped"]
        child.close()


async def test_stop_owned_stops_the_whole_group_and_says_what_it_did_to_whom() -> None:
    with puppet("os.fork(); ready(); signal.pause()", env=marked(ChildKind.AGENT, "greeter")) as child:
        child.wait_ready()
        child.wait_ready()
        outcome = await stop_owned(child.pid, ChildKind.AGENT, "greeter", GRACE_S)
        assert isinstance(outcome, Stopped)
        assert outcome.termination is Termination.EXITED
        assert outcome.receipt is not None
        assert len(outcome.receipt.members) == 2
        assert all([name for name, _ in m.sent] == ["SIGTERM"] for m in outcome.receipt.members)
        child.wait_tree_gone()


async def test_stop_owned_stops_what_a_dead_leader_left_in_its_group_when_a_member_carries_the_mark() -> None:
    with puppet("os.fork() or (ready(), signal.pause())", env=marked(ChildKind.MCP, "time")) as child:
        child.wait_ready()
        child.wait_exited()
        assert await stop_owned(child.pid, ChildKind.MCP, "other", GRACE_S) == NotRunning(child.pid)
        assert await stop_owned(child.pid, ChildKind.AGENT, "time", GRACE_S) == NotRunning(child.pid)
        outcome = await stop_owned(child.pid, ChildKind.MCP, "time", GRACE_S)
        assert isinstance(outcome, Stopped)
        assert outcome.termination is Termination.EXITED
        child.wait_tree_gone()
        assert await stop_owned(child.pid, ChildKind.MCP, "time", GRACE_S) == NotRunning(child.pid)


async def test_stop_owned_with_the_identity_stops_what_a_dead_leader_left_without_any_mark() -> None:
    # By its inode, or, where there is none, by its tag.
    script = """
import os, signal, sys
if os.fork() == 0:
    os.execve(sys.executable, [sys.executable, "-I", "-c", "import os, signal; os.write(1, b'R'); signal.pause()"], {})
sys.stdin.read()
"""
    with Spawner() as spawner:
        command = Command(sys.executable, "-c", script, stdin=Stdio.PIPE, stdout=Stdio.PIPE)
        child = spawner.spawn_owned_supervised(mark_child(command, ChildKind.MCP, "time"))
        assert child.stdout is not None
        assert child.stdout.read(1) == b"R"
        identity = child.identity
        child.close_stdin()
        wait_exited(child.pinned)
        assert await stop_owned(child.pid, ChildKind.MCP, "time", GRACE_S) == NotRunning(child.pid)
        outcome = await stop_owned(child.pid, ChildKind.MCP, "time", GRACE_S, identity=identity)
        assert isinstance(outcome, Stopped)
        assert outcome.termination is Termination.EXITED
        assert child.stdout.readall() == b""
        assert child.wait(5).code == 0
        child.close()


async def test_what_a_stranger_left_behind_is_not_stopped() -> None:
    with puppet("os.fork() or (ready(), obey())") as child:
        child.wait_ready()
        child.wait_exited()
        assert await stop_owned(child.pid, ChildKind.MCP, "time", GRACE_S) == NotRunning(child.pid)
        child.ask()


async def test_an_ancestor_that_is_ours_is_not_stopped_from_within_nor_is_its_group() -> None:
    code = """
import os, sys, anyio
from birthmark import ChildKind, NotSignalable, stop_owned
async def main():
    try: await stop_owned(os.getppid(), ChildKind.AGENT, "greeter", 1, installation=os.environ["BIRTHMARK_INSTALLATION"])
    except NotSignalable as err: print("refused", flush=True)
anyio.run(main)
"""
    script = f"""
import subprocess
if os.fork() == 0: obey()
done = subprocess.run([sys.executable, "-c", {code!r}], capture_output=True, text=True, env=dict(os.environ))
tell(done.stdout + done.stderr)
signal.pause()
"""
    with puppet(script, env=marked(ChildKind.AGENT, "greeter")) as agent:
        assert agent.hear(within_s=20) == "refused\n"
        agent.ask()  # another member of the group: it was not signalled either


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"installation": "mine"}, ValueError),
        ({"installation": 7}, TypeError),
        ({"identity": {"pid": 1}}, TypeError),
    ],
)
async def test_an_installation_or_an_identity_that_is_none_is_refused(
    options: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await owns(4_000_000, ChildKind.MCP, "time", **options)  # type: ignore[arg-type]
    with pytest.raises(error):
        await stop_owned(4_000_000, ChildKind.MCP, "time", GRACE_S, **options)  # type: ignore[arg-type]


async def test_whoever_can_be_asked_is_a_process_liveness() -> None:
    class Always:
        async def owns(self, pid: int, service: ServiceName) -> bool:
            return True

    liveness: ProcessLiveness = Always()
    assert isinstance(liveness, ProcessLiveness)
    assert isinstance(SubprocessLiveness(), ProcessLiveness)
    assert not isinstance(object(), ProcessLiveness)


async def test_a_pid_that_exits_between_two_looks_is_not_running_rather_than_not_ours() -> None:
    with puppet("ready(); stay()", env=marked(ChildKind.MCP, "time")) as child:
        child.wait_ready()
        child.close_stdin()
        child.wait_exited()
        assert await stop_owned(child.pid, ChildKind.MCP, "time", GRACE_S) == NotRunning(child.pid)


# -- identity ------------------------------------------------------------------


async def test_with_its_identity_a_child_that_wiped_its_environment_is_stopped() -> None:
    with Spawner() as spawner:
        command = Command("env", "-i", sys.executable, "-c", _WIPED, stdin=Stdio.PIPE, stdout=Stdio.PIPE)
        child = spawner.spawn_owned_supervised(mark_child(command, ChildKind.MCP, "wiped"))
        assert child.stdout is not None
        assert child.stdout.read(1) == b"R"
        assert not await owns(child.pid, ChildKind.MCP, "wiped")
        assert await owns(child.pid, ChildKind.MCP, "wiped", identity=child.identity)
        outcome = await stop_owned(child.pid, ChildKind.MCP, "wiped", GRACE_S, identity=child.identity)
        assert isinstance(outcome, Stopped)
        assert child.wait(5).signal == signal.SIGTERM
        child.close()


_WIPED = "import os, sys; os.write(1, b'R'); sys.stdin.read()"


@pytest.mark.parametrize("here", ["another host", "another pid namespace"])
async def test_a_record_from_elsewhere_is_never_called_not_running(here: str) -> None:
    with puppet("ready()") as child:
        pid = child.pid
        child.reap()
    facts = load().facts()
    identity = Identity(
        host="elsewhere" if here == "another host" else facts.host,
        boot=facts.boot,
        pid_namespace=facts.pid_namespace + (here == "another pid namespace"),
        pid=pid,
        start_ticks=1,
        birth=BIRTH,
        installation=open_installation().id,
        kind=ChildKind.MCP,
        service=ServiceName("time"),
    )
    outcome = await stop_owned(pid, ChildKind.MCP, "time", GRACE_S, identity=identity)
    assert isinstance(outcome, NotOurs)
    assert outcome.proof.verdict is Verdict.DIFFERENT
    assert here in str(outcome.proof)
    assert prove(identity) == outcome.proof


async def test_an_identity_of_another_service_makes_nothing_ours() -> None:
    with Spawner() as spawner:
        command = Command(sys.executable, "-c", _WIPED, stdin=Stdio.PIPE, stdout=Stdio.PIPE)
        child = spawner.spawn_owned_supervised(mark_child(command, ChildKind.MCP, "one"))
        assert child.stdout is not None
        assert child.stdout.read(1) == b"R"
        outcome = await stop_owned(child.pid, ChildKind.MCP, "two", GRACE_S, identity=child.identity)
        assert isinstance(outcome, NotOurs)
        assert outcome.proof.verdict is Verdict.DIFFERENT
        assert child.is_running()
        child.close()


# -- cancellation, ports, the rest ----------------------------------------------


async def test_a_cancelled_stop_finishes_its_escalation() -> None:
    with puppet(DEAF) as child:
        child.wait_ready()
        with anyio.move_on_after(0.05) as scope:
            await terminate_gracefully(child.pid, 0.3)
        assert scope.cancelled_caught
        await anyio.to_thread.run_sync(child.wait_exited)
        assert child.reap().signal == signal.SIGKILL
        for thread in threading.enumerate():
            if thread.name == "birthmark-stop":
                thread.join(5)


async def test_our_own_listener_is_found_and_a_freed_port_is_nobodys() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert await pids_listening_on(port) == [os.getpid()]
    assert await pids_listening_on(port) == []
    assert await pids_listening_on(0) == []


@pytest.mark.parametrize("port", [-1, 65536, 70000])
async def test_a_port_that_does_not_exist_is_a_value_error(port: int) -> None:
    with pytest.raises(ValueError, match="port"):
        await pids_listening_on(port)


def test_the_pure_rule_of_the_mark_asks_neither_for_life_nor_for_another_process() -> None:
    assert not live_pid_is_subprocess(os.getpid(), "BIRTHMARK_MCP", "time")
    with puppet(env=marked(ChildKind.MCP, "time")) as child:
        child.wait_ready()
        assert live_pid_is_subprocess(child.pid, "BIRTHMARK_MCP", "time")
        assert not live_pid_is_subprocess(child.pid, "BIRTHMARK_AGENT", "time")
        assert not live_pid_is_subprocess(child.pid, "BIRTHMARK_MCP", "other")
    assert not live_pid_is_subprocess(0, "BIRTHMARK_MCP", "time")


async def test_two_stops_of_one_process_at_once_both_end_and_agree() -> None:
    with puppet(DEAF) as child:
        child.wait_ready()
        results: list[Termination] = []

        async def stop(target: Puppet) -> None:
            results.append(await terminate_gracefully(target.pid, SHORT_S))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(stop, child)
        assert set(results) <= {Termination.KILLED, Termination.EXITED}
        assert Termination.KILLED in results
