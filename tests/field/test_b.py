"""Field cases: wrapper trees."""

from __future__ import annotations

import os
import signal

from birthmark import Termination, stop_set_now
from tests.field.staging import PATIENT, QUICK, python, shell, wait_lifeline_end


def test_b1_a_wrapper_that_does_not_pass_signals_on_is_stopped_with_what_it_wraps() -> None:
    with shell("sh -c 'echo R; exec sleep 300'; true", readies=1) as child:
        receipt = stop_set_now(child.identity, PATIENT, asked_by="test", held=child.pinned)
        assert receipt.termination is Termination.EXITED
        assert len(receipt.members) == 2, "the receipt says how many there were"
        wait_lifeline_end(child)


def test_b3_a_chain_whose_top_was_killed_from_outside_is_found_and_stopped() -> None:
    script = "os.fork() or os.fork(); ready(); signal.pause()"
    with python(script, readies=3) as child:
        # Somebody else kills the top only, as users do.
        os.kill(child.pid, signal.SIGKILL)
        child.wait(5)
        receipt = stop_set_now(child.identity, PATIENT, asked_by="test")
        assert len(receipt.members) == 2
        wait_lifeline_end(child)


def test_b4_escalation_does_not_depend_on_what_a_wrapper_does_with_signals() -> None:
    with shell('trap "" INT TERM; echo R; sleep 300 & wait', readies=1) as child:
        receipt = stop_set_now(child.identity, QUICK, asked_by="test", held=child.pinned)
        assert receipt.termination is Termination.KILLED
        wait_lifeline_end(child)


def test_b9_a_member_that_left_the_session_is_found_also_after_the_leader_ended() -> None:
    with shell("setsid sh -c 'echo R; exec sleep 300' & read line; exit 0", readies=1) as child:
        child.close_stdin()
        child.wait(5)
        receipt = stop_set_now(child.identity, PATIENT, asked_by="test")
        assert [member.found.value for member in receipt.members] == ["mark"]
        wait_lifeline_end(child)
