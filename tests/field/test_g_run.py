"""Field cases of family G: stops that hang, escalate wrongly or signal twice, as far as `birthmark run` answers them."""

from __future__ import annotations

import signal
import sys

import pytest

from birthmark.core.outcomes import Basis, Warrant
from birthmark.platforms import load
from birthmark.testing import wait_exited
from tests.e2e.fronts import DEAF, SETSID_DEAF, STAYS, TELLS_SIGNALS, front, pinned, send, send_group, until
from tests.e2e.test_run_terminal import INTERRUPT, shell

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="`birthmark run` needs Linux's subreaper")

SAVES_ON_THE_FIRST = """\
def first(*_):
    signal.signal(signal.SIGINT, lambda *_: os._exit(99))
    tell("saving")
    sys.stdin.readline()
    tell("saved")
    os._exit(0)
signal.signal(signal.SIGINT, first)
ready()
"""
"""Script: the first SIGINT makes it save until a line comes; a second one would end it half-way."""


def test_g1_a_command_deaf_to_every_request_is_killed_after_its_grace() -> None:
    with front(DEAF + "ready()" + STAYS, "--grace", "100ms") as child:
        child.wait_ready()
        send(child, signal.SIGTERM)
        child.wait_tree_gone()
        assert child.reap().code == 128 + signal.SIGKILL


def test_g4_a_stopped_command_gets_its_request_and_is_continued() -> None:
    script = """\
signal.signal(signal.SIGTERM, lambda *_: (tell("asked"), os._exit(0)))
tell(os.getpid())
"""
    with front(script + STAYS, "--grace", "1h") as child, pinned(child.hear_pid()) as leader:
        load().deliver(leader, signal.SIGSTOP, caller())
        until(lambda: "T" in state_of(leader.pid))
        send(child, signal.SIGTERM)
        assert child.hear() == "asked"
        child.wait_tree_gone()
        assert child.reap().code == 0


def test_g5_an_interrupt_typed_at_the_terminal_is_seen_once() -> None:
    with shell(TELLS_SIGNALS + "signal.signal(signal.SIGUSR2, lambda *_: ready()); ready()" + STAYS) as (
        job,
        keys,
        pid,
    ):
        job.wait_ready()
        with pinned(pid) as the_front:
            for _ in range(3):
                keys.type(INTERRUPT)
                assert job.hear() == "SIGINT"
                load().deliver(the_front, signal.SIGUSR2, caller())
                job.wait_ready()  # a second SIGINT would have come first


@pytest.mark.parametrize("to", ["the front", "the group"])
def test_g6_a_program_that_saves_on_its_first_interrupt_is_not_interrupted_again(to: str) -> None:
    with front(SAVES_ON_THE_FIRST + STAYS, "--grace", "1h") as child:
        child.wait_ready()
        (send if to == "the front" else send_group)(child, signal.SIGINT)
        assert child.hear() == "saving"
        child.say("done")
        assert child.hear() == "saved"
        assert child.reap().code == 0


def test_g6_the_same_at_a_terminal() -> None:
    script = SAVES_ON_THE_FIRST.replace("sys.stdin.readline()", "signal.sigwait([signal.SIGUSR2])")
    script = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])\n" + script
    with shell(script + STAYS) as (job, keys, pid):
        job.wait_ready()
        keys.type(INTERRUPT)
        assert job.hear() == "saving"
        with pinned(pid) as the_front:
            load().deliver(the_front, signal.SIGUSR2, caller())
            assert job.hear() == "saved"
            assert job.hear() == ["ended", 0]


@pytest.mark.parametrize("presses", [1, 2])
def test_g10_an_interrupt_leaves_no_descendant_in_another_session(presses: int) -> None:
    script = SETSID_DEAF + "signal.signal(signal.SIGINT, signal.SIG_DFL); ready()" + STAYS
    with shell(script, "--grace", "200ms") as (job, keys, _), pinned(job.hear_pid()) as descendant:
        job.wait_ready()
        keys.type(INTERRUPT * presses)
        wait_exited(descendant)
        assert job.hear() == ["ended", 130]


def test_g14_a_server_that_waits_for_its_input_to_end_needs_no_signal() -> None:
    with front(
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(99)); ready(); stay()", "--eof-grace", "1h"
    ) as child:
        child.wait_ready()
        child.close_stdin()
        child.wait_tree_gone()
        assert child.reap().code == 0


def caller() -> Warrant:
    return Warrant(basis=Basis.CALLER, asked_by="a test")


def state_of(pid: int) -> str:
    with load().pin(pid) as held:
        seen = load().observe(held, environ=False)
    return "" if seen is None else seen.state
