"""When a set is empty: races built with real processes, in a puppet that is a subreaper as a keeper is."""

from __future__ import annotations

from birthmark.testing import puppet

STAGE = """
import select
from birthmark.core.outcomes import Basis, Warrant
from birthmark.keeper import descent
from birthmark.keeper.set import KeptSet
from birthmark.platforms import linux, load
from birthmark.platforms.posix import peek

assert linux.become_subreaper()
real = linux.children_of

def child_with_a_child(code):
    reading, writing = os.pipe()
    first = os.fork()
    if first == 0:
        second = os.fork()
        if second == 0:
            while True: signal.pause()
        os.write(writing, str(second).encode())
        signal.sigwait([signal.SIGUSR1])
        os._exit(code)
    second = int(os.read(reading, 20))
    os.close(reading); os.close(writing)
    return first, second

def end(pid, sig):
    with load().pin(pid) as pinned:
        load().deliver(pinned, sig, Warrant(basis=Basis.CALLER, asked_by="a test"))
        select.select([pinned.fd], [], [], 5)

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
"""


def test_who_is_left_by_a_child_that_died_after_it_was_listed_is_seen() -> None:
    """The list names only the child, which dies before it is reaped: its own child falls to us, unlisted."""
    script = """
leader = os.fork()
if leader == 0: os._exit(4)
kept = KeptSet(load().pin(leader), "a test")
while peek(leader) is None: pass
first, second = child_with_a_child(0)
def list_then_lose(pid):
    found = real(pid)
    if first in found: end(first, signal.SIGUSR1)
    return found
linux.children_of = list_then_lose
tell([kept.take_in(), real(os.getpid()) == [leader, second]])
end(second, signal.SIGKILL)
tell([kept.take_in(), real(os.getpid()) == [leader]])
kept.bury()
tell([kept.status.code, real(os.getpid())])
"""
    with puppet(STAGE + script) as stage:
        assert stage.hear() == [False, True]
        assert stage.hear() == [True, True]
        assert stage.hear() == [4, []]


def test_who_is_left_by_a_leader_that_dies_while_we_look_is_seen() -> None:
    """The leader is asked first. One that dies after that is not known to be dead in this look."""
    script = """
leader, second = child_with_a_child(6)
kept = KeptSet(load().pin(leader), "a test")
def lose_after(pid):
    found = real(pid)
    if peek(leader) is None: end(leader, signal.SIGUSR1)
    return found
linux.children_of = lose_after
tell([kept.take_in(), kept.take_in(), kept.status.code])
end(second, signal.SIGKILL)
tell(kept.take_in())
kept.bury()
"""
    with puppet(STAGE + script) as stage:
        assert stage.hear() == [False, False, 6]
        assert stage.hear() is True


def test_a_member_is_sent_each_signal_once_and_listed_once() -> None:
    script = """
leader, second = child_with_a_child(0)
kept = KeptSet(load().pin(leader), "a test")
kept.send(signal.SIGCONT); kept.send(signal.SIGCONT); kept.send(signal.SIGCONT, again=True)
while not kept.take_in():
    kept.insist()  # again, since who falls to us meanwhile may not be signalled as somebody else's child
    signal.sigtimedwait([signal.SIGCHLD], 0.01)
found = kept.receipt("x", empty=True)
kept.bury()
tell([[each.found.value, [name for name, _ in each.sent], each.end] for each in found.members])
tell(found.termination.value)
"""
    with puppet("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])" + STAGE + script) as stage:
        assert stage.hear() == [
            ["leader", ["SIGCONT", "SIGKILL"], "killed"],
            ["descendant", ["SIGCONT", "SIGKILL"], "killed"],
        ]
        assert stage.hear() == "killed"
