"""Field cases of macOS, as far as Linux can stand in: environments that are hidden, groups that are killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from birthmark.core.identity import (
    EnvironState,
    Identity,
    Reason,
    Sighting,
    Verdict,
)
from birthmark.core.judging import judge, judge_mark
from birthmark.core.markers import ChildKind, mark_entries
from birthmark.core.outcomes import Basis, Delivery, Warrant
from birthmark.core.service import ServiceName, birth_id, installation_id
from birthmark.platforms import darwin, load
from birthmark.testing import puppet

BIRTH = birth_id("0123456789abcdef" * 2)
OURS = installation_id("aa" * 16)
TIME = ServiceName("time")
MARKS = mark_entries(kind=ChildKind.MCP, service=TIME, installation=OURS, birth=BIRTH)


@pytest.fixture
def hidden() -> Iterator[tuple[Identity, Sighting]]:
    """A real child of ours and its record; what is seen of it is what a Mac shows: no environment, no tag."""
    with puppet(env=dict(MARKS)) as child:
        child.wait_ready()
        with load().pin(child.pid) as pinned:
            seen = load().observe(pinned)
        assert seen is not None
        identity = seen.identity(birth=BIRTH, installation=OURS, kind=ChildKind.MCP, service=TIME)
        state, block = darwin.environ_state(b"\1\0\0\0/bin/srv\0\0\0\0srv\0")
        yield identity, replace(seen, environ_state=state, environ=block, tag=None)


def test_m1_an_environment_that_reads_as_empty_is_unknown(hidden: tuple[Identity, Sighting]) -> None:
    """No orphan is claimed for it, and none is declared foreign."""
    identity, seen = hidden
    assert seen.environ_state is EnvironState.UNSUPPORTED
    by_mark = judge_mark(seen.pid, seen, kind=ChildKind.MCP, service="time", installation=OURS)
    assert (by_mark.verdict, by_mark.reason) == (Verdict.UNKNOWN, Reason.ENVIRON_UNSUPPORTED)
    assert judge(replace(identity, inode=None), replace(seen, inode=None)).verdict is Verdict.UNKNOWN


def test_m1_other_proofs_carry_the_decision(hidden: tuple[Identity, Sighting]) -> None:
    identity, seen = hidden
    assert judge(identity, seen, held=True).reason is Reason.HELD_SINCE_BIRTH
    if seen.inode is not None:
        assert judge(identity, seen).reason is Reason.SAME_INODE
    assert judge(identity, replace(seen, start_ticks=seen.start_ticks + 1)).verdict is Verdict.DIFFERENT


def test_m2_a_record_and_a_reuse_proof_number_are_enough_to_find_a_child_again(
    hidden: tuple[Identity, Sighting],
) -> None:
    """After a crash of the supervisor nothing is held any more, and no mark can be read."""
    identity, seen = hidden
    if seen.inode is None:
        pytest.skip("this kernel has no number that is never reused (Linux 6.9 has)")
    found = Identity.from_dict(dict(identity.to_dict()))
    proof = judge(found, seen)
    assert proof.verdict is Verdict.SAME
    with load().pin(found.pid) as pinned:
        warrant = Warrant(basis=Basis.PROOF, asked_by="a test", proof=proof)
        assert load().deliver(pinned, 0, warrant) is Delivery.SENT


SUCCESSION = """
# The job: starts its successor, then ends, and with it its whole group, as launchd has it.
signal.signal(signal.SIGTERM, signal.SIG_DFL)
pid = os.fork()
if not pid:
    if sys.argv[1] == 'session': os.setsid()
    tell(os.getpid())
    for line in sys.stdin: ready()
    os._exit(0)
while sys.stdin: time.sleep(600)
"""


def test_m4_a_successor_in_a_session_of_its_own_outlives_the_group_of_the_old_one() -> None:
    with puppet(SUCCESSION, argv=["session"]) as job:
        successor = job.hear_pid()
        assert os.getsid(successor) == successor
        end_group(job.pid)
        job.wait_exited()
        job.ask()  # an answer: the successor serves


def test_m4_a_successor_in_the_old_ones_group_does_not() -> None:
    """Otherwise the test above would prove nothing."""
    with puppet(SUCCESSION, argv=["group"]) as job:
        successor = job.hear_pid()
        assert os.getpgid(successor) == job.pid
        end_group(job.pid)
        job.wait_tree_gone()


def end_group(pid: int) -> None:
    with load().pin(pid) as leader:
        warrant = Warrant(basis=Basis.CHILD, asked_by="launchd's stand-in")
        assert load().deliver(leader, 15, warrant, group=True) is Delivery.SENT
