"""The one function that signals: every exclusion, every ground, every record. Real processes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from birthmark.core.identity import Evidence, Proof, Reason, Verdict
from birthmark.core.outcomes import Basis, Delivery, ExitStatus, Scope, Warrant
from birthmark.errors import NotSignalable, SignalFailed
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned
from birthmark.testing.puppet import puppet, wait_exited
from tests.contracts.worlds import audit
from tests.namespaces import run_in_namespaces, run_python

if sys.platform == "win32":
    pytest.skip("these are POSIX signals", allow_module_level=True)

from birthmark.platforms import posix

DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready(); obey()"
CALLER = Warrant(basis=Basis.CALLER, asked_by="a test")
MEMBER = Warrant(basis=Basis.MEMBER, asked_by="a test")
CHILD = Warrant(basis=Basis.CHILD, asked_by="a test")


def proven(pid: int, verdict: Verdict = Verdict.SAME) -> Warrant:
    proof = Proof(pid, verdict, (Evidence(Reason.SAME_INODE),))
    return Warrant(basis=Basis.PROOF, asked_by="a test", proof=proof)


def best(basis: Basis, pid: int) -> Warrant:
    """Return the best warrant of that basis which anybody could have for `pid`."""
    if basis is Basis.PROOF:
        return proven(pid)
    return Warrant(basis=basis, asked_by="a test", parent=load().parent_of(pid) if 0 < pid < 2**31 else 1)


@pytest.fixture(params=["pidfd", "no group flag", "no pidfd"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As this kernel is, as one before 6.9 is, and as one without pidfds is."""
    if request.param != "pidfd":
        monkeypatch.setattr(posix, "_group_flag", False)
    if request.param == "no pidfd":
        if sys.platform != "linux":
            pytest.skip("pidfds are Linux's")
        from birthmark.platforms import linux

        monkeypatch.setattr(linux, "_no_pidfd", True)
    name: str = request.param
    return name


# -- who is never signalled, on whatever ground ------------------------------------------


@dataclass(frozen=True)
class Never:
    pid: Callable[[], int]
    why: str
    group: bool = False


NEVER = {
    "zero": Never(lambda: 0, "no process has such a pid"),
    "zero as a group": Never(lambda: 0, "no process has such a pid", group=True),
    "everybody": Never(lambda: -1, "no process has such a pid"),
    "a group by its negative number": Never(lambda: -os.getpid(), "no process has such a pid"),
    "everybody as a group": Never(lambda: -1, "no process has such a pid", group=True),
    "a number beyond": Never(lambda: 2**31, "no process has such a pid"),
    "ourselves": Never(os.getpid, "it is ourselves"),
    "ourselves as a group": Never(os.getpid, "it is ourselves", group=True),
    "our parent": Never(os.getppid, "an ancestor of ours|pid 1"),
    "our parent as a group": Never(os.getppid, "an ancestor of ours|pid 1", group=True),
}


@pytest.mark.parametrize("name", NEVER)
@pytest.mark.parametrize("basis", list(Basis))
def test_what_is_excluded_is_refused_on_every_ground_and_recorded(name: str, basis: Basis, way: str) -> None:
    never = NEVER[name]
    pid = never.pid()
    real = 0 < pid < 2**31
    target = load().pin(pid) if real else Pinned(pid, None, -1)
    with target, audit() as records:
        for sig in (0, signal.SIGTERM, signal.SIGKILL):
            with pytest.raises(NotSignalable, match=never.why) as caught:
                load().deliver(target, sig, best(basis, pid), group=never.group)
            assert caught.value.pid == pid
    assert [(r.pid, r.result, r.basis, r.asked_by) for r in records] == [
        (pid, Delivery.REFUSED, basis, "a test")
    ] * 3
    assert all(r.detail for r in records)


@pytest.mark.parametrize("basis", list(Basis))
def test_our_own_group_is_refused_whoever_leads_it_and_its_members_are_not(basis: Basis, way: str) -> None:
    # A process whose group is led by a sibling of its own: the sibling may be signalled, the group not.
    script = f"""
from birthmark.platforms import posix
pid = fork(pause)
os.setpgid(pid, pid)
os.setpgid(0, pid)
proof = Proof(pid, Verdict.SAME, (Evidence(Reason.SAME_INODE),))
warrant = Warrant(basis=Basis.{basis.name}, asked_by='x', proof=proof, parent=os.getpid())
if {way == "no pidfd"}: linux._no_pidfd = True
if {way != "pidfd"}: posix._group_flag = False
with linux.pin(pid) as pinned:
    try: linux.deliver(pinned, signal.SIGKILL, warrant, group=True)
    except NotSignalable as err: print(err.reason)
    print(linux.deliver(pinned, 0, warrant).value)
end(pid)
"""
    assert run_python(script).splitlines() == ["it is our own process group", "sent"]


def test_a_group_with_an_ancestor_in_it_is_refused(way: str) -> None:
    # We leave the group of a sibling that our parent is in.
    script = f"""
from birthmark.platforms import posix
first = fork(pause)
os.setpgid(first, first)
os.setpgid(0, first)
def inner(writing):
    os.setsid()
    if {way == "no pidfd"}: linux._no_pidfd = True
    if {way != "pidfd"}: posix._group_flag = False
    with linux.pin(first) as pinned:
        try: linux.deliver(pinned, signal.SIGKILL, Warrant(basis=Basis.CALLER, asked_by='x'), group=True)
        except NotSignalable as err: print(err.reason, flush=True)
    os.write(writing, b'R')
os.waitpid(fork(inner), 0)
end(first)
"""
    assert run_python(script) == "an ancestor of ours is in that group\n"


def test_every_ancestor_is_refused_up_to_the_first(way: str) -> None:
    ancestors = []
    at: int | None = os.getppid()
    while at and at > 1:
        ancestors.append(at)
        at = load().parent_of(at)
    for pid in ancestors:
        with load().pin(pid) as target, pytest.raises(NotSignalable, match="ancestor"):
            load().deliver(target, 0, proven(pid))


def test_a_parent_that_dies_while_the_chain_is_read_hides_no_ancestor() -> None:
    # The race is built: whoever asks for its parent first is answered with one that has just gone.
    script = """
assert linux.become_subreaper()
first, asked = os.getpid(), os.getppid
come, go = os.pipe()

def dying():
    os.getppid = asked
    gone = asked()
    os.write(go, b'x')
    while asked() == gone: os.sched_yield()
    return gone

pid = os.fork()
if not pid:
    if os.fork():
        os.read(come, 1)
        os._exit(0)
    os.getppid = dying
    with linux.pin(first) as pinned:
        try: print(linux.deliver(pinned, 0, Warrant(basis=Basis.CALLER, asked_by='x')).value, flush=True)
        except NotSignalable as err: print(err.reason, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
os.wait()
"""
    assert run_python(script) == "it is an ancestor of ours\n"


@pytest.mark.parametrize("basis", [basis for basis in Basis if basis is not Basis.PROOF])
def test_pid_1_is_refused_unless_it_is_proven(basis: Basis) -> None:
    with load().pin(1) as target, pytest.raises(NotSignalable, match="pid 1"):
        load().deliver(target, 0, best(basis, 1))


@pytest.mark.namespaces
def test_pid_1_is_refused_to_its_descendants_even_when_it_is_proven() -> None:
    script = """
proof = Proof(1, Verdict.SAME, (Evidence(Reason.SAME_INODE),))
def inner(writing):
    with linux.pin(1) as one:
        try: linux.deliver(one, 0, Warrant(basis=Basis.PROOF, asked_by='x', proof=proof))
        except NotSignalable as err: print(err.reason, flush=True)
    os.write(writing, b'R')
assert os.getpid() == 1
os.waitpid(fork(inner), 0)
"""
    assert run_in_namespaces(script) == "it is an ancestor of ours\n"


# -- the grounds ---------------------------------------------------------------------------


@pytest.mark.parametrize("basis", list(Basis))
def test_each_ground_reaches_the_process_it_is_good_for(basis: Basis, way: str) -> None:
    with puppet() as child:
        child.wait_ready()
        with load().pin(child.pid) as target, audit() as records:
            assert load().deliver(target, signal.SIGTERM, best(basis, child.pid)) is Delivery.SENT
        child.wait_exited()
        assert child.reap() == ExitStatus(signal=signal.SIGTERM)
    assert [(r.pid, r.signal, r.scope, r.basis, r.result, r.detail) for r in records] == [
        (child.pid, signal.SIGTERM, Scope.PROCESS, basis, Delivery.SENT, "")
    ]


@pytest.mark.parametrize(
    "warrant",
    [
        Warrant(basis=Basis.PROOF, asked_by="a test"),
        proven(1),
        proven(2**31 - 1),
        Warrant(basis=Basis.DESCENT, asked_by="a test"),
        Warrant(basis=Basis.DESCENT, asked_by="a test", parent=1),
    ],
)
@pytest.mark.parametrize("group", [False, True])
def test_a_warrant_that_is_not_good_for_it_reaches_nobody(warrant: Warrant, group: bool, way: str) -> None:
    with puppet() as child:
        child.wait_ready()
        with load().pin(child.pid) as target, audit() as records, pytest.raises(NotSignalable):
            load().deliver(target, signal.SIGKILL, warrant, group=group)
        child.ask()
    assert [r.result for r in records] == [Delivery.REFUSED]


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.SAME])
def test_only_the_verdict_same_covers(verdict: Verdict) -> None:
    assert proven(7).covers(7)
    assert not proven(7, verdict).covers(7)
    with puppet() as child:
        child.wait_ready()
        with load().pin(child.pid) as target, pytest.raises(NotSignalable, match=verdict.value):
            load().deliver(target, signal.SIGKILL, proven(child.pid, verdict))
        child.ask()


def test_another_processs_child_is_not_ours(way: str) -> None:
    with puppet("pid = os.fork() or (signal.pause(), 0)[1]\ntell(pid); obey()") as parent:
        member = parent.hear_pid()
        with load().pin(member) as target, pytest.raises(NotSignalable, match="not our unreaped child"):
            load().deliver(target, signal.SIGKILL, CHILD)
        with load().pin(member) as target:
            warrant = Warrant(basis=Basis.DESCENT, asked_by="a test", parent=parent.pid)
            assert load().deliver(target, signal.SIGKILL, warrant) is Delivery.SENT
            wait_exited(target)


@pytest.mark.parametrize("basis", list(Basis))
@pytest.mark.parametrize("group", [False, True])
def test_what_was_reaped_is_gone_on_every_ground_and_that_is_recorded(
    basis: Basis, group: bool, way: str
) -> None:
    with puppet("ready()") as child:
        child.wait_exited()
        warrant = best(basis, child.pid)
        with load().pin(child.pid) as target, audit() as records:
            child.reap()
            assert load().deliver(target, signal.SIGTERM, warrant, group=group) is Delivery.GONE
    assert [(r.result, r.scope) for r in records] == [
        (Delivery.GONE, Scope.GROUP if group else Scope.PROCESS)
    ]


# -- what follows, and what the kernel says ---------------------------------------------------


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize("group", [False, True])
def test_a_stopped_process_that_is_asked_to_leave_is_set_going(
    sig: signal.Signals, group: bool, way: str
) -> None:
    script = f"signal.signal({int(sig)}, lambda *_: os._exit(3)); ready(); obey()"
    with puppet(script) as child:
        child.wait_ready()
        with load().pin(child.pid) as target, audit() as records:
            load().deliver(target, signal.SIGSTOP, CHILD)
            load().deliver(target, sig, CHILD, group=group)
        child.wait_exited()
        assert child.reap() == ExitStatus(code=3)
    # One line for what was asked; the CONT behind it is part of the asking.
    assert [r.signal for r in records] == [signal.SIGSTOP, sig]


def test_a_signal_that_asks_nobody_to_leave_sets_nobody_going(way: str) -> None:
    with puppet("signal.signal(signal.SIGUSR1, lambda *_: os._exit(3)); ready(); obey()") as child:
        child.wait_ready()
        with load().pin(child.pid) as target:
            load().deliver(target, signal.SIGSTOP, CHILD)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            load().deliver(target, signal.SIGUSR1, CHILD)
            assert os.waitid(os.P_PID, child.pid, os.WCONTINUED | os.WEXITED | os.WNOHANG) is None
            load().deliver(target, signal.SIGCONT, CHILD)
        child.wait_exited()


def test_what_the_kernel_forbids_is_said_and_recorded_and_what_it_cannot_do_too(
    as_root: None,
) -> None:
    with puppet() as child:
        child.wait_ready()
        script = f"""
from birthmark.platforms import posix
from birthmark.platforms.contract import add_audit_sink
records = []
add_audit_sink(records.append)
drop()
for group in (False, True):
    with linux.pin({child.pid}) as pinned:
        try: linux.deliver(pinned, signal.SIGKILL, Warrant(basis=Basis.CALLER, asked_by='x'), group=group)
        except NotPermitted as err: print(err)
print([r.result.value for r in records])
"""
        said = run_python(script).splitlines()
        assert said[0] == said[1]
        assert f"process {child.pid}" in said[0]
        assert said[2] == "['not_permitted', 'not_permitted']"
        child.ask()


@pytest.mark.parametrize("group", [False, True])
def test_a_signal_that_does_not_exist_fails_and_harms_nothing(group: bool) -> None:
    with puppet() as child, puppet("os.fork() or (ready(), signal.pause())") as dead:
        child.wait_ready()
        dead.wait_ready()
        dead.wait_exited()
        with load().pin(child.pid) as target, audit() as records, pytest.raises(SignalFailed):
            load().deliver(target, 999, CHILD, group=group)
        assert [r.result for r in records] == [Delivery.REFUSED]
        child.ask()
        if load().capabilities().group_signal:
            # Nor did we unlearn how to reach the group of a leader that is reaped.
            with load().pin(dead.pid) as leader:
                dead.reap()
                assert load().deliver(leader, signal.SIGKILL, MEMBER, group=True) is Delivery.SENT
                dead.wait_tree_gone()


# -- groups ------------------------------------------------------------------------------------


@pytest.mark.parametrize("leader", ["alive", "a zombie"])
def test_a_group_is_reached_while_its_leader_is_unreaped(leader: str, way: str) -> None:
    script = "os.fork() or (ready(), signal.pause())" + ("\nobey()" if leader == "alive" else "")
    with puppet(script) as child:
        child.wait_ready()
        if leader != "alive":
            child.wait_exited()
        with load().pin(child.pid) as target, audit() as records:
            assert load().deliver(target, signal.SIGKILL, CHILD, group=True) is Delivery.SENT
        child.wait_tree_gone()
    assert [(r.scope, r.result) for r in records] == [(Scope.GROUP, Delivery.SENT)]


def test_the_group_of_a_reaped_leader_is_reached_through_its_pidfd_only(way: str) -> None:
    with puppet("pid = os.fork() or (signal.pause(), 0)[1]\ntell(pid)") as child:
        member = child.hear_pid()
        child.wait_exited()
        with load().pin(child.pid) as target, load().pin(member) as left:
            child.reap()
            by_pidfd = way == "pidfd" and load().capabilities().group_signal
            expected = Delivery.SENT if by_pidfd else Delivery.GONE
            assert load().deliver(target, signal.SIGKILL, MEMBER, group=True) is expected
            load().deliver(left, signal.SIGKILL, MEMBER)
            wait_exited(left)


def test_a_process_that_leads_no_group_is_not_reached_as_one(way: str) -> None:
    with puppet("pid = os.fork() or (signal.pause(), 0)[1]\ntell(pid); obey()") as parent:
        member = parent.hear_pid()
        with load().pin(member) as target:
            assert load().deliver(target, signal.SIGKILL, MEMBER, group=True) is Delivery.GONE
            assert not load().exited(target)
        parent.ask()


def test_without_a_pidfd_another_start_time_under_the_number_is_another_process() -> None:
    # Without a pidfd the start time stands in for it: another one under the number gets nothing.
    with puppet() as child:
        child.wait_ready()
        for group in (False, True):
            target = Pinned(child.pid, None, 1)
            assert load().deliver(target, signal.SIGKILL, CALLER, group=group) is Delivery.GONE
        child.ask()
