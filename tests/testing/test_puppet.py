"""The puppet itself, on real children: what other tests rely on."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from birthmark.platforms import load
from birthmark.testing import puppet, wait_exited


@contextmanager
def ended_after(*pids: int) -> Iterator[None]:
    """Prove that these live now, and have ended once the block is left and a moment has passed."""
    with ExitStack() as stack:
        held = [stack.enter_context(load().pin(pid)) for pid in pids]
        assert not any(load().exited(pinned) for pinned in held)
        yield
        for pinned in held:
            wait_exited(pinned)


def test_a_puppet_answers_and_is_gone_after_its_block() -> None:
    with puppet() as child:
        child.wait_ready()
        child.ask()
        assert child.pid == os.getpgid(child.pid) == os.getsid(child.pid)
    assert load().start_ticks_of(child.pid) is None


def test_a_puppet_without_a_session_leads_a_group_in_ours() -> None:
    with puppet(session=False) as child:
        child.wait_ready()
        assert os.getpgid(child.pid) == child.pid
        assert os.getsid(child.pid) == os.getsid(0)


def test_a_puppet_tells_values_in_order() -> None:
    with puppet("tell(os.getpid()); tell(sys.argv[1:]); ready(); stay()", argv=["a b", "=c"]) as child:
        assert child.hear_pid() == child.pid
        assert child.hear() == ["a b", "=c"]
        child.wait_ready()


def test_a_puppet_has_the_environment_it_was_given_and_no_mark() -> None:
    os.environ["BIRTHMARK_X"] = "1"
    try:
        with puppet("tell(sorted(os.environ))", env={"ONLY": "this"}) as child:
            assert "ONLY" in str(child.hear())
        with puppet("tell([n for n in os.environ if n.startswith('BIRTHMARK_')])") as child:
            assert child.hear() == []
    finally:
        del os.environ["BIRTHMARK_X"]


def test_a_fork_deaf_to_everything_dies_with_the_block() -> None:
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork(); tell(os.getpid()); time.sleep(600)"
    with ExitStack() as later, puppet(script) as child:
        pids = {child.hear_pid(), child.hear_pid()}
        assert child.pid in pids
        later.enter_context(ended_after(*pids))


def test_a_fork_in_a_session_of_its_own_dies_with_the_block() -> None:
    with (
        ExitStack() as later,
        puppet("if not os.fork(): os.setsid()\ntell(os.getpid()); time.sleep(600)") as child,
    ):
        later.enter_context(ended_after(child.hear_pid(), child.hear_pid()))


def test_an_orphan_leaves_when_stdin_ends() -> None:
    script = "if os.fork(): os._exit(0)\nos.setsid(); tell(os.getpid()); stay()"
    with ExitStack() as later, puppet(script) as child:
        orphan = child.hear_pid()
        child.wait_exited()
        later.enter_context(ended_after(orphan))


def test_the_tree_is_gone_only_when_its_last_member_is() -> None:
    with puppet("if os.fork(): os._exit(0)\nready(); stay()") as child:
        child.wait_ready()
        child.wait_exited()
        with pytest.raises(TimeoutError):
            child.wait_tree_gone(within_s=0)
        child.close_stdin()
        child.wait_tree_gone()


def test_a_puppet_that_does_not_get_ready_is_a_timeout() -> None:
    with puppet("stay()") as child, pytest.raises(TimeoutError):
        child.wait_ready(within_s=0.05)


def test_a_puppet_that_died_before_it_was_ready_says_so() -> None:
    with puppet("os._exit(3)") as child:
        with pytest.raises(EOFError):
            child.wait_ready()
        assert child.reap().code == 3


def test_its_status_is_a_code_or_a_signal() -> None:
    with puppet("ready(); os.kill(os.getpid(), signal.SIGKILL)") as child:
        child.wait_ready()
        assert child.reap().signal == signal.SIGKILL


def test_an_unreaped_puppet_is_readable_on_its_pidfd() -> None:
    if load().capabilities().pidfd:
        with puppet("ready(); stay()") as child:
            child.wait_ready()
            assert select.select([child.pidfd], [], [], 0)[0] == []
            child.close_stdin()
            child.wait_exited()
            assert select.select([child.pidfd], [], [], 0)[0] == [child.pidfd]


def test_an_error_in_the_block_still_ends_the_puppet() -> None:
    with pytest.raises(ZeroDivisionError), puppet() as child:
        child.wait_ready()
        raise ZeroDivisionError
    assert load().start_ticks_of(child.pid) is None
