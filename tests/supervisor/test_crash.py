"""A supervisor that is killed, and the one that comes after it. Real processes, SIGKILL, real ports."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from birthmark.core.service import ServiceName
from birthmark.core.states import Observed
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned
from birthmark.registry.contract import BirthState
from birthmark.testing import wait_exited
from tests.supervisor.household import (
    WITHIN_S,
    answers,
    free_port,
    household,
    listener,
    python,
    says,
    service,
)
from tests.supervisor.outpost import outpost

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfds"),
]

# A tree that hears no SIGTERM: the leader, a grandchild in a session of its own, and a daemon that has
# the port and has lost its environment. Each writes its pid into the folder.
TREE = """
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
port, folder = int(sys.argv[1]), sys.argv[2]
here, there = os.pipe()

def note(name):
    with open(os.path.join(folder, name), "w") as file:
        file.write(str(os.getpid()))
    os.write(there, b"!")

def stay():
    while True: time.sleep(60)

if os.fork() == 0:
    os.setsid(); note("grandchild"); stay()
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", port)); s.listen()
    os.set_inheritable(s.fileno(), True); os.set_inheritable(there, True)
    code = '''
import os, signal, socket, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
s = socket.socket(fileno=int(sys.argv[1]))
with open(os.path.join(sys.argv[3], "daemon"), "w") as file: file.write(str(os.getpid()))
os.write(int(sys.argv[2]), b"!")
while True:
    c, _ = s.accept(); c.recv(4096); c.sendall(b"HTTP/1.1 200 OK\\\\r\\\\n\\\\r\\\\n"); c.close()
'''
    os.execve(sys.executable, [sys.executable, "-S", "-E", "-c", code, str(s.fileno()), str(there), folder], {})
note("leader")
for _ in range(3): os.read(here, 1)
os.write(2, b"all of us are here\\n")
stay()
"""


@contextmanager
def pinned_tree(folder: Path) -> Iterator[dict[str, Pinned]]:
    """Hold each process of the tree, and end at the end what a failed test left."""
    held = {name: load().pin(int((folder / name).read_text())) for name in ("leader", "grandchild", "daemon")}
    try:
        yield held
    finally:
        for pinned in held.values():
            if pinned.fd is not None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pinned.fd, signal.SIGKILL)
            pinned.close()


async def test_the_next_supervisor_ends_all_that_a_killed_one_left_and_takes_its_port_back(
    tmp_path: Path,
) -> None:
    port = free_port()
    command = python(TREE, str(port), str(tmp_path))
    said = {"name": "one", "command": command, "says": "all of us are here", "port": port}
    with outpost([said]) as first:
        assert "up" in first.hear()
        with pinned_tree(tmp_path) as tree:
            first.kill()
            # Deaf to the kernel's SIGTERM, all of them live on, and one of them serves.
            assert not any(load().exited(pinned) for pinned in tree.values())
            assert answers(port)

            spec = service("one", command, ready=says("all of us are here"), port=port)
            async with household(spec) as house:
                for pinned in tree.values():
                    assert load().exited(pinned)
                (receipt,) = house.report.ended
                assert {member.pid for member in receipt.members} >= {pinned.pid for pinned in tree.values()}
                assert any("left over from an earlier supervisor, ended" in line for line in house.said)
                assert any("did not leave in order" in line for line in house.said)
                status = await house.seen(Observed.READY)
                assert status.pid not in {pinned.pid for pinned in tree.values()}
                assert answers(port)
                new, old = house.registry.births_of(ServiceName("one"))
                assert (new.state, old.state) == (BirthState.BORN, BirthState.LOST)
                assert old.why == "ended by the next supervisor"


async def test_children_that_obey_are_gone_when_their_supervisor_is_killed() -> None:
    port = free_port()
    with outpost([{"name": "one", "listens": port}]) as first:
        told = first.hear()["up"]
        assert isinstance(told, list)
        with load().pin(told[0]["pid"]) as child:
            first.kill()
            wait_exited(child)
    async with household(listener("one", port)) as house:
        assert len(house.report.gone) == 1
        await house.seen(Observed.READY)


async def test_of_several_that_start_at_once_one_runs_and_the_others_name_it() -> None:
    services: list[dict[str, object]] = [{"name": "one", "listens": free_port()}]
    with outpost(services) as a, outpost(services) as b, outpost(services) as c, outpost(services) as d:
        all_of_them = [a, b, c, d]
        heard = [each.hear() for each in all_of_them]
        winners = [each for each, line in zip(all_of_them, heard, strict=True) if "up" in line]
        assert len(winners) == 1
        assert [line["locked"] for line in heard if "locked" in line] == [winners[0].process.pid] * 3
        for each in all_of_them:
            assert each.process.stdin is not None
            each.process.stdin.close()
            assert each.process.wait(WITHIN_S) == 0


async def test_a_supervisor_that_left_in_order_leaves_nothing_to_say() -> None:
    with outpost([{"name": "one", "listens": free_port()}]) as first:
        assert "up" in first.hear()
        assert first.process.stdin is not None
        first.process.stdin.close()
        assert first.process.wait(WITHIN_S) == 0
    async with household(names=[]) as house:
        assert house.report.lines == []
        assert house.said == []
