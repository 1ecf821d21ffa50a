"""Field cases J at the spawn itself: an environment that is too large, and marks on what is ours. Real processes."""

from __future__ import annotations

import errno
import os

import pytest

from birthmark import (
    ChildKind,
    Command,
    Spawner,
    SpawnFailed,
    find_carriers,
    mark_child,
    open_installation,
    stop_set_now,
)
from birthmark.testing.puppet import puppet
from tests.field.staging import PATIENT, python


def test_j5_an_environment_that_is_too_large_names_its_biggest_variables_and_leaves_nothing_running() -> None:
    with Spawner() as spawner:
        fits = {"BIG": "x" * 130_990, "PATH": os.environ["PATH"]}
        spawner.spawn_owned_supervised(Command("/bin/true", env=fits)).wait(5)
        command = mark_child(
            Command("/bin/true", env={"BIG": "x" * 131_072, "KEY": "kept"}), ChildKind.MCP, "large"
        )
        with pytest.raises(SpawnFailed) as caught:
            spawner.spawn_owned_supervised(command)
        assert caught.value.errno == errno.E2BIG
        assert "BIG (131072 bytes)" in str(caught.value)
        assert "xxx" not in str(caught.value), "names and sizes, never values"
        assert spawner.children() == []
        assert command.mark is not None
        assert command.mark.birth is not None
        assert find_carriers([command.mark.birth], open_installation().id) == []


def test_j6_a_users_own_server_beside_an_agents_is_not_touched() -> None:
    with puppet() as users, python("ready(); signal.pause()", service="agents") as agents:
        users.wait_ready()
        stop_set_now(agents.identity, PATIENT, asked_by="test", held=agents.pinned)
        assert not agents.is_running()
        users.ask()
