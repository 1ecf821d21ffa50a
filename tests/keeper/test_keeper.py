"""What a keeper promises, each with a real nursery, a real keeper and real children."""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from birthmark.children.command import new_birth
from birthmark.children.proving import find_carriers, prove
from birthmark.core.identity import Verdict
from birthmark.core.outcomes import Basis, ExitStatus, Warrant
from birthmark.core.policies import DeathPolicy, StopPolicy
from birthmark.errors import ProcessGone, WorkerLost
from birthmark.keeper import owner, protocol
from birthmark.keeper.owner import Kept, exit_status_of
from birthmark.keeper.protocol import Ended, Exited, Refused, Stop, Stopping, Superseded, Survived
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned
from birthmark.platforms.launch import LaunchFailed, Step
from tests.keeper.kept import Yard, until, yard
from tests.keeper.stage import kill, pin, stage, wait_gone

QUICK = StopPolicy(term_grace_s=0.2, settle_s=5.0)
PATIENT = StopPolicy(term_grace_s=600.0)


@pytest.fixture
def home(birthmark_home: Path) -> Iterator[Yard]:
    with yard(birthmark_home) as found:
        yield found


def paper(home: Yard, kept: Kept, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        (home.installation.births / kept.birth / f"{name}.json").read_text()
    )
    return found


def ended(word: object) -> Ended:
    assert isinstance(word, Ended), word
    return word


# -- birth ----------------------------------------------------------------------


def test_who_was_born_is_told_proven_written_down_and_held_by_its_pidfd(home: Yard) -> None:
    kept, line = home.bear("say(os.getppid()); stay()")
    assert line.hear() == kept.keeper_identity.pid, "the keeper is its parent"
    assert kept.proven == "same"
    assert prove(kept.identity).verdict is Verdict.SAME
    assert kept.child.fd is not None
    assert kept.identity.inode in (None, os.fstat(kept.child.fd).st_ino)
    written = paper(home, kept, "identity")
    assert written["identity"] == kept.identity.to_dict()
    assert written["keeper"] == kept.keeper_identity.to_dict()
    assert paper(home, kept, "intent")["by"] == "up"


def test_nursery_and_keeper_are_what_they_must_be(home: Yard) -> None:
    kept, _ = home.bear("stay()")
    keeper, nursery, child = kept.keeper_identity.pid, home.nursery.pid, kept.identity.pid
    platform = load()
    assert [platform.parent_of(child), platform.parent_of(keeper)] == [keeper, nursery]
    assert platform.session_of(nursery) == nursery
    assert platform.session_of(keeper) == nursery, "no terminal's signal reaches a keeper"
    assert platform.session_of(child) == child


def test_a_child_gets_the_descriptors_that_were_declared_and_no_other(home: Yard) -> None:
    _, line = home.bear("say(sorted(map(int, os.listdir('/proc/self/fd')))); stay()")
    assert line.hear() == [0, 1, 2, 3], "3 is the listing's own"


def test_a_keeper_holds_no_socket_but_its_own_and_none_of_its_childs_streams(home: Yard) -> None:
    first, line = home.bear("stay()")
    second, _ = home.bear("stay()")
    assert sockets(first.keeper_identity.pid).isdisjoint(sockets(second.keeper_identity.pid))
    assert sockets(second.keeper_identity.pid).isdisjoint(sockets(home.nursery.pid))
    pipe = os.fstat(line.reading).st_ino
    for pid in (first.keeper_identity.pid, second.keeper_identity.pid, home.nursery.pid):
        assert f"pipe:[{pipe}]" not in open_files(pid)


def open_files(pid: int) -> set[str]:
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            continue
    return found


def sockets(pid: int) -> set[str]:
    return {name for name in open_files(pid) if name.startswith("socket:")}


def test_a_program_that_cannot_be_started_leaves_nothing_but_papers_that_say_so(home: Yard) -> None:
    birth = new_birth()
    with pytest.raises(LaunchFailed) as failure:
        home.bear("", words=("/no/such/program",), birth=birth)
    assert (failure.value.errno, failure.value.step) == (errno.ENOENT, Step.EXEC)
    record = json.loads((home.installation.births / birth / "exit.json").read_text())
    assert record["born"] is False
    until(lambda: load().children_of(home.nursery.pid) == [], "rid of the keeper")
    assert os.listdir(home.installation.run) == ["nursery.log"]


def test_a_birth_has_papers_once(home: Yard) -> None:
    kept, _ = home.bear("stay()")
    with pytest.raises(FileExistsError):
        home.bear("stay()", birth=kept.birth)


def test_an_environment_larger_than_a_packet_reaches_the_child(
    home: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        monkeypatch.setenv(f"BIG_{number}", "x" * 100_000)
    _, line = home.bear("say(sum(len(os.environ[f'BIG_{n}']) for n in range(4))); stay()")
    assert line.hear() == 400_000


def test_the_child_starts_in_our_working_directory(
    home: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, line = home.bear("say(os.getcwd())")
    assert line.hear() == str(tmp_path)


def test_a_birth_nobody_waits_for_any_longer_is_ended_whatever_its_death_policy(home: Yard) -> None:
    """Its keeper is stopped before it can say that it gave birth, so that its owner loses patience."""
    birth = new_birth()
    watched = pin(home.nursery.pid)
    assert watched is not None
    with watched:
        stop_and_go(watched, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            home.bear("stay()", birth=birth, within_s=0.05, death=DeathPolicy(outlive=True))
        stop_and_go(watched, signal.SIGCONT)
    record = home.installation.births / birth / "exit.json"
    until(record.exists, "recorded")
    until(lambda: find_carriers([birth], home.installation.id) == [], "gone")
    until(lambda: load().children_of(home.nursery.pid) == [], "rid of the keeper")


def stop_and_go(pinned: Pinned, sig: int) -> None:
    load().deliver(pinned, sig, Warrant(basis=Basis.CALLER, asked_by="a test"))


def test_a_birth_a_lost_nursery_never_took_is_written_down_as_never_born(home: Yard) -> None:
    nursery = pin(home.nursery.pid)
    assert nursery is not None
    with nursery:
        kill(nursery)
        wait_gone(nursery, "nursery")
    birth = new_birth()
    with pytest.raises(WorkerLost):
        home.bear("stay()", birth=birth)
    record = json.loads((home.installation.births / birth / "exit.json").read_text())
    assert record["born"] is False


def test_many_are_born_at_once_from_many_threads(home: Yard) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        born = list(pool.map(lambda _: home.bear("", words=("/bin/sleep", "1000")), range(24)))
    assert len({kept.identity.pid for kept, _ in born}) == 24
    for kept, _ in born:
        kept.ask_to_stop(asked_by="the test")
    for kept, line in born:
        assert ended(kept.wait_ended(20.0)).signal == signal.SIGTERM
        line.wait_end()


# -- end ------------------------------------------------------------------------


def test_an_exit_is_told_and_on_disk_before_the_keeper_goes(home: Yard) -> None:
    kept, _ = home.bear("sys.exit(7)")
    word = ended(kept.wait_ended(20.0))
    assert exit_status_of(word) == ExitStatus(code=7)
    assert kept.exited is not None
    assert exit_status_of(kept.exited) == ExitStatus(code=7)
    record = paper(home, kept, "exit")
    assert record["exit"] == {"code": 7, "signal": None, "core_dumped": False}
    assert (record["why"], record["by"], record["born"]) == ("its leader ended", "keeper", True)
    assert word.receipt is None, "nobody was signalled"
    until(lambda: load().children_of(home.nursery.pid) == [], "rid of the keeper")
    assert os.listdir(home.installation.run) == ["nursery.log"]


def test_a_stop_ends_leader_group_sessions_and_daemons_and_says_what_each_was_sent(home: Yard) -> None:
    kept, line = home.bear("os.fork() or (DEAF(), say(0), stay()); daemon(); stay()", stop=QUICK)
    heard = {line.hear(), line.hear()}
    assert len(heard) == 2
    word = ended(kept.stop(asked_by="the test"))
    line.wait_end()
    assert word.signal == signal.SIGTERM
    assert word.why == "asked by the test"
    assert word.receipt is not None
    members = {m["found"]: m for m in word.receipt["members"]}
    assert set(members) == {"leader", "group", "descendant"}
    assert members["leader"]["end"] == "exited"
    assert [sent["signal"] for sent in members["descendant"]["sent"]] == ["SIGTERM", "SIGKILL"]
    assert (members["descendant"]["end"], members["group"]["end"]) == ("killed", "killed")
    assert word.receipt["termination"] == "killed"
    assert find_carriers([kept.birth], home.installation.id) == []


def test_a_dead_leader_is_held_until_its_set_is_empty(home: Yard) -> None:
    kept, line = home.bear("daemon(); sys.exit(3)", stop=StopPolicy(term_grace_s=2.0))
    daemon = pin(line.hear())
    assert daemon is not None
    assert isinstance(kept.hear(20.0), Exited)
    assert isinstance(kept.hear(20.0), Stopping), "the rest of the set is ended with it"
    assert load().is_zombie(kept.identity.pid), "its number is nobody else's"
    word = ended(kept.wait_ended(20.0))
    assert (word.code, word.why) == (3, "its leader ended")
    wait_gone(daemon, "daemon")
    daemon.close()
    line.wait_end()
    until(lambda: load().start_ticks_of(kept.identity.pid) != kept.identity.start_ticks, "reaped")


def test_a_storm_of_forks_ends(home: Yard) -> None:
    storm = """
say("ready")
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            DEAF()
            for _ in range(8):
                if os.fork(): time.sleep(0.02)
            stay()
    except OSError: pass
    time.sleep(0.01)
"""
    kept, line = home.bear(storm, stop=StopPolicy(term_grace_s=0.1, settle_s=10.0))
    line.hear()
    word = ended(kept.stop(asked_by="the test"))
    line.wait_end()
    assert word.receipt is not None
    assert find_carriers([kept.birth], home.installation.id) == []


def test_orphans_that_fall_to_the_keeper_while_it_stands_by_are_reaped(home: Yard) -> None:
    kept, line = home.bear(
        "for _ in range(50):\n if os.fork() == 0:\n  os.fork()\n  os._exit(0)\n os.wait()\nsay('done'); stay()"
    )
    line.hear()
    keeper = kept.keeper_identity.pid
    until(lambda: load().children_of(keeper) == [kept.identity.pid], "rid of the orphans")


def test_stops_join_and_a_forced_one_needs_no_patience(home: Yard) -> None:
    kept, line = home.bear("DEAF(); say('deaf'); stay()", stop=PATIENT)
    line.hear()
    kept.ask_to_stop(asked_by="the first")
    kept.ask_to_stop(asked_by="the second")
    assert kept.hear(20.0) == Stopping("asked by the first")
    word = ended(kept.stop(asked_by="the third", force=True))
    assert (word.signal, word.why) == (signal.SIGKILL, "asked by the first")
    assert word.receipt is not None
    sent = [each["signal"] for each in word.receipt["members"][0]["sent"]]
    assert sent == ["SIGTERM", "SIGKILL"], "each once"


def test_a_stop_of_what_has_ended_already_is_answered_with_how_it_ended(home: Yard) -> None:
    kept, line = home.bear("sys.exit(5)")
    line.wait_end()
    assert ended(kept.stop(asked_by="the test")).code == 5
    assert ended(kept.stop(asked_by="the test")).code == 5


def test_a_keeper_that_is_asked_to_end_ends_its_set_first(home: Yard) -> None:
    kept, line = home.bear("stay()")
    keeper = pin(kept.keeper_identity.pid)
    assert keeper is not None
    load().deliver(keeper, signal.SIGTERM, Warrant(basis=Basis.CALLER, asked_by="a test"))
    word = ended(kept.wait_ended(20.0))
    assert (word.signal, word.why) == (signal.SIGTERM, "its keeper got SIGTERM")
    line.wait_end()
    wait_gone(keeper, "keeper")
    keeper.close()


def test_an_exit_record_the_disk_refuses_is_told_instead(home: Yard) -> None:
    kept, line = home.bear("stay()")
    shutil.rmtree(home.installation.births / kept.birth)
    word = ended(kept.stop(asked_by="the test"))
    assert word.signal == signal.SIGTERM
    assert "No such file" in word.unwritten
    line.wait_end()


def test_an_owner_that_does_not_listen_holds_up_nobody(home: Yard) -> None:
    kept, line = home.bear("stay()")
    # What nobody reads fills the socket. The keeper answers each of these, and goes on when there is no room.
    connection = kept._connection
    connection.settimeout(20.0)
    for _ in range(3000):
        protocol.send(connection, protocol.Dying({"policy": "no such policy"}))
    connection.settimeout(None)
    kept.ask_to_stop(asked_by="the test")
    line.wait_end()
    until(lambda: (home.installation.births / kept.birth / "exit.json").exists(), "recorded")
    words = []
    try:
        while (word := kept.hear(20.0)) is not None:
            words.append(word)
    except WorkerLost:
        pass
    assert isinstance(words[0], Refused)


# -- owners ---------------------------------------------------------------------


def test_a_set_whose_owner_vanishes_is_stopped_and_recorded(tmp_path: Path) -> None:
    with stage(tmp_path) as s:
        s.say("give birth")
        word = s.hear()
        assert word is not None
        assert "born" in word
        until(lambda: s.starts() == 1, "begun")
        kill(s.owner)
        s.wait_all_gone()
        until(lambda: s.exit() is not None, "recorded")
        found = s.paper("exit")
        assert found is not None
        assert found["why"] == "its owner vanished"
        assert s.exit() in (ExitStatus(code=7), ExitStatus(signal=15))
        wait_gone(s.nursery, "nursery")


def test_the_fork_of_an_owner_does_not_hide_its_death(tmp_path: Path) -> None:
    """A fork without an exec (multiprocessing) keeps the sockets, so that no end-of-file comes."""
    with stage(tmp_path, fork_first=True) as s:
        s.say("give birth")
        word = s.hear()
        assert word is not None
        fork = s.hold(word["fork"])
        assert fork is not None
        kill(s.owner)
        s.wait_all_gone()
        wait_gone(s.nursery, "nursery")
        assert not load().exited(fork), "it still holds what the owner held"


def test_an_outliving_set_is_adopted_with_its_pid_and_stopped_by_whoever_adopted_it(tmp_path: Path) -> None:
    with stage(tmp_path, outlive=True) as s:
        s.say("give birth")
        word = s.hear()
        assert word is not None
        kill(s.owner)
        s.process.wait(20.0)
        with owner.connect(s.installation.run, s.birth, epoch=2) as kept:
            assert kept.identity.to_dict() == word["born"]
            assert kept.keeper_identity.pid == word["keeper"]
            assert prove(kept.identity, held=kept.child).verdict is Verdict.SAME
            assert not load().exited(kept.child)
            until(lambda: s.starts() == 1, "begun")
            assert ended(kept.stop(asked_by="the second owner")).why == "asked by the second owner"
        s.wait_all_gone()
        wait_gone(s.nursery, "nursery")
        with pytest.raises(ProcessGone):
            owner.connect(s.installation.run, s.birth, epoch=3)


def test_a_set_that_may_outlive_for_a_time_is_stopped_after_it(tmp_path: Path) -> None:
    with stage(tmp_path, outlive=True, for_s=0.2) as s:
        s.say("give birth")
        assert s.hear() is not None
        kill(s.owner)
        s.wait_all_gone()
        until(lambda: s.exit() is not None, "recorded")
        found = s.paper("exit")
        assert found is not None
        assert found["why"] == "its owner vanished 0.2 s ago"


def test_the_highest_epoch_controls(home: Yard) -> None:
    kept, line = home.bear("stay()", epoch=5)
    run = home.installation.run
    with pytest.raises(PermissionError, match="epoch 4 is over"):
        owner.connect(run, kept.birth, epoch=4)
    with pytest.raises(PermissionError, match="another connection of epoch 5"):
        owner.connect(run, kept.birth, epoch=5)
    newer = home.adopt(owner.connect(run, kept.birth, epoch=6))
    assert kept.hear(20.0) == Superseded(6)
    with pytest.raises(WorkerLost):
        kept.hear(20.0)
    with pytest.raises(PermissionError, match="epoch 5 is over"):
        owner.connect(run, kept.birth, epoch=5)
    assert ended(newer.stop(asked_by="the newer")).why == "asked by the newer"
    line.wait_end()


def test_whoever_only_looks_changes_nothing(home: Yard) -> None:
    kept, line = home.bear("stay()")
    looker = home.adopt(owner.connect(home.installation.run, kept.birth, epoch=0, control=False))
    assert looker.identity == kept.identity
    looker.ask_to_stop(asked_by="a looker")
    assert looker.hear(20.0) == Refused("this connection does not control")
    looker.close()
    assert ended(kept.stop(asked_by="the owner")).why == "asked by the owner"
    line.wait_end()


def test_a_stranger_on_the_socket_is_told_and_dropped(home: Yard) -> None:
    kept, _ = home.bear("stay()")
    with protocol.connect(str(home.installation.run), kept.birth) as stranger:
        stranger.send(b"GET / HTTP/1.1\r\n\r\n")
        found = protocol.receive(stranger)
        assert found is not None
        assert isinstance(found[0], Refused)
        assert protocol.receive(stranger) is None
    with protocol.connect(str(home.installation.run), kept.birth) as eager:
        protocol.send(eager, Stop("nobody"))
        found = protocol.receive(eager)
        assert found is not None
        assert found[0] == Refused("this connection does not control")
    assert not load().exited(kept.child)


def test_a_death_policy_can_be_changed_later(home: Yard) -> None:
    kept, line = home.bear("daemon(); stay()", stop=QUICK)
    line.hear()
    kept.set_death_policy(DeathPolicy(outlive=True))
    child = pin(kept.identity.pid)
    assert child is not None
    kept.close()
    again = home.adopt(owner.connect(home.installation.run, kept.birth, epoch=1))
    assert not load().exited(child)
    child.close()
    again.set_death_policy(DeathPolicy())
    again.close()
    line.wait_end()
    until(lambda: load().children_of(home.nursery.pid) == [], "rid of the keeper")


# -- the lock -------------------------------------------------------------------


def test_a_second_copy_of_a_service_is_not_started(home: Yard) -> None:
    lock = home.installation.locks / "kept"
    kept, _ = home.bear("stay()", lock=lock)
    birth = new_birth()
    with pytest.raises(LaunchFailed) as refused:
        home.bear("stay()", lock=lock, birth=birth)
    assert refused.value.step is Step.LOCK
    record = json.loads((home.installation.births / birth / "exit.json").read_text())
    assert record["born"] is False
    home.bear("stay()", lock=home.installation.locks / "another")
    kept.stop(asked_by="the test")
    until(lambda: load().start_ticks_of(kept.keeper_identity.pid) is None, "rid of the keeper")
    home.bear("stay()", lock=lock)


def test_a_second_copy_is_not_started_before_the_last_of_a_lost_keepers_set_has_gone(home: Yard) -> None:
    lock = home.installation.locks / "kept"
    kept, line = home.bear("daemon(); stay()", lock=lock, stop=PATIENT)
    daemon = pin(line.hear())
    keeper = pin(kept.keeper_identity.pid)
    assert daemon is not None
    assert keeper is not None
    kill(keeper)
    wait_gone(keeper, "keeper")
    keeper.close()
    with pytest.raises(LaunchFailed) as refused:
        home.bear("stay()", lock=lock)
    assert refused.value.step is Step.LOCK
    kill(daemon)
    daemon.close()
    assert home.nursery.lost(20.0) is not None
    home.bear("stay()", lock=lock)


def test_a_symbolic_link_is_no_lock_file(home: Yard) -> None:
    lock = home.installation.locks / "kept"
    lock.symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        home.bear("stay()", lock=lock)
    assert not (home.installation.locks / "elsewhere").exists()


# -- losses ---------------------------------------------------------------------


def test_what_a_lost_keeper_leaves_is_ended_and_recorded_by_the_nursery(home: Yard) -> None:
    kept, line = home.bear("daemon(); stay()", stop=QUICK)
    line.hear()
    keeper = pin(kept.keeper_identity.pid)
    assert keeper is not None
    kill(keeper)
    keeper.close()
    with pytest.raises(WorkerLost):
        kept.wait_ended(20.0)
    lost = home.nursery.lost(20.0)
    assert lost is not None
    assert (lost.birth, lost.signal, lost.survivors) == (kept.birth, signal.SIGKILL, [])
    line.wait_end()
    record = paper(home, kept, "exit")
    assert (record["why"], record["by"]) == ("its keeper was lost", "nursery")
    assert record["exit"] == {"code": None, "signal": 9, "core_dumped": False}
    assert f"of birth {kept.birth} was lost: signal 9 (SIGKILL)" in home.log()
    assert os.listdir(home.installation.run) == ["nursery.log"]


def test_an_exit_code_survives_the_keeper_that_held_it(home: Yard) -> None:
    kept, line = home.bear("daemon(); sys.exit(9)", stop=PATIENT)
    daemon = line.hear()
    while not isinstance(kept.hear(20.0), Exited):
        pass
    # The leader is dead and held, since the daemon is deaf and its grace is long.
    keeper = pin(kept.keeper_identity.pid)
    assert keeper is not None
    kill(keeper)
    keeper.close()
    left = pin(daemon)
    assert left is not None
    kill(left)
    left.close()
    lost = home.nursery.lost(20.0)
    assert lost is not None
    assert exit_status_of(lost) == ExitStatus(code=9)
    assert paper(home, kept, "exit")["exit"] == {"code": 9, "signal": None, "core_dumped": False}


def test_two_keepers_lost_at_once_leave_each_its_own_exit_code(home: Yard) -> None:
    born = [home.bear(f"daemon(); sys.exit({code})", stop=PATIENT) for code in (3, 4)]
    daemons = [line.hear() for _, line in born]
    for kept, _ in born:
        while not isinstance(kept.hear(20.0), Exited):
            pass
    for pid in [*(kept.keeper_identity.pid for kept, _ in born), *daemons]:
        found = pin(pid)
        assert found is not None
        kill(found)
        found.close()
    lost = [home.nursery.lost(20.0), home.nursery.lost(20.0)]
    assert {each.birth: each.code for each in lost if each} == {born[0][0].birth: 3, born[1][0].birth: 4}


def test_a_nursery_that_is_lost_changes_nothing_for_its_children(home: Yard) -> None:
    kept, line = home.bear("stay()")
    found = pin(home.nursery.pid)
    assert found is not None
    kill(found)
    wait_gone(found, "nursery")
    found.close()
    with pytest.raises(WorkerLost):
        home.nursery.lost(20.0)
    with pytest.raises(WorkerLost):
        home.bear("stay()")
    home.nursery.close()
    home.nursery = home.open_nursery()
    other, _ = home.bear("stay()")
    assert other.identity.pid != kept.identity.pid
    assert not load().exited(kept.child)
    assert ended(kept.stop(asked_by="the test")).signal == signal.SIGTERM
    line.wait_end()


def test_a_nursery_stays_until_its_last_keeper_has_gone(home: Yard) -> None:
    kept, line = home.bear("stay()")
    nursery = pin(home.nursery.pid)
    assert nursery is not None
    home.nursery._channel.shutdown(2)
    assert kept.hear(0.2) is None
    assert not load().exited(nursery)
    kept.stop(asked_by="the test")
    wait_gone(nursery, "nursery")
    nursery.close()
    line.wait_end()


@pytest.mark.parametrize("who", ["owner", "keeper"])
def test_without_pidfds_nothing_is_left_either(who: str, tmp_path: Path) -> None:
    """As on an old kernel, or behind a container's filter, for owner, nursery, keeper and child alike."""
    with stage(tmp_path, no_pidfds=True) as s:
        s.say("give birth")
        word = s.hear()
        assert word is not None
        assert word["proven"] == "same"
        until(lambda: s.starts() == 1, "begun")
        victim = s.owner if who == "owner" else s.hold(word["keeper"])
        assert victim is not None
        kill(victim)
        s.wait_all_gone()
        until(lambda: s.exit() is not None, "recorded")
        found = s.paper("exit")
        assert found is not None
        assert found["by"] == ("keeper" if who == "owner" else "nursery")
        status = s.exit()
        assert status is not None
        assert status.known


def test_without_the_native_spawner_a_keeper_keeps_the_same_promises(
    birthmark_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIRTHMARK_NATIVE", "0")
    with yard(birthmark_home) as home:
        kept, line = home.bear("daemon(); stay()", stop=QUICK)
        line.hear()
        assert load().parent_of(kept.identity.pid) == kept.keeper_identity.pid
        other, other_line = home.bear("say(1); stay()")
        other_line.hear()
        keeper = pin(other.keeper_identity.pid)
        assert keeper is not None
        kill(keeper)
        other_line.wait_end()
        wait_gone(other.child, "child of a lost keeper")
        keeper.close()
        assert ended(kept.stop(asked_by="the test")).signal == signal.SIGTERM
        line.wait_end()


def test_what_nursery_and_keeper_leave_when_both_are_lost_is_found_by_one_sweep(tmp_path: Path) -> None:
    """The one pair after which nobody is left who knows: the child dies with its keeper, the rest is searched."""
    with stage(tmp_path) as s:
        s.say("give birth")
        word = s.hear()
        assert word is not None
        until(lambda: s.starts() == 1, "begun")
        child = s.hold(word["born"]["pid"])
        keeper = s.hold(word["keeper"])
        assert child is not None
        assert keeper is not None
        # The leader's group has its worker, and the daemon has left it.
        until(lambda: len(find_carriers([s.birth], s.installation.id)) >= 3, "complete")
        kill(s.nursery)
        kill(keeper)
        wait_gone(child, "child")
        assert s.paper("exit") is None, "nobody was left to write it"
        left = find_carriers([s.birth], s.installation.id)
        assert {carrier.found.value for carrier in left} == {"mark"}
        for carrier in left:
            found = s.hold(carrier.pid)
            if found is not None:
                kill(found)
        s.wait_all_gone()


# -- what it is made of ----------------------------------------------------------


def test_nursery_and_keeper_load_no_event_loop_and_nothing_heavy() -> None:
    program = "import sys, birthmark.keeper.nursery; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {root()!r}); {program}"],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    heavy = {
        "asyncio",
        "anyio",
        "msgspec",
        "click",
        "sqlite3",
        "platformdirs",
        "logging",
        "subprocess",
        "ssl",
    }
    assert set(done.stdout.split()) & heavy == set()


def root() -> str:
    import birthmark

    return str(Path(birthmark.__file__).parents[1])


def test_an_idle_keeper_costs_no_time(home: Yard) -> None:
    """Nothing is polled: what it waits with is a poll(2) without a limit."""
    kept, _ = home.bear("stay()")
    keeper = kept.keeper_identity.pid
    until(lambda: Path(f"/proc/{keeper}/syscall").read_text().split()[0] in ("7", "73", "271"), "waiting")
    number, _, _, third, *_ = Path(f"/proc/{keeper}/syscall").read_text().split()
    if number == "7":  # poll(2) on x86-64: its third argument is the limit
        assert int(third, 16) & 0xFFFFFFFF == 0xFFFFFFFF
    assert select.select([kept], [], [], 0)[0] == []


def test_births_leave_nothing_open_in_the_nursery(home: Yard) -> None:
    def once(lose: bool) -> None:
        kept, _ = home.bear("", words=("/bin/sleep", "1000"))
        if lose:
            keeper = pin(kept.keeper_identity.pid)
            assert keeper is not None
            with keeper:
                kill(keeper)
            assert home.nursery.lost(20.0) is not None
        else:
            kept.stop(asked_by="the test")
        kept.close()

    once(lose=True)
    until(lambda: load().children_of(home.nursery.pid) == [], "rid of the keeper")
    before = len(os.listdir(f"/proc/{home.nursery.pid}/fd"))
    for number in range(20):
        once(lose=number % 2 == 0)
    until(lambda: load().children_of(home.nursery.pid) == [], "rid of the keepers")
    # It lets go of a lock right after the keeper was reaped.
    until(lambda: len(os.listdir(f"/proc/{home.nursery.pid}/fd")) <= before, "rid of what it held")
    assert os.listdir(home.installation.run) == ["nursery.log"]


TRACER = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
pid = int(sys.argv[1])
assert libc.ptrace(0x4206, pid, 0, 0) == 0, ctypes.get_errno()  # PTRACE_SEIZE
print("holds", flush=True)
sys.stdin.read()
"""


def test_a_survivor_is_reported_with_the_reason_and_its_keeper_stays_until_it_has_gone(home: Yard) -> None:
    """Killed under a debugger, a process is not its parent's to reap before the debugger has looked."""
    kept, line = home.bear(
        "fork = os.fork()\nif fork == 0: stay()\nsay(fork); stay()",
        stop=StopPolicy(term_grace_s=0.1, settle_s=0.2),
    )
    member = line.hear()
    with subprocess.Popen(
        [sys.executable, "-c", TRACER, str(member)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as tracer:
        assert tracer.stdout is not None
        if tracer.stdout.readline() != "holds\n":
            pytest.skip("this system lets nobody trace")
        word = kept.stop(asked_by="the test")
        assert isinstance(word, Survived)
        left = [each for each in word.receipt["members"] if each["end"] is None]
        assert [(each["pid"], each["why"]) for each in left] == [(member, "traced: its debugger holds it")]
        assert not (home.installation.births / kept.birth / "exit.json").exists()
        again = kept.stop(asked_by="the test")
        assert isinstance(again, Survived), "asked once more, tried once more"
        tracer.communicate(timeout=20)
    assert ended(kept.wait_ended(20.0)).signal == signal.SIGTERM
    line.wait_end()
