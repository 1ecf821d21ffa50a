"""Whoever is killed, alone or with another, and whenever: nothing is left, nothing runs twice, no exit is lost.

Real processes: an owner, its nursery, a keeper, a child with a worker and a daemon. The instants are random and
seeded: the seed of a round is in the test's name, so that a round that failed can be run again.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from pathlib import Path
from typing import Final

import pytest

from birthmark.children.proving import find_carriers, sweep
from birthmark.platforms.contract import Pinned
from tests.keeper.kept import until
from tests.keeper.stage import Stage, kill, stage, wait_gone

WHO: Final = ("owner", "nursery", "keeper", "child")
VICTIMS: Final = [*((who,) for who in WHO), *itertools.combinations(WHO, 2)]

WHOLE: Final = os.environ.get("KILL_MATRIX") == "whole"
"""Fifty moments for each, which takes ten minutes; ten otherwise. KILL_MATRIX=whole ./dev test tests/keeper asks for all."""

WITHIN_S: Final = (0.012, 0.05)
"""Killed within one of these after the birth was asked for. A birth takes some 10 ms on an idle machine, and the
payload as much again until its daemon is there: half of the rounds are about the first, half about all of it."""


def of(victims: tuple[str, ...]) -> str:
    return "+".join(victims)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("victims", VICTIMS, ids=of)
def test_nothing_is_left_whoever_is_killed(victims: tuple[str, ...], seed: int, tmp_path: Path) -> None:
    one_round(victims, seed, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tens", range(1, 6) if WHOLE else range(1, 2))
@pytest.mark.parametrize("victims", VICTIMS, ids=of)
def test_nothing_is_left_whoever_is_killed_at_many_more_moments(
    victims: tuple[str, ...], tens: int, tmp_path: Path
) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        folder = tmp_path / str(seed)
        folder.mkdir()
        one_round(victims, seed, folder)


def one_round(victims: tuple[str, ...], seed: int, folder: Path) -> None:
    dice = random.Random(f"{of(victims)} {seed}")
    with stage(folder, warm=True) as s:
        after_s = dice.uniform(0.0, dice.choice(WITHIN_S))
        s.say("give birth")
        begin = time.monotonic()
        # The instant is what the round is about; nothing tells it.
        time.sleep(after_s)
        # All are found before any is killed: who was lost with its parent could not be found by it any more.
        found = {who: wait_for(s, who, begin + 2.0) for who in victims}
        order = [(who, pinned) for who, pinned in found.items() if pinned is not None]
        dice.shuffle(order)
        for _, pinned in order:
            kill(pinned)
        killed = {who for who, _ in order}
        check(s, killed, f"{of(victims)}, seed {seed}, after {after_s * 1000:.1f} ms, hit {sorted(killed)}")


def wait_for(s: Stage, who: str, until: float) -> Pinned | None:
    """Return one of the four, as soon as it is there; None if it never came to be, or had gone."""
    while True:
        victim = find(s, who)
        if victim is not None:
            return victim
        if s.paper("exit") is not None or time.monotonic() > until:
            return None


def find(s: Stage, who: str) -> Pinned | None:
    if who == "owner":
        return s.owner
    if who == "nursery":
        return s.nursery
    keeper = s.keeper()
    return keeper if who == "keeper" or keeper is None else s.child_of(keeper)


def check(s: Stage, killed: set[str], what: str) -> None:
    word = None
    if "owner" not in killed:
        first = s.hear()
        assert first is not None, what
        s.say("stop")
        word = s.hear()
        assert word is not None, what
    only_the_sweep_is_left = {"nursery", "keeper"} <= killed
    if only_the_sweep_is_left:
        # The child died with its keeper. What it had started belongs to nobody who would end it, and carries
        # mark and tag. One sweep finds all that stand still; who forks between the listing and the look, and
        # ends, leaves a child that neither saw. So it is repeated, as long as the payload is in motion.
        until(lambda: sweep_up(s) == 0 and s.is_gone(), f"swept: {what}")
    s.wait_all_gone()
    # A process lets go of the lifeline in its last steps, a moment before it counts as exited.
    until(lambda: find_carriers([s.birth], s.installation.id) == [], f"rid of its carriers: {what}")
    assert s.starts() <= 1, what
    if "owner" in killed:
        # Nobody is left who would end them: they end by themselves.
        wait_gone(s.nursery, "nursery")
    status = s.exit()
    if (s.starts() or s.paper("identity")) and not only_the_sweep_is_left:
        # It ran: how it ended is on disk, by its keeper's hand or the nursery's.
        # The lifeline ends with the last process; whoever stands by it then has a file to write.
        until(lambda: s.exit() is not None, f"recorded: {what}")
        status = s.exit()
        assert status is not None, what
        assert status.known, f"{what}: {s.paper('exit')}"
    if killed == {"nursery"} and word is not None and "ended" in word:
        # The loss of the nursery is nothing to a keeper and its child.
        assert status is not None, what
        assert status.code == 7 or status.signal == 15, what
        assert (word["ended"]["code"], word["ended"]["signal"]) == (status.code, status.signal), what
    if "keeper" in killed and word is not None and word.get("lost") is not None:
        assert status is not None, what
        assert (word["lost"]["code"], word["lost"]["signal"]) == (status.code, status.signal), what


def sweep_up(s: Stage) -> int:
    """End whoever carries the birth's mark or tag; returns how many did."""
    count = 0
    for pinned, _ in sweep([s.birth], s.installation.id):
        kill(pinned)
        pinned.close()
        count += 1
    return count
