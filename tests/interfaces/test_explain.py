"""`explain`, on real processes and a real registry; run inside the test's process."""

from __future__ import annotations

import os
import sys

import pytest

from birthmark.children.command import new_birth
from birthmark.core.outcomes import ExitStatus
from birthmark.core.service import ServiceName
from birthmark.testing.puppet import puppet
from tests.interfaces.births import AT, house
from tests.interfaces.running import command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads marks from procfs")


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        ("0", "0 is no pid of a process: it names our own process group"),
        ("-1", "-1 is no pid of a process: it names a group, or everything"),
        ("2147483648", "2147483648 is no pid of a process: it is too big"),
        ("99999999999999999999", "99999999999999999999 is no pid of a process: it is too big"),
    ],
)
def test_a_number_that_no_process_can_have_is_a_mistake_of_usage(subject: str, why: str) -> None:
    assert command("explain", subject) == (
        2,
        "",
        f"birthmark: {why}; pids are 1 to 2147483647\n  `birthmark explain --help` shows how\n",
    )


def test_an_empty_name_is_a_mistake_of_usage() -> None:
    said = command("explain", "")
    assert (said.code, said.out) == (2, "")
    assert "the service's name is empty" in said.err


@pytest.mark.parametrize("subject", ["1_0", "１", " 1", "+1", "0x1", "--1"])
def test_what_only_looks_like_a_number_is_a_name(subject: str) -> None:
    said = command("explain", "--", subject)
    assert (said.code, said.out) == (4, "")
    assert said.err.startswith(f"birthmark: no service is called {subject!r}")


def test_a_service_that_nobody_wrote_down_is_unknown_and_those_there_are_are_named() -> None:
    with house() as home:
        home.know("time")
        assert command("explain", "tiem") == (
            4,
            "",
            "birthmark: no service is called 'tiem'; there are: time\n",
        )


def test_the_command_itself_is_a_stranger_that_it_never_signals() -> None:
    said = command("explain", "--json", str(os.getpid()))
    assert said.code == 5
    assert said.json["owner"] == "stranger"
    assert said.json["never_signalled"] == "it is this command itself"
    assert said.json["would_signal"] == []


def test_an_ancestor_is_named_as_one_that_is_never_signalled() -> None:
    assert command("explain", "--json", str(os.getppid())).json["never_signalled"] == (
        "it is an ancestor of this command"
    )


def test_a_process_that_has_gone_is_gone() -> None:
    with puppet() as child:
        pid = child.pid
    assert command("explain", str(pid)) == (
        3,
        f"process {pid}: gone\n  why       no process has that pid\n",
        "",
    )


def test_a_stranger_is_said_to_be_one_and_why() -> None:
    with puppet() as child:
        child.wait_ready()
        said = command("explain", str(child.pid))
    lines = said.out.splitlines()
    assert said.code == 5
    assert lines[0] == f"process {child.pid}: stranger"
    assert lines[2:] == [
        f"  parent    {os.getpid()}",
        "  why       its environment is readable and carries no mark of ours",
        "            it descends from no process of ours",
        "  a stop    would not touch it",
    ]


def test_a_leader_is_ours_with_its_proof_and_a_stop_would_signal_it() -> None:
    with house() as home, home.birth("time") as (child, birth):
        said = command("explain", str(child.pid))
        value = command("explain", "--json", str(child.pid)).json
    lines = said.out.splitlines()
    assert said.code == 0
    assert lines[0] == f"process {child.pid}: ours"
    assert lines[2:-1] == [
        f"  parent    {os.getpid()}",
        "  service   time (mcp)",
        f"  birth     {birth}",
        "  why       it is recorded as the leader of 'time'",
        "            its environment carries the mark of this birth",
    ]
    assert lines[-1].startswith(f"  a stop    would signal {child.pid} (leader)  ")
    assert value["found"] == "leader"
    assert value["proof"] == {
        "pid": child.pid,
        "verdict": "same",
        "evidence": [{"reason": "mark_of_this_birth", "expected": None, "found": None}],
    }


def test_a_service_is_explained_by_its_leader() -> None:
    with house() as home, home.birth("time") as (child, _):
        assert command("explain", "--json", "time").json["pid"] == child.pid


def test_a_service_is_not_explained_by_a_birth_from_elsewhere() -> None:
    with house() as home:
        home.know("time")
        with puppet() as other:
            other.wait_ready()
            home.record("time", new_birth(), other.pid, elsewhere=True)
            assert command("explain", "--json", "time").json["owner"] == "gone"
            with home.birth("time") as (child, _):
                assert command("explain", "--json", "time").json["pid"] == child.pid


def test_a_worker_that_left_the_group_is_found_by_its_mark_and_would_be_signalled() -> None:
    script = """
ear, mouth = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(mouth)
    tell(os.getpid())
    os.read(ear, 1)  # until the leader is gone
    os._exit(0)
os.wait()
obey()
"""
    with house() as home:
        birth = new_birth()
        home.know("time")
        with puppet(script, env=home.mark("time", birth)) as child:
            worker = child.hear_pid()
            child.ask()
            home.record("time", birth, child.pid)
            said = command("explain", "--json", str(worker))
    assert (said.code, said.json["owner"], said.json["found"]) == (0, "ours", "mark")
    would = said.json["would_signal"]
    assert isinstance(would, list)
    assert [(each["pid"], each["found"]) for each in would] == [(child.pid, "leader"), (worker, "mark")]


def test_a_child_that_dropped_the_mark_is_ours_by_descent() -> None:
    script = """
ear, mouth = os.pipe()
pid = os.fork()
if pid == 0:
    os.read(ear, 1)
    os.setsid()
    os.execve(sys.executable, [sys.executable, "-c", "import os, sys; os.write(1, b'R'); sys.stdin.read()"], {})
tell(pid)
os.write(mouth, b"!")
obey()
"""
    with house() as home:
        birth = new_birth()
        with puppet(script, env=home.mark("time", birth)) as child:
            worker = child.hear_pid()
            child.wait_ready()
            home.record("time", birth, child.pid)
            said = command("explain", "--json", str(worker))
    assert (said.code, said.json["owner"], said.json["found"]) == (0, "ours", "descendant")
    assert said.json["why"] == [f"it descends from process {child.pid}, the leader of 'time'"]


def test_a_recycled_pid_is_a_stranger_and_the_record_is_refuted() -> None:
    with house() as home, puppet() as child:
        child.wait_ready()
        birth = new_birth()
        identity = home.record("time", birth, child.pid)
        # The record of a process that started a tick earlier under the same number.
        home.registry._connection.execute(  # type: ignore[union-attr]
            "UPDATE births SET identity = replace(identity, ?, ?)",
            (f'"start_ticks":{identity.start_ticks}', f'"start_ticks":{identity.start_ticks - 1}'),
        )
        said = command("explain", "--json", str(child.pid))
    assert (said.code, said.json["owner"]) == (5, "stranger")
    why = said.json["why"]
    assert isinstance(why, list)
    assert why[2].startswith("'time' had that pid once, and this is not it: it started at another time")


def test_a_mark_of_another_installation_makes_a_stranger() -> None:
    with house() as home:
        env = home.mark("time", new_birth())
        env["BIRTHMARK_INSTALLATION"] = "f" * 32
        with puppet(env=env) as child:
            child.wait_ready()
            said = command("explain", "--json", str(child.pid))
    assert (said.code, said.json["owner"]) == (5, "stranger")
    assert said.json["why"] == [f"its mark names another installation ({'f' * 32})"]


def test_a_mark_of_ours_without_a_record_is_unknown_and_not_ours() -> None:
    with house() as home, puppet(env=home.mark("time", new_birth())) as child:
        child.wait_ready()
        said = command("explain", "--json", str(child.pid))
    assert (said.code, said.json["owner"], said.json["would_signal"]) == (4, "unknown", [])


def test_what_carries_the_mark_of_an_ended_birth_is_a_stray() -> None:
    with house() as home, home.birth("time") as (child, birth):
        home.registry.ended(birth, AT, epoch=home.epoch)
        said = command("explain", "--json", str(child.pid))
    assert (said.code, said.json["owner"]) == (4, "unknown")
    assert said.json["why"] == [
        "it is a stray: it carries the mark of a birth of 'time' recorded as ended",
        "`birthmark orphans --reap` ends it",
    ]


def test_a_known_service_that_does_not_run_says_how_it_ended() -> None:
    with house() as home:
        with home.birth("time") as (_, birth):
            pass
        home.registry.ended(birth, AT, epoch=home.epoch, status=ExitStatus(code=3), why="it left by itself")
        said = command("explain", "time")
        assert (said.code, said.out.splitlines()) == (
            3,
            [
                "service time: gone",
                "  why       it does not run",
                f"            its last birth, {birth}, is ended: exit code 3",
                "            the record says: it left by itself",
            ],
        )
        assert home.registry.births_of(ServiceName("time"))[0].birth == birth


def test_a_zombie_is_gone() -> None:
    with puppet("ready()") as child:
        child.wait_ready()
        child.wait_exited()
        said = command("explain", "--json", str(child.pid))
    assert (said.code, said.json["owner"]) == (3, "gone")


def test_looking_writes_nothing_into_the_registry_of_a_new_installation() -> None:
    from birthmark.children.installation import open_installation

    command("explain", str(os.getpid()))
    assert not open_installation().registry_path.exists()
