"""`ports`, on real listeners; run inside the test's process."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator

import pytest

from birthmark.children.command import new_birth
from birthmark.core.service import ServiceName
from birthmark.testing.puppet import puppet
from tests.interfaces.births import AT, house
from tests.interfaces.running import command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at listeners through netlink")

LISTENS = """
import socket
server = socket.create_server(("127.0.0.1", 0))
tell(server.getsockname()[1])
ready()
obey()
"""


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that nobody listens on, and that nobody else is given meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_a_port_without_a_listener_is_nobodys(free_port: int) -> None:
    said = command("ports", str(free_port))
    assert said.code == 0
    assert [line.split() for line in said.out.splitlines()] == [
        ["PORT", "ADDRESS", "PID", "OWNER", "SERVICE", "WHY", "COMMAND"],
        [str(free_port), "-", "-", "nobody", "-", "-", "-"],
    ]


def test_a_strangers_listener_is_a_strangers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        said = command("ports", "--json", str(port))
    assert said.code == 0
    ports = said.json["ports"]
    assert isinstance(ports, list)
    [found] = ports
    assert (found["port"], found["state"], found["leased_to"], found["unseen"]) == (port, "held", None, [])
    [holder] = found["holders"]
    assert (holder["pid"], holder["owner"]) == (os.getpid(), "stranger")
    assert holder["addresses"] == [f"127.0.0.1:{port}"]


def test_a_services_listener_is_ours_and_leased_ports_are_listed_unasked() -> None:
    with house() as home:
        birth = new_birth()
        with puppet(LISTENS, env=home.mark("web", birth)) as child:
            port = child.hear_pid()
            child.wait_ready()
            home.know("web")
            home.record("web", birth, child.pid)
            home.registry.lease_port(port, ServiceName("web"), AT, epoch=home.epoch)
            said = command("ports")
    assert said.code == 0
    cells = said.out.splitlines()[1].split()
    assert cells[:5] == [str(port), f"127.0.0.1:{port}", str(child.pid), "ours", "web"]


def test_without_leases_the_way_to_other_ports_is_named() -> None:
    assert command("ports") == (
        0,
        "no port is leased to a service; `birthmark ports PORT` looks at any other\n",
        "",
    )


def test_a_leased_port_that_nobody_listens_on_says_whose_it_is(free_port: int) -> None:
    with house() as home:
        home.registry.lease_port(free_port, ServiceName("web"), AT, epoch=home.epoch)
        said = command("ports")
    assert said.out.splitlines()[1].split(maxsplit=5)[5] == "leased to web  -"
