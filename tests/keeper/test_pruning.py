"""Pruning: what goes, what stays whatever its age, and how much work one front does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from birthmark.children.installation import open_installation
from birthmark.keeper.papers import KEPT, Papers, crowded
from birthmark.keeper.pruning import AT_MOST, prune
from tests.e2e.fronts import RUN, environment
from tests.keeper.papers import aged, before_this_boot, ended, intended, ourselves

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="`run` needs Linux")


def left() -> set[str]:
    return {folder.name for folder in open_installation().births.iterdir()}


def in_a_row(*births: Papers) -> list[str]:
    """Have births look as if they had been written one after the other, and return their names."""
    for second, papers in enumerate(births):
        # Younger than this boot, so that age alone excuses nothing.
        aged(papers.folder, papers.folder.stat().st_mtime - 10 + second / 100)
    return [papers.birth for papers in births]


def test_the_oldest_go_and_the_newest_stay() -> None:
    names = in_a_row(*(ended() for _ in range(5)))
    assert prune(open_installation().births, kept=3) == 2
    assert left() == set(names[2:])
    assert prune(open_installation().births, kept=3) == 0


def test_one_front_takes_no_more_than_a_few_away() -> None:
    names = in_a_row(*(ended() for _ in range(5)))
    assert prune(open_installation().births, kept=1, at_most=2) == 2
    assert left() == set(names[2:])


def test_what_may_be_alive_or_cannot_be_read_stays_whatever_its_age() -> None:
    unreadable = ended()
    (unreadable.folder / "exit.json").write_bytes(b"")
    stay = [intended(front=ourselves()), ended(survivors=(4711,)), unreadable]
    blank = intended()
    (blank.folder / "intent.json").unlink()
    old, young = ended(), ended()
    in_a_row(*stay, blank, old, young)
    assert prune(open_installation().births, kept=1) == 1
    assert left() == {papers.birth for papers in (*stay, blank, young)}


def test_what_was_before_this_boot_goes_with_or_without_an_end() -> None:
    killed, unborn, survived = intended(front=ourselves()), intended(front=ourselves()), ended(survivors=(7,))
    killed.born(ourselves(killed.birth))
    for papers in (killed, unborn, survived):
        before_this_boot(papers)
    young = ended()
    assert prune(open_installation().births, kept=1) == 3
    assert left() == {young.birth}


def test_a_crowd_of_births_without_an_end_hides_no_ended_one_from_pruning() -> None:
    crowd = [intended(front=ourselves()) for _ in range(60)]
    old, young = ended(), ended()
    in_a_row(*crowd, old, young)
    assert prune(open_installation().births, kept=1) == 1
    assert old.birth not in left()


def test_what_a_crash_left_of_a_removal_is_removed() -> None:
    old, young = ended(), ended()
    in_a_row(old, young)
    old.folder.rename(old.folder.with_name(f".{old.birth}.done"))
    assert prune(open_installation().births, kept=1) == 1
    assert left() == {young.birth}


def test_run_prunes_at_its_end_and_keeps_its_own_papers() -> None:
    births = [ended() for _ in range(KEPT)]
    names = in_a_row(*births)
    assert not crowded(open_installation().births)
    subprocess.run([*RUN, "--", "true"], env=environment(), stdin=subprocess.DEVNULL, timeout=20, check=True)
    (own,) = left() - set(names)
    assert left() == {*names[1:], own}


def test_run_works_a_larger_crowd_off_little_by_little() -> None:
    names = in_a_row(*(ended() for _ in range(KEPT + 2 * AT_MOST)))
    for done in (1, 2):
        subprocess.run(
            [*RUN, "--", "true"], env=environment(), stdin=subprocess.DEVNULL, timeout=20, check=True
        )
        assert set(names) - left() == set(names[: done * AT_MOST])


def test_a_command_that_never_ran_prunes_too(tmp_path: Path) -> None:
    names = in_a_row(*(ended() for _ in range(KEPT)))
    script = tmp_path / "script"
    script.write_text("#!/nowhere/interpreter\n")
    script.chmod(0o755)
    words = [*RUN, "--", str(script)]
    done = subprocess.run(
        words,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=20,
        check=False,
    )
    assert done.returncode == 127
    assert set(names) - left() == {names[0]}
