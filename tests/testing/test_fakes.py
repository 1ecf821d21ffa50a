"""What the fake can do that no kernel does on request, with values."""

from __future__ import annotations

import select
import signal
from collections.abc import Iterator

import pytest

from birthmark.core.identity import Reason, Verdict
from birthmark.core.judging import judge
from birthmark.core.outcomes import Basis, Delivery, Warrant
from birthmark.core.service import birth_id, installation_id
from birthmark.errors import LookFailed, NotPermitted, ProcessGone
from birthmark.platforms.contract import ProcessControl
from birthmark.testing import FakeControl

BIRTH = birth_id("ab" * 16)
INSTALLATION = installation_id("cd" * 16)
CHILD = Warrant(basis=Basis.CHILD, asked_by="a test")


@pytest.fixture
def fake() -> Iterator[FakeControl]:
    with FakeControl() as control:
        yield control


def test_it_is_a_process_control(fake: FakeControl) -> None:
    control: ProcessControl = fake
    assert control.capabilities().platform == "fake"


def test_a_birth_is_the_same_by_its_mark(fake: FakeControl) -> None:
    process, identity = fake.add_birth("time", birth=BIRTH, installation=INSTALLATION)
    with fake.pin(process.pid) as pinned:
        assert judge(identity, fake.observe(pinned)).reason is Reason.MARK_OF_THIS_BIRTH


def test_a_recycled_pid_is_another_process_though_its_tick_is_the_same(fake: FakeControl) -> None:
    process, identity = fake.add_birth("time", birth=BIRTH, installation=INSTALLATION)
    with fake.pin(process.pid) as held:
        stranger = fake.recycle(process.pid)
        assert (stranger.pid, stranger.start_ticks) == (process.pid, process.start_ticks)
        assert fake.observe(held) is None
        assert fake.deliver(held, signal.SIGKILL, Warrant(basis=Basis.CALLER, asked_by="x")) is Delivery.GONE
        with fake.pin(process.pid) as pinned:
            assert judge(identity, fake.observe(pinned)).reason is Reason.OTHER_INODE
    assert stranger.alive


def test_without_pidfds_a_recycled_pid_of_the_same_tick_is_what_it_is_a_gap() -> None:
    with FakeControl(pidfd=False) as fake:
        process, identity = fake.add_birth("time", birth=BIRTH, installation=INSTALLATION)
        held = fake.pin(process.pid)
        fake.recycle(process.pid)
        assert judge(identity, fake.observe(held)).verdict is Verdict.UNKNOWN
        fake.recycle(process.pid, same_tick=False)
        assert fake.observe(held) is None


def test_an_environment_can_be_denied_destroyed_and_settling(fake: FakeControl) -> None:
    process, identity = fake.add_birth("time", birth=BIRTH, installation=INSTALLATION, tagged=False)
    with fake.pin(process.pid) as pinned:
        with fake.settling(process.pid):
            assert judge(identity, fake.observe(pinned)).verdict is Verdict.SAME  # by its inode
        fake.deny_environ(process.pid)
        assert Reason.ENVIRON_DENIED in [e.reason for e in judge(identity, fake.observe(pinned)).evidence]
        fake.destroy_environ(process.pid)
        assert Reason.ENVIRON_DESTROYED in [e.reason for e in judge(identity, fake.observe(pinned)).evidence]


def test_an_exit_wakes_whoever_waits_on_any_pin(fake: FakeControl) -> None:
    process = fake.add()
    with fake.pin(process.pid) as one, fake.pin(process.pid) as two:
        fds = [fd for pinned in (one, two) if (fd := fake.exit_fd(pinned)) is not None]
        assert select.select(fds, [], [], 0)[0] == []
        fake.exit(process.pid)
        assert select.select(fds, [], [], 0)[0] == fds
        with fake.pin(process.pid) as late:
            assert late.fd is not None
            assert select.select([late.fd], [], [], 0)[0] == [late.fd]
        assert len(fds) == 2


def test_orphans_fall_to_init_or_to_a_subreaper(fake: FakeControl) -> None:
    parent = fake.add()
    orphan = fake.fork(parent)
    fake.exit(parent.pid)
    assert orphan.ppid == 1
    fake.become_subreaper()
    parent = fake.add()
    orphan = fake.fork(parent)
    fake.exit(parent.pid)
    assert fake.is_our_child(orphan.pid)


def test_another_users_process_refuses_and_an_unkillable_one_stays(fake: FakeControl) -> None:
    process = fake.add()
    with fake.pin(process.pid) as pinned:
        process.permitted = False
        with pytest.raises(NotPermitted):
            fake.deliver(pinned, signal.SIGTERM, CHILD)
        process.permitted, process.unkillable = True, True
        assert fake.deliver(pinned, signal.SIGKILL, CHILD) is Delivery.SENT
    assert process.alive
    assert [each.result for each in fake.delivered] == [Delivery.NOT_PERMITTED, Delivery.SENT]
    assert fake.signals_to(process.pid) == [signal.SIGKILL]


def test_a_process_can_answer_a_signal_in_its_own_way(fake: FakeControl) -> None:
    process = fake.add(ignores={signal.SIGTERM})
    process.on_signal = lambda it, sig: fake.fork(it) if sig == signal.SIGTERM else None
    with fake.pin(process.pid) as pinned:
        fake.deliver(pinned, signal.SIGTERM, CHILD)
    assert process.alive
    assert len(fake.children_of(process.pid)) == 1


def test_a_blind_control_never_says_nobody(fake: FakeControl) -> None:
    process = fake.add()
    with fake.pin(process.pid) as pinned:
        fake.blind = True
        for look in (
            fake.all_pids,
            fake.facts,
            lambda: fake.observe(pinned),
            lambda: fake.start_ticks_of(process.pid),
        ):
            with pytest.raises(LookFailed):
                look()


def test_what_vanished_is_gone(fake: FakeControl) -> None:
    process = fake.add()
    fake.vanish(process.pid)
    with pytest.raises(ProcessGone):
        fake.pin(process.pid)
