"""The native look sees what the look from Python sees, and leaves to it whatever is not the usual case. Real processes."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator

import pytest

from birthmark.children.command import Command, mark_child
from birthmark.children.spawning import Spawner
from birthmark.core.identity import TRANSIENT, EnvironState
from birthmark.core.markers import ChildKind, tag_of
from birthmark.core.service import InstallationId
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned
from birthmark.platforms.native_look import native_look
from birthmark.testing.puppet import puppet
from tests.conftest import LINUX

pytestmark = [
    pytest.mark.skipif(not LINUX, reason="procfs is Linux's"),
    pytest.mark.skipif(LINUX and native_look() is None, reason="the native look is not built, or turned off"),
]


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    with Spawner() as spawner:
        yield spawner


def from_python(monkeypatch: pytest.MonkeyPatch, pinned: Pinned) -> object:
    from birthmark.platforms import linux

    with monkeypatch.context() as patch:
        patch.setattr(linux, "native_look", lambda: None)
        return linux.observe(pinned)


def settled(pinned: Pinned) -> None:
    """Wait until an exec that has succeeded has put its environment in place: the kernel tells nobody when."""
    deadline = time.monotonic() + 5
    while (seen := load().observe(pinned)) is None or seen.environ_state in TRANSIENT:
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def looks(pinned: Pinned) -> object:
    look = native_look()
    assert look is not None
    assert pinned.fd is not None
    return look(pinned.pid, pinned.fd)


@pytest.mark.parametrize("name", ["sleep", "a) b (c", ") S 1 1 1"])
def test_both_looks_see_the_same(
    name: str, spawner: Spawner, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    program = os.path.join(str(tmp_path), name)
    os.symlink("/bin/sleep", program)
    command = mark_child(Command(program, "60"), ChildKind.MCP, "näme", installation=InstallationId("a" * 32))
    child = spawner.spawn_owned_supervised(command)
    settled(child.pinned)
    assert looks(child.pinned) is not None
    natively = load().observe(child.pinned)
    assert natively is not None
    assert natively.environ_state is EnvironState.READABLE
    assert child.birth is not None
    assert natively.tag == tag_of(child.birth)
    seen = from_python(monkeypatch, child.pinned)
    # Between the two it may have come to rest.
    assert repr(natively).replace("state='R'", "state='S'") == repr(seen).replace("state='R'", "state='S'")


def test_no_limit_is_told_as_python_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with puppet() as stranger:
        stranger.wait_ready()
        natively = load().observe(stranger.pinned)
        assert natively is not None
        assert repr(natively.tag) == repr(getattr(from_python(monkeypatch, stranger.pinned), "tag", "?"))


def test_an_empty_environment_is_left_to_the_whole_procedure() -> None:
    with puppet(under=("env", "-i")) as stranger:
        stranger.wait_ready()
        assert looks(stranger.pinned) is None
        seen = load().observe(stranger.pinned)
        assert seen is not None
        assert seen.environ_state is EnvironState.DESTROYED


def test_a_large_environment_is_left_to_the_whole_procedure(spawner: Spawner) -> None:
    command = Command(sys.executable, "-I", "-S", "-c", "input()", env={"LARGE": "x" * 100_000})
    child = spawner.spawn_owned_supervised(command)
    settled(child.pinned)
    assert looks(child.pinned) is None
    seen = load().observe(child.pinned)
    assert seen is not None
    assert len(seen.environ) > 100_000


def test_who_has_exited_is_left_to_the_whole_procedure(spawner: Spawner) -> None:
    child = spawner.spawn_owned_supervised(Command("/bin/true"))
    assert child.exit_fd is not None
    assert select.select([child.exit_fd], [], [], 5)[0]
    assert looks(child.pinned) is None
    seen = load().observe(child.pinned)
    assert seen is not None
    assert seen.exited
    child.wait(5)
    with open(os.devnull, "rb") as other:
        assert looks(Pinned(child.pid, other.fileno(), -1)) is None


def test_a_number_nobody_has_is_not_seen() -> None:
    look = native_look()
    assert look is not None
    assert look(2**22 + 1, 0) is None
    assert look(os.getpid(), -1) is None
