"""Field cases of Windows, as far as Linux can stand in."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from birthmark.core.lineage import Born, descendants
from birthmark.core.outcomes import Basis, Delivery, Warrant
from birthmark.platforms import load, windows
from birthmark.testing import puppet, wait_exited
from tests.platforms.test_other_platforms import Windows, win

__all__ = ["win"]

CALLER = Warrant(basis=Basis.CALLER, asked_by="a test")


def test_l1_a_child_older_than_its_parent_is_not_a_child() -> None:
    """A recursive kill hit old processes whose parent's number had been given away again."""
    root = Born(40, 1, 100)
    table = [
        root,
        Born(50, 40, 90),  # an orphan of the earlier owner of the number 40
        Born(51, 50, 95),
        Born(60, 40, 100),  # born within the same unit of time: a child
        Born(61, 60, 150),
        Born(62, 61, 140),  # an orphan of an earlier 61
    ]
    assert [row.pid for row in descendants(root, table)] == [60, 61]


def test_l1_a_tree_kill_spares_what_is_older(win: Windows) -> None:
    win.add(40, os.getpid(), 100)
    win.add(50, 40, 90)
    win.add(60, 40, 110)
    with windows.pin(40) as held:
        assert windows.deliver(held, 9, CALLER, group=True) is Delivery.SENT
    assert win.kernel.ended == [40, 60]


def test_l2_a_number_that_changes_hands_between_snapshot_and_kill_is_spared(
    win: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    win.add(40, os.getpid(), 100)
    win.add(60, 40, 110)
    win.add(61, 40, 111)
    look = windows.table

    def then_it_changes() -> list[Born]:
        rows = look()
        win.add(60, 4, 300)  # somebody else's now
        return rows

    monkeypatch.setattr(windows, "table", then_it_changes)
    with windows.pin(40) as held:
        windows.deliver(held, 9, CALLER, group=True)
    assert win.kernel.ended == [40, 61]
    assert win.kernel.born[60] == 300


def test_l4_asking_whether_a_process_lives_never_reaches_os_kill(win: Windows) -> None:
    """There, os.kill(pid, 0) is a Ctrl-C to the console; the fixture makes any call of it a failure."""
    win.add(77, os.getpid(), 100)
    win.environ[77] = {"PATH": "C:\\"}
    with windows.pin(77) as held:
        windows.exited(held)
        windows.observe(held)
        windows.is_zombie(77)
        windows.is_our_child(77)
        windows.group_lives(held)
        assert windows.deliver(held, 0, CALLER) is Delivery.SENT
    windows.start_ticks_of(77)
    windows.reap(77)
    windows.children_of(77)
    windows.group_members(77)


LAUNCHER = """
pid = os.fork()
if not pid:
    tell(os.getpid()); stay()
tell(pid); os.waitpid(pid, 0)
"""


@pytest.fixture
def launched() -> Iterator[tuple[int, int]]:
    """A launcher that starts the real program and waits for it, as python.exe of a venv does."""
    with puppet(LAUNCHER) as child:
        real = {child.hear_pid(), child.hear_pid()}
        assert len(real) == 1
        yield child.pid, real.pop()


def test_l5_the_real_process_behind_a_launcher_is_a_member_and_is_stopped(launched: tuple[int, int]) -> None:
    launcher, real = launched
    platform = load()
    assert platform.children_of(launcher) == [real]
    assert real in platform.group_members(launcher)
    with platform.pin(launcher) as leader, platform.pin(real) as member:
        warrant = Warrant(basis=Basis.CHILD, asked_by="a test")
        assert platform.deliver(leader, 15, warrant, group=True) is Delivery.SENT
        wait_exited(member)
        wait_exited(leader)
