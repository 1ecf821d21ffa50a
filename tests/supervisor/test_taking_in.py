"""A boot on an installation where `run` was used: its births become rows, and what it left is ended."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from birthmark.children.installation import Installation, open_installation
from birthmark.core.outcomes import ExitStatus
from birthmark.core.service import BirthId
from birthmark.core.states import Observed
from birthmark.errors import RegistryUnavailable
from birthmark.keeper.reading import read_shelf
from birthmark.platforms import load
from birthmark.registry.contract import BirthOrigin, BirthRecord, BirthState
from birthmark.supervisor.taking_in import take_in
from birthmark.testing import puppet, wait_exited
from birthmark.testing.registry import MemoryRegistry
from tests.e2e.fronts import RUN, environment, front, pinned, send
from tests.keeper.papers import aged, before_this_boot, ended, intended, ourselves
from tests.supervisor.household import Household, household, service

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="`run` needs Linux"),
]

NOW = datetime(2030, 1, 1, tzinfo=UTC)

LEAVES_ONE = """\
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    tell(os.getpid())
    while True: signal.pause()
os.wait()
stay()
"""


def folders() -> list[str]:
    return sorted(folder.name for folder in open_installation().births.iterdir())


def run(*words: str) -> None:
    """Run the words after `birthmark run`, to their end."""
    subprocess.run([*RUN, *words], env=environment(), stdin=subprocess.DEVNULL, timeout=20, check=False)


def row(house: Household, birth: str) -> BirthRecord:
    record = house.registry.birth(BirthId(birth))
    assert record is not None
    return record


def memory() -> tuple[Installation, MemoryRegistry, int]:
    installation = open_installation()
    registry = MemoryRegistry(installation.id)
    return installation, registry, registry.take(ourselves(), NOW)


async def test_a_birth_of_run_that_has_ended_becomes_a_row_with_its_exit_and_leaves_its_folder() -> None:
    run("--name", "it", "--", "sh", "-c", "exit 5")
    (papers,) = read_shelf(open_installation().births).papers
    async with household(service()) as house:
        record = row(house, papers.birth)
        assert (record.service, record.state, record.exit, record.origin, record.epoch) == (
            "it", BirthState.ENDED, ExitStatus(code=5), BirthOrigin.RUN, 0,
        )  # fmt: skip
        assert (record.identity, record.why) == (papers.identity, papers.why)
        assert folders() == []
        assert (house.report.taken_in, house.report.lines) == (1, [])


async def test_a_birth_whose_run_lives_is_left_to_it() -> None:
    with front("tell(os.getpid()); obey()", "--name", "it") as child:
        child.hear_pid()
        child.ask()
        (birth,) = folders()
        async with household(service()) as house:
            await house.seen(Observed.READY)
            assert house.registry.birth(BirthId(birth)) is None
            assert folders() == [birth]
            child.ask()


async def test_what_a_killed_run_left_is_ended_by_the_next_boot_and_its_birth_is_lost() -> None:
    with front(LEAVES_ONE, "--name", "one") as child:
        daemon = child.hear_pid()
        with pinned(daemon) as held:
            send(child, signal.SIGKILL)
            child.wait_exited()
            (birth,) = folders()
            async with household(service("one")) as house:
                assert load().exited(held)
                (receipt,) = house.report.ended
                assert daemon in [member.pid for member in receipt.members]
                assert any(
                    "left over from a `birthmark run` that is gone, ended" in line for line in house.said
                )
                assert (row(house, birth).state, folders()) == (BirthState.LOST, [])
                # A service of the same name is another one, and starts.
                await house.seen(Observed.READY)


async def test_a_killed_run_of_which_nothing_is_left_is_taken_in_as_lost_without_a_word() -> None:
    with front("tell(os.getpid()); stay()", "--name", "it") as child:
        with pinned(child.hear_pid()) as leader:
            send(child, signal.SIGKILL)
            child.wait_exited()
            wait_exited(leader)
        (birth,) = folders()
        async with household(names=[]) as house:
            record = row(house, birth)
            assert (record.state, record.exit) == (BirthState.LOST, None)
            assert record.ended_at is not None
            assert house.report.lines == []


async def test_a_paper_that_cannot_be_read_is_said_and_stays_and_the_others_are_taken_in() -> None:
    good, bad = ended(), ended()
    (bad.folder / "exit.json").write_bytes(b"")
    async with household(names=[]) as house:
        (line,) = house.report.lines
        assert line.startswith(
            f"a paper cannot be read, and stays where it is: {bad.folder}/exit.json: it is empty"
        )
        assert row(house, good.birth).state is BirthState.ENDED
        assert house.registry.birth(bad.birth) is None
        assert folders() == [bad.birth]


async def test_a_birth_of_run_that_cannot_be_proven_is_left_alone_and_blocks_no_service_of_its_name() -> None:
    with puppet() as child:
        child.wait_ready()
        with load().pin(child.pid) as pinned_child:
            seen = load().observe(pinned_child, environ=False)
        assert seen is not None
        papers = intended("one", front=replace(ourselves(), start_ticks=1))
        # Without a mark and without an inode nothing proves that it is the one recorded.
        papers.born(replace(seen.identity(birth=papers.birth), inode=None))
        async with household(service("one")) as house:
            await house.seen(Observed.READY)
            assert [left.record.birth for left in house.report.leftovers] == [papers.birth]
            assert row(house, papers.birth).state is BirthState.BORN
        child.ask()


async def test_many_are_taken_in_by_one_boot() -> None:
    births = [ended() for _ in range(300)]
    async with household(names=[]) as house:
        assert house.report.taken_in == len(births)
        assert len(house.registry.ended_births()) == len(births)
        assert folders() == []


# -- without a supervisor ------------------------------------------------------


def test_a_crash_between_the_rows_and_the_folders_costs_nothing() -> None:
    installation, registry, epoch = memory()
    papers = ended(code=3)
    kept = papers.folder.with_name(".kept")
    shutil.copytree(papers.folder, kept)
    take_in(installation, registry, epoch=epoch, at=NOW)
    before = registry.birth(papers.birth)
    kept.rename(papers.folder)
    take_in(installation, registry, epoch=epoch, at=NOW)
    assert registry.birth(papers.birth) == before
    assert folders() == []


def test_no_folder_goes_when_the_rows_could_not_be_written() -> None:
    installation, registry, epoch = memory()
    papers = ended()
    registry.broken = "the disk is full"
    with pytest.raises(RegistryUnavailable):
        take_in(installation, registry, epoch=epoch, at=NOW)
    assert folders() == [papers.birth]


def test_a_birth_before_this_boot_is_lost_whoever_has_its_numbers_now() -> None:
    installation, registry, epoch = memory()
    papers = intended(front=ourselves())
    papers.born(ourselves(papers.birth))
    before_this_boot(papers)
    take_in(installation, registry, epoch=epoch, at=NOW)
    record = registry.birth(papers.birth)
    assert record is not None
    assert (record.state, record.ended_at) == (BirthState.LOST, NOW)


def test_a_command_that_never_ran_has_ended_and_says_why() -> None:
    installation, registry, epoch = memory()
    papers = intended()
    papers.never_born("no such program")
    take_in(installation, registry, epoch=epoch, at=NOW)
    record = registry.birth(papers.birth)
    assert record is not None
    assert (record.state, record.exit, record.why) == (BirthState.ENDED, None, "no such program")


def test_papers_that_were_copied_with_another_folder_are_left_alone() -> None:
    papers = ended()
    home = open_installation().home
    copy = home.with_name(home.name + "c")
    shutil.copytree(home, copy)
    copied = open_installation(copy)
    assert copied.new_because is not None
    registry = MemoryRegistry(copied.id)
    done = take_in(copied, registry, epoch=registry.take(ourselves(), NOW), at=NOW)
    assert done.births == []
    assert (copied.births / papers.birth / "exit.json").exists()


def test_a_folder_without_an_intent_goes_when_it_is_old_and_a_half_removed_one_at_once() -> None:
    installation, registry, epoch = memory()
    young, old, half = intended(), intended(), ended()
    for papers in (young, old):
        (papers.folder / "intent.json").rename(papers.folder / ".intent.json.4711")
    aged(old.folder, 1000.0)
    half.folder.rename(half.folder.with_name(f".{half.birth}.done"))
    assert take_in(installation, registry, epoch=epoch, at=NOW).births == []
    assert folders() == [young.birth]


def test_a_birth_that_cannot_be_judged_from_here_stays_and_is_told() -> None:
    installation, registry, epoch = memory()
    papers = intended()  # no front: as an older version wrote it
    done = take_in(installation, registry, epoch=epoch, at=NOW)
    assert [each.birth for each in done.unsure] == [papers.birth]
    assert folders() == [papers.birth]
