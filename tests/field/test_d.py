"""Field cases, ports: whoever holds a port is named, and holding it makes nobody ours. Real sockets and processes."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace

import pytest

from birthmark.children.child import Child
from birthmark.children.command import Command, Stdio, mark_child, new_birth
from birthmark.children.installation import open_installation
from birthmark.children.ports import PortState, holders_of, listening_pids
from birthmark.children.proving import find_carriers, prove, prove_mark
from birthmark.children.spawning import Spawner
from birthmark.core.identity import Identity, Reason, Verdict
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import Basis, Warrant
from birthmark.core.service import installation_id
from birthmark.platforms import load
from birthmark.testing import puppet, wait_exited
from tests.platforms.listening import SERVER, line_from

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets are looked up in Linux's procfs")

HERE = ["127.0.0.1", "0"]
SERVICE = (
    "import os, socket, sys\n"
    "server = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
    "os.write(1, b'T%d\\n' % server.getsockname()[1])\n"
    "sys.stdin.read()\n"
)
"""A service that tells its port and leaves when its stdin ends."""


def service(port: int = 0) -> Command:
    return Command(
        sys.executable, "-c", SERVICE, str(port), stdin=Stdio.PIPE, stdout=Stdio.PIPE, stderr=Stdio.INHERIT
    )


def told_port(child: Child) -> int:
    return int(line_from(child.stdout).strip(b"T\n"))


def number(value: object) -> int:
    assert isinstance(value, int)
    return value


def test_d1_a_client_of_the_port_is_never_its_holder() -> None:
    client = (
        "import socket\nlink = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\nready()\nobey()\n"
    )
    with puppet(SERVER + "link, _ = server.accept()\nready()\nobey()\n", argv=HERE) as dev_server:
        port = number(dev_server.hear())
        with puppet(client, argv=[str(port)]) as browser:
            browser.wait_ready()
            dev_server.wait_ready()
            for answer in (
                holders_of(port),
                holders_of(port, all_holders=True),
                holders_of(port, expected=[browser.pid, dev_server.pid]),
            ):
                assert answer.pids == (dev_server.pid,)
            assert listening_pids(port) == [dev_server.pid]
            # With the listener gone, the connection that is left holds no port.
            dev_server.close_stdin()
            dev_server.wait_exited()
            assert holders_of(port, expected=browser.pid).state is PortState.NOBODY
            browser.ask()


def test_d2_a_foreign_listener_is_named_and_is_not_ours() -> None:
    ours = open_installation()
    with Spawner() as spawner:
        child = spawner.spawn_owned_supervised(mark_child(service(), ChildKind.MCP, "echo"))
        port = told_port(child)
        recorded = child.identity
        child.close_stdin()
        child.wait(5)
        child.close()
    with puppet(SERVER + "obey()", argv=["127.0.0.1", str(port)]) as foreign:
        assert foreign.hear() == port
        answer = holders_of(port, expected=recorded.pid)
        assert str(answer) == f"port {port} is held by process {foreign.pid} on 127.0.0.1:{port}"
        assert prove(recorded).verdict is Verdict.GONE
        # Even were our dead child's number given to it:
        assert prove(replace(recorded, pid=foreign.pid)).verdict is Verdict.DIFFERENT
        assert prove_mark(foreign.pid, ChildKind.MCP, "echo", ours.id).reason is Reason.NO_MARK
        assert recorded.birth is not None
        assert find_carriers([recorded.birth], ours.id) == []
        foreign.ask()


def test_d3_a_listener_of_another_installation_is_named_and_is_not_ours() -> None:
    ours, theirs = open_installation(), installation_id("f" * 32)
    with Spawner() as spawner:
        command = mark_child(service(), ChildKind.MCP, "echo", installation=theirs)
        child = spawner.spawn_owned_supervised(command)
        port = told_port(child)
        assert holders_of(port).pids == (child.pid,)
        proof = prove_mark(child.pid, ChildKind.MCP, "echo", ours.id)
        assert (proof.verdict, proof.reason) == (Verdict.DIFFERENT, Reason.MARK_OF_ANOTHER_INSTALLATION)
        recorded = replace(child.identity, installation=ours.id)
        assert prove(recorded).reason is Reason.MARK_OF_ANOTHER_INSTALLATION
        assert child.is_running()
        child.close_stdin()
        child.wait(5)
        child.close()


def test_d5_the_orphan_that_kept_the_port_is_recognised_by_its_identity() -> None:
    supervisor = (
        "from birthmark.children.command import Command, Stdio, mark_child\n"
        "from birthmark.children.spawning import Spawner\n"
        "from birthmark.core.markers import ChildKind\n"
        "spawner = Spawner()\n"
        "child = spawner.spawn_owned_supervised(mark_child(\n"
        "    Command(sys.executable, '-c', sys.argv[1], '0', stdin=Stdio.INHERIT, stdout=Stdio.INHERIT,\n"
        "            stderr=Stdio.INHERIT, parent_death=None), ChildKind.MCP, 'callback'))\n"
        "tell(child.identity.to_dict())\n"
        "signal.pause()\n"
    )
    with puppet(supervisor, argv=[SERVICE], env=os.environ) as crashing:
        told = [crashing.hear(), crashing.hear()]  # from the two of them, in either order
        [port] = [one for one in told if isinstance(one, int)]
        [record] = [one for one in told if isinstance(one, dict)]
        recorded = Identity.from_dict(record)
        load().deliver(crashing.pinned, signal.SIGKILL, Warrant(basis=Basis.CHILD, asked_by="field case D5"))
        crashing.wait_exited()
        answer = holders_of(port, expected=recorded.pid)
        assert answer.pids == (recorded.pid,)
        assert prove(recorded).verdict is Verdict.SAME
        # Another birth of the same service would be told apart.
        assert prove(replace(recorded, birth=new_birth())).reason is Reason.MARK_OF_ANOTHER_BIRTH
        orphan = load().pin(recorded.pid)
        crashing.close_stdin()
        crashing.wait_tree_gone()
        with orphan:
            wait_exited(orphan)
        assert holders_of(port, expected=recorded.pid).state is PortState.NOBODY
