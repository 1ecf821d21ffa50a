"""A command under `birthmark run` is explained by its papers, without any supervisor."""

from __future__ import annotations

import sys

import pytest

from tests.e2e.fronts import front
from tests.interfaces.running import process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads marks from procfs")


def test_a_command_under_run_is_ours_while_it_lives_and_gone_afterwards() -> None:
    with front("tell(os.getpid()); obey()", "--name", "time") as child:
        pid = child.hear_pid()
        child.ask()
        said = process("explain", "--json", str(pid))
        assert (said.code, said.json["owner"], said.json["found"], said.json["service"]) == (
            0,
            "ours",
            "leader",
            "time",
        )
        assert process("explain", "--json", "time").json["pid"] == pid
        child.close_stdin()
        child.wait_tree_gone()
        child.reap()
    assert process("explain", str(pid)).code == 3
