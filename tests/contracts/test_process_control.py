"""What `ProcessControl` promises, on the kernel and on the fake, with pidfds and without."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from birthmark.core.identity import (
    Evidence,
    Proof,
    Reason,
    Verdict,
)
from birthmark.core.judging import judge
from birthmark.core.outcomes import Basis, Delivery, ExitStatus, Scope, Warrant
from birthmark.errors import NotSignalable, ProcessGone
from tests.contracts.worlds import NAMES, World, audit, world

CHILD = Warrant(basis=Basis.CHILD, asked_by="a contract test")


@pytest.fixture(params=NAMES)
def w(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world(request.param, monkeypatch) as made:
        yield made


def test_a_live_process_is_pinned_and_seen(w: World) -> None:
    pid = w.born()
    with w.control.pin(pid) as pinned:
        seen = w.control.observe(pinned)
        assert seen is not None
        assert (seen.pid, seen.pgid, seen.session, seen.exited) == (pid, pid, pid, False)
        assert seen.start_ticks == pinned.start_ticks == w.control.start_ticks_of(pid)
        assert seen.facts == w.control.facts()
        assert not w.control.exited(pinned)
        assert (pinned.fd is None) == (w.control.exit_fd(pinned) is None)


def test_a_glance_shows_the_start_of_the_environment_of_what_has_no_tag(w: World) -> None:
    tag, block = w.control.glance(w.born())
    assert tag is None
    assert b"PATH=" in block


def test_a_zombie_can_still_be_pinned_and_is_seen_as_exited(w: World) -> None:
    pid = w.born()
    w.ends(pid, 7)
    with w.control.pin(pid) as pinned:
        assert w.control.exited(pinned)
        seen = w.control.observe(pinned)
        assert seen is not None
        assert seen.exited
        w.wait_exited(pinned)
    assert w.control.is_zombie(pid)
    assert w.control.group_of(pid) == pid
    assert w.control.session_of(pid) == pid


def test_looking_never_reaps(w: World) -> None:
    pid = w.born()
    w.ends(pid, 7)
    with w.control.pin(pid) as pinned:
        w.control.observe(pinned)
        w.control.exited(pinned)
    w.control.is_zombie(pid)
    assert w.control.is_our_child(pid)
    assert w.control.reap(pid) == ExitStatus(code=7)
    assert not w.control.is_our_child(pid)


def test_a_reaped_process_is_gone_for_its_pin_and_for_its_number(w: World) -> None:
    pid = w.born()
    with w.control.pin(pid) as pinned:
        w.ends(pid, 0)
        w.control.reap(pid)
        assert w.control.observe(pinned) is None
        assert w.control.exited(pinned)
        with pytest.raises(ProcessGone):
            w.control.pin(pid)
    assert w.control.start_ticks_of(pid) is None
    assert w.control.parent_of(pid) is None
    assert w.control.group_of(pid) is None
    assert w.control.session_of(pid) is None
    assert w.control.glance(pid) == (None, b"")
    assert not w.control.is_zombie(pid)
    assert pid not in w.control.all_pids()


def test_what_lives_is_not_reaped_and_what_is_not_ours_has_no_known_status(w: World) -> None:
    pid = w.born()
    assert w.control.reap(pid) is None
    assert w.control.reap(w.fork_of(pid)) == ExitStatus()


@pytest.mark.parametrize("pid", [0, -1, 2**31, 2**63])
def test_no_number_outside_the_range_is_pinned(w: World, pid: int) -> None:
    with pytest.raises(ValueError, match=str(pid)):
        w.control.pin(pid)


def test_the_number_of_nobody_is_gone(w: World) -> None:
    with pytest.raises(ProcessGone):
        w.control.pin(2**31 - 1)


def test_the_same_process_is_judged_the_same_through_every_pin(w: World) -> None:
    pid = w.born()
    with w.control.pin(pid) as first, w.control.pin(pid) as second:
        seen, again = w.control.observe(first), w.control.observe(second)
        assert seen is not None
        assert again is not None
        verdict = judge(seen.identity(), again).verdict
        assert verdict is (
            Verdict.SAME if w.control.capabilities().pidfs_inode and first.fd else Verdict.UNKNOWN
        )
        assert judge(seen.identity(), again, held=True).verdict is Verdict.SAME


def test_a_tree_is_listed_by_parent_and_by_group(w: World) -> None:
    pid = w.born()
    fork = w.fork_of(pid)
    assert w.control.children_of(pid) == [fork]
    assert w.control.parent_of(fork) == pid
    assert w.control.parent_of(pid) == w.own_pid
    assert sorted(w.control.group_members(pid)) == sorted([pid, fork])
    assert {pid, fork} <= set(w.control.all_pids())
    assert w.control.is_our_child(pid)
    assert not w.control.is_our_child(fork)


def test_a_signal_reaches_the_process_it_was_pinned_for(w: World) -> None:
    pid = w.born()
    with w.control.pin(pid) as pinned:
        with audit() as records:
            assert w.control.deliver(pinned, signal.SIGTERM, CHILD) is Delivery.SENT
        w.wait_exited(pinned)
    assert w.control.reap(pid) == ExitStatus(signal=signal.SIGTERM)
    assert [(each.pid, each.signal, each.scope, each.basis, each.result) for each in records] == [
        (pid, signal.SIGTERM, Scope.PROCESS, Basis.CHILD, Delivery.SENT)
    ]


def test_a_deaf_process_outlives_term_and_not_kill(w: World) -> None:
    pid = w.born(deaf=True)
    with w.control.pin(pid) as pinned:
        w.control.deliver(pinned, signal.SIGTERM, CHILD)
        fork = w.fork_of(pid)  # an answer after the signal: it was outlived
        w.control.deliver(pinned, signal.SIGKILL, CHILD)
        w.wait_exited(pinned)
    assert fork != pid
    assert w.control.reap(pid) == ExitStatus(signal=signal.SIGKILL)


def test_a_group_signal_reaches_every_member(w: World) -> None:
    pid = w.born()
    fork = w.fork_of(pid)
    with w.control.pin(pid) as pinned, w.control.pin(fork) as member:
        with audit() as records:
            assert w.control.deliver(pinned, signal.SIGKILL, CHILD, group=True) is Delivery.SENT
        w.wait_exited(pinned)
        w.wait_exited(member)
    assert [each.scope for each in records] == [Scope.GROUP]


def test_a_signal_to_a_process_that_is_gone_says_so(w: World) -> None:
    pid = w.born()
    with w.control.pin(pid) as pinned:
        w.ends(pid, 0)
        proof = Proof(pid, Verdict.SAME, (Evidence(Reason.SAME_INODE),))
        w.control.reap(pid)
        with audit() as records:
            answer = w.control.deliver(
                pinned, signal.SIGTERM, Warrant(basis=Basis.PROOF, asked_by="x", proof=proof)
            )
        assert answer is Delivery.GONE
        assert [each.result for each in records] == [Delivery.GONE]


def test_a_child_that_was_reaped_is_gone_and_not_refused(w: World) -> None:
    pid = w.born()
    with w.control.pin(pid) as pinned:
        w.ends(pid, 0)
        w.control.reap(pid)
        descent = Warrant(basis=Basis.DESCENT, asked_by="x", parent=w.own_pid)
        assert w.control.deliver(pinned, signal.SIGTERM, CHILD) is Delivery.GONE
        assert w.control.deliver(pinned, signal.SIGTERM, descent) is Delivery.GONE


def test_a_zombie_still_receives_and_nothing_comes_of_it(w: World) -> None:
    pid = w.born()
    w.ends(pid, 7)
    with w.control.pin(pid) as pinned:
        assert w.control.deliver(pinned, signal.SIGKILL, CHILD) is Delivery.SENT
    assert w.control.reap(pid) == ExitStatus(code=7)


@pytest.mark.parametrize("basis", list(Basis))
@pytest.mark.parametrize("group", [False, True])
def test_ourselves_and_our_own_group_are_never_signalled(w: World, basis: Basis, group: bool) -> None:
    proof = Proof(w.own_pid, Verdict.SAME, (Evidence(Reason.SAME_INODE),))
    warrant = Warrant(basis=basis, asked_by="x", proof=proof, parent=1)
    with w.control.pin(w.own_pid) as pinned, audit() as records:
        with pytest.raises(NotSignalable, match="ourselves"):
            w.control.deliver(pinned, 0, warrant, group=group)
    assert [each.result for each in records] == [Delivery.REFUSED]


def test_our_parent_is_never_signalled(w: World) -> None:
    parent = w.control.parent_of(w.own_pid)
    assert parent is not None
    if parent == 0:
        pytest.skip("our parent is outside this pid namespace")
    proof = Proof(parent, Verdict.SAME, (Evidence(Reason.SAME_INODE),))
    with w.control.pin(parent) as pinned, pytest.raises(NotSignalable, match="ancestor"):
        w.control.deliver(pinned, 0, Warrant(basis=Basis.PROOF, asked_by="x", proof=proof))


def test_pid_1_is_signalled_on_nobodys_word(w: World) -> None:
    with w.control.pin(1) as pinned, pytest.raises(NotSignalable):
        w.control.deliver(pinned, 0, Warrant(basis=Basis.CALLER, asked_by="x"))


@pytest.mark.parametrize("verdict", [Verdict.DIFFERENT, Verdict.UNKNOWN, Verdict.GONE])
def test_a_proof_without_the_verdict_same_covers_nothing(w: World, verdict: Verdict) -> None:
    pid = w.born()
    proof = Proof(pid, verdict, (Evidence(Reason.NO_MARK),))
    with w.control.pin(pid) as pinned, pytest.raises(NotSignalable, match="not proven ours"):
        w.control.deliver(pinned, 0, Warrant(basis=Basis.PROOF, asked_by="x", proof=proof))


def test_a_proof_of_one_process_covers_no_other(w: World) -> None:
    one, other = w.born(), w.born()
    proof = Proof(one, Verdict.SAME, (Evidence(Reason.SAME_INODE),))
    with w.control.pin(other) as pinned, pytest.raises(NotSignalable, match="not proven ours"):
        w.control.deliver(pinned, 0, Warrant(basis=Basis.PROOF, asked_by="x", proof=proof))


def test_descent_counts_only_under_the_parent_it_was_found_under(w: World) -> None:
    pid = w.born()
    fork = w.fork_of(pid)
    with w.control.pin(fork) as pinned:
        assert (
            w.control.deliver(pinned, 0, Warrant(basis=Basis.DESCENT, asked_by="x", parent=pid))
            is Delivery.SENT
        )
        with pytest.raises(NotSignalable, match="parent"):
            w.control.deliver(pinned, 0, Warrant(basis=Basis.DESCENT, asked_by="x", parent=w.own_pid))
        with pytest.raises(NotSignalable, match="child"):
            w.control.deliver(pinned, 0, CHILD)


def test_closing_a_pin_twice_is_harmless(w: World) -> None:
    pinned = w.control.pin(w.born())
    pinned.close()
    pinned.close()
    assert pinned.fd is None
