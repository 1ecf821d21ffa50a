"""Field cases of family A: servers and agents left behind when their client ends, as far as `birthmark run` answers them."""

from __future__ import annotations

import signal
import sys

import pytest

from birthmark.testing import puppet, wait_exited
from tests.e2e.fronts import HOST, RUN, STAYS, command, environment, pinned, send
from tests.e2e.test_run_terminal import shell

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="`birthmark run` needs Linux's subreaper")

IGNORES_EOF = "tell(os.getpid())" + STAYS

LEAVES = """\
import subprocess
front = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
sys.stdin.readline()
os._exit(0)
"""


@pytest.mark.parametrize("ending", ["normal exit", "SIGKILL"])
def test_a2_a_server_that_ignores_its_end_of_input_is_gone_when_its_client_is(ending: str) -> None:
    words = command(IGNORES_EOF, "--eof-grace", "50ms")
    with puppet(LEAVES, argv=words, env=environment()) as client, pinned(client.hear_pid()) as server:
        if ending == "SIGKILL":
            send(client, signal.SIGKILL)
        else:
            client.say("leave")
        client.wait_exited()
        wait_exited(server)
        client.wait_tree_gone()


def test_a2_the_same_when_its_terminal_is_closed() -> None:
    with shell(IGNORES_EOF, "--eof-grace", "50ms") as (job, keyboard, _), pinned(job.hear_pid()) as server:
        keyboard.hang_up()
        wait_exited(server)
        job.wait_tree_gone()


def test_a6_a_one_shot_program_that_hard_exits_leaves_no_helper() -> None:
    words = command(IGNORES_EOF, "--eof-grace", "10ms", "--kind", "agent")
    for _ in range(20):
        with puppet(LEAVES, argv=words, env=environment()) as program, pinned(program.hear_pid()) as server:
            program.say("leave")
            program.wait_exited()
            wait_exited(server)
            program.wait_tree_gone()


def test_a10_a_closed_terminal_window_ends_every_helper_of_the_session() -> None:
    # Twenty helpers, each in a session of its own, as a client of a terminal starts them.
    script = """\
helpers = []
for _ in range(20):
    helper = os.fork()
    if helper == 0:
        os.setsid()
        while True: signal.pause()
    helpers.append(helper)
tell(os.getpid())
"""
    with shell(script + STAYS) as (job, keyboard, _), pinned(job.hear_pid()) as client:
        keyboard.hang_up()
        wait_exited(client)
        job.wait_tree_gone()  # the helpers hold the lifeline, too


def test_the_host_of_these_cases_leaves_the_server_behind_without_run() -> None:
    """Otherwise the cases above would pass on a client that ends its servers by itself."""
    words = command(IGNORES_EOF)[len(RUN) + 1 :]
    with puppet(HOST, argv=words, env=environment()) as client:
        with pinned(client.hear_pid()) as server:
            assert client.hear_pid() == server.pid
            send(client, signal.SIGKILL)
            client.wait_exited()
            with pytest.raises(TimeoutError):
                wait_exited(server, within_s=0)
