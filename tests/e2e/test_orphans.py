"""`orphans` on real processes: what `run` leaves when it is killed, and what only looks like ours."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from birthmark.children.command import new_birth
from birthmark.children.installation import open_installation
from birthmark.core.markers import TAG_RESOURCE, ChildKind, mark_entries, scrub, tag_of
from birthmark.core.outcomes import ExitStatus
from birthmark.core.service import BirthId, InstallationId, ServiceName, installation_id
from birthmark.errors import ProcessGone
from birthmark.keeper.papers import Papers
from birthmark.keeper.reading import read_shelf
from birthmark.platforms import load
from birthmark.registry.sqlite import SqliteRegistry
from birthmark.testing import Puppet, puppet, wait_exited
from tests.e2e.fronts import front, pinned, send
from tests.interfaces.births import AT, house
from tests.interfaces.running import Said, command, process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="marks are read in Linux's procfs")

LEAVES_ONE = """\
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    tell(os.getpid())
    while True: signal.pause()
os.wait()
stay()
"""
"""Script of a command under `run`: a double-forked daemon in a session of its own tells its pid."""

LEAVES_ONE_BARE = LEAVES_ONE.replace(
    "    tell(os.getpid())\n    while True: signal.pause()\n",
    "    tell(os.getpid())\n"
    "    os.execve(sys.executable, [sys.executable, '-S', '-c', 'import signal\\nwhile True: signal.pause()'], {})\n",
)
"""The same, and the daemon clears its environment, so that only the tag is left."""


def proven(said: Said) -> list[tuple[str, list[tuple[int, str]]]]:
    """Return what is listed as proven: each birth's service, and its processes with how they were found."""
    births = said.json["proven"]
    assert isinstance(births, list)
    return [
        (birth["service"], [(member["pid"], member["found"]) for member in birth["members"]])
        for birth in births
    ]


def listed(said: Said, level: str) -> list[int]:
    """Return the pids listed as *probably* or *unknown*."""
    orphans = said.json[level]
    assert isinstance(orphans, list)
    return [orphan["pid"] for orphan in orphans]


def heard(child: Puppet) -> tuple[object, str]:
    """Return the exit code and the words that a puppet tells of the command it ran."""
    told = child.hear(within_s=30)
    assert isinstance(told, list)
    return told[0], str(told[1])


def marks(birth: BirthId, installation: InstallationId | None = None) -> dict[str, str]:
    """Return an environment with the mark of a birth."""
    ours = open_installation().id if installation is None else installation
    entries = mark_entries(kind=ChildKind.MCP, service=ServiceName("forged"), installation=ours, birth=birth)
    return {**entries, **scrub(dict(os.environ))}


@contextmanager
def left_by_a_killed_run(script: str = LEAVES_ONE) -> Iterator[int]:
    """Kill `run` with SIGKILL, and its command with it; yield the pid of the daemon that is left."""
    with front(script, "--name", "time") as child:
        daemon = child.hear_pid()
        with pinned(daemon):
            send(child, signal.SIGKILL)
            child.wait_exited()
            _wait_for_leaders_end()
            yield daemon


def _wait_for_leaders_end() -> None:
    (papers,) = read_shelf(open_installation().births).papers
    assert papers.identity is not None
    try:
        with load().pin(papers.identity.pid) as leader:
            wait_exited(leader)
    except ProcessGone:
        pass


def test_nothing_is_an_orphan_where_nothing_ever_ran() -> None:
    assert command("orphans") == (0, "no orphans\n", "")
    assert command("orphans", "--reap") == (0, "no orphans\n", "")
    assert command("orphans", "--json").json == {
        "proven": [],
        "probably": [],
        "unknown": [],
        "unreadable": [],
    }


@pytest.mark.parametrize(("script", "found"), [(LEAVES_ONE, "mark"), (LEAVES_ONE_BARE, "tag")])
def test_what_a_killed_run_leaves_is_proven_ours_and_reap_ends_it(script: str, found: str) -> None:
    with left_by_a_killed_run(script) as daemon:
        if found == "tag":
            with load().pin(daemon) as waiting:
                _wait_for_exec(waiting.pid)
        before = command("orphans", "--json")
        assert (before.code, proven(before)) == (0, [("time", [(daemon, found)])])
        assert command("orphans", "--json", "--reap", "--dry-run").json == before.json
        assert command("explain", str(daemon)).code == 0
        with load().pin(daemon) as waiting:
            said = command("orphans", "--reap")
            wait_exited(waiting)
        assert said.code == 0
        assert said.out.startswith("time: exited in ")
        assert f"  {daemon}  {found}  SIGTERM at" in said.out
        assert said.err == "ending 1 process(es) of 1 birth(s)\n"
        (papers,) = read_shelf(open_installation().births).papers
        assert (papers.why, papers.exit, papers.survivors) == (
            "ended by `birthmark orphans --reap`",
            ExitStatus(),
            (),
        )
    assert command("orphans").out == "no orphans\n"


def _wait_for_exec(pid: int) -> None:
    for _ in range(500):
        if Path(f"/proc/{pid}/environ").read_bytes() == b"":
            return
        signal.sigtimedwait([], 0.01)
    raise TimeoutError("it never cleared its environment")


def test_what_a_living_run_has_started_is_no_orphan() -> None:
    with front(LEAVES_ONE, "--name", "time") as child:
        daemon = child.hear_pid()
        with pinned(daemon) as there:
            assert command("orphans", "--reap").out == "no orphans\n"
            assert not load().exited(there)
            child.close_stdin()
            child.wait_tree_gone()


def test_what_survived_the_end_of_its_birth_is_proven_ours() -> None:
    installation = open_installation()
    birth = new_birth()
    papers = Papers(installation.births, birth)
    papers.intend(
        installation=installation.id, kind=ChildKind.MCP, service=ServiceName("time"), program="p", by="run"
    )
    papers.ended(ExitStatus(code=0), why="the command ended", survivors=[4711])
    with puppet(env=marks(birth)) as child:
        child.wait_ready()
        assert proven(command("orphans", "--json")) == [("time", [(child.pid, "mark")])]
        assert "it has ended, and this escaped from it" in command("orphans").out
        explained = command("explain", "--json", str(child.pid))
        assert (explained.code, explained.json["service"]) == (4, "time")
        assert "`birthmark orphans --reap` ends it" in explained.out
        assert command("orphans", "--reap").code == 0
        child.wait_exited()


def test_a_mark_of_ours_on_a_birth_that_nobody_recorded_is_listed_and_left_alone() -> None:
    with puppet(env=marks(new_birth())) as child:
        child.wait_ready()
        said = command("orphans", "--json", "--reap")
        assert (said.code, proven(said), listed(said, "probably")) == (0, [], [child.pid])
        child.ask()
        words = command("orphans").out
        assert "probably ours: listed only" in words
        assert "it carries our mark, of a birth of 'forged' that nobody recorded" in words
        assert f"its parent is process {os.getpid()}" in words


def test_the_mark_of_another_installation_is_not_shown() -> None:
    with puppet(env=marks(new_birth(), installation_id("f" * 32))) as child:
        child.wait_ready()
        assert command("orphans", "--reap").out == "no orphans\n"
        child.ask()


def test_the_tag_of_a_birth_that_nobody_recorded_is_unknown_and_left_alone() -> None:
    hard = resource.getrlimit(TAG_RESOURCE)[1]
    tagged = f"import resource; resource.setrlimit({TAG_RESOURCE}, ({tag_of(new_birth())}, {hard}))\n"
    with puppet(tagged + "ready(); obey()") as child:
        child.wait_ready()
        said = command("orphans", "--json", "--reap")
        assert (said.code, proven(said), listed(said, "unknown")) == (0, [], [child.pid])
        child.ask()


def test_what_a_living_supervisor_started_is_no_orphan_and_is_one_once_it_is_gone() -> None:
    with house() as home, home.birth("time") as (child, _):
        assert command("orphans", "--reap").out == "no orphans\n"
        child.ask()
        home.registry.leave(home.epoch)
        assert proven(command("orphans", "--json")) == [("time", [(child.pid, "leader")])]
        said = command("orphans", "--reap")
        child.wait_exited()
        assert (said.code, said.out.splitlines()[0][:13]) == (0, "time: exited ")
        sent = [
            line.entry for line in home.registry.audit() if line.entry.get("asked_by") == "orphans --reap"
        ]
        assert [(entry["pid"], entry["signal"]) for entry in sent] == [(child.pid, "SIGTERM")]


def test_what_escaped_from_a_birth_that_the_registry_knows_to_be_over_is_proven_ours() -> None:
    with house() as home:
        birth = new_birth()
        home.registry.intend(birth, ServiceName("time"), ChildKind.MCP, AT, epoch=home.epoch)
        home.registry.ended(birth, AT, epoch=home.epoch, lost=True)
        with puppet(env=home.mark("time", birth)) as child:
            child.wait_ready()
            assert proven(command("orphans", "--json")) == [("time", [(child.pid, "mark")])]


def test_an_ancestor_of_the_command_is_named_and_never_signalled() -> None:
    birth = new_birth()
    with house() as home:
        home.registry.intend(birth, ServiceName("time"), ChildKind.MCP, AT, epoch=home.epoch)
        home.registry.ended(birth, AT, epoch=home.epoch)
    script = """\
import subprocess
done = subprocess.run([sys.executable, "-m", "birthmark", "orphans", *sys.argv[1:]], capture_output=True, text=True)
tell([done.returncode, done.stdout + done.stderr])
"""
    with puppet(script, env=marks(birth) | {"BIRTHMARK_HOME": os.environ["BIRTHMARK_HOME"]}) as child:
        code, words = heard(child)
        assert code == 0
        assert f"{child.pid}  mark" in words
        assert "[never signalled from here: it is an ancestor of this command]" in words
    with puppet(
        script, env=marks(birth) | {"BIRTHMARK_HOME": os.environ["BIRTHMARK_HOME"]}, argv=["--reap"]
    ) as child:
        code, words = heard(child)
        assert code == 6
        assert f"{child.pid}  mark  nothing sent: still alive" in words


@pytest.mark.parametrize("content", [b"", b'{"version": 1, "bir', b'{"version": 99}'])
def test_a_paper_that_cannot_be_read_is_named_and_its_birth_is_unknown(content: bytes) -> None:
    with left_by_a_killed_run() as daemon:
        (papers,) = read_shelf(open_installation().births).papers
        intent = papers.folder / "intent.json"
        intent.write_bytes(content)
        said = command("orphans", "--json", "--reap")
        assert (said.code, proven(said), listed(said, "unknown")) == (4, [], [daemon])
        assert f"a paper cannot be read, and stays where it is: {intent}: " in said.err
        with load().pin(daemon) as there:
            assert not load().exited(there)
        assert intent.read_bytes() == content


def test_a_number_that_somebody_else_has_now_is_not_taken_for_the_front() -> None:
    with left_by_a_killed_run() as daemon, puppet() as other:
        other.wait_ready()
        (papers,) = read_shelf(open_installation().births).papers
        text = (papers.folder / "intent.json").read_text()
        # As if the killed front's number had gone to the next process that was started.
        recycled = text.replace(f'"pid": {papers.by_pid},', f'"pid": {other.pid},')
        assert recycled != text
        (papers.folder / "intent.json").write_text(recycled)
        assert proven(command("orphans", "--json")) == [("time", [(daemon, "mark")])]


def test_a_front_in_another_pid_namespace_leaves_its_birth_unknown() -> None:
    with left_by_a_killed_run() as daemon:
        (papers,) = read_shelf(open_installation().births).papers
        intent = papers.folder / "intent.json"
        here = load().facts().pid_namespace
        intent.write_text(intent.read_text().replace(f'"pid_namespace": {here}', '"pid_namespace": 1'))
        said = command("orphans", "--json", "--reap")
        assert (proven(said), listed(said, "unknown")) == ([], [daemon])


def test_a_birth_of_which_nothing_is_left_is_over_once_reap_has_looked() -> None:
    with front("tell(os.getpid()); stay()", "--name", "time") as child:
        leader = child.hear_pid()
        with pinned(leader) as held:
            send(child, signal.SIGKILL)
            wait_exited(held)
            child.wait_exited()
        assert command("orphans").out == "no orphans\n"
        (papers,) = read_shelf(open_installation().births).papers
        assert papers.ended_at is None
        assert command("orphans", "--reap").out == "no orphans\n"
        (papers,) = read_shelf(open_installation().births).papers
        assert papers.why == "nothing was left of it when `birthmark orphans` looked"


def test_it_works_as_a_process_of_its_own_and_writes_nothing_into_a_registry_that_is_not_there() -> None:
    with left_by_a_killed_run() as daemon:
        said = process("orphans", "--reap", "--json")
        assert (said.code, proven(said)) == (0, [("time", [(daemon, "mark")])])
        receipts = said.json["receipts"]
        assert isinstance(receipts, list)
        assert [member["end"] for member in receipts[0]["members"]] == ["exited"]
    assert not open_installation().registry_path.exists()


def test_papers_that_were_copied_with_another_installations_folder_are_not_ours() -> None:
    with left_by_a_killed_run() as daemon:
        home = open_installation().home
        copy = home.with_name(home.name + "c")
        os.mkdir(copy, 0o700)
        shutil.copytree(home, copy, dirs_exist_ok=True)
        said = process("orphans", "--json", "--reap", environ={"BIRTHMARK_HOME": str(copy)})
        assert proven(said) == []
        with load().pin(daemon) as there:
            assert not load().exited(there)


def test_a_registry_that_cannot_be_read_is_an_error_and_nothing_is_signalled() -> None:
    with left_by_a_killed_run() as daemon:
        installation = open_installation()
        SqliteRegistry(installation.registry_path, installation.id).close()
        installation.registry_path.write_bytes(
            b"no database at all, and long enough to be taken for one" * 100
        )
        said = command("orphans", "--reap")
        assert said.code == 1
        with load().pin(daemon) as there:
            assert not load().exited(there)
