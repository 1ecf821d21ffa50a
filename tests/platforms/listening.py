"""Listeners for tests: sockets of our own, and scripts for puppets that have one."""

from __future__ import annotations

import io
import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from birthmark.testing.puppet import WITHIN_S
from tests.conftest import no_namespaces, not_root

SERVER: Final = """
import socket
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
tell(server.getsockname()[1])
"""
"""Listens on the address and port in its arguments, and tells the port."""

UNDUMPABLE: Final = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"
"""From here on only root may look at its descriptors."""

NOBODY: Final = 65534
OBSERVER: Final = (
    "from birthmark.platforms import load; load()\n"
    f"if os.getuid() == 0: os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
)
"""Give up root's rights over others, once everything is imported that only root may read."""

IN_ANOTHER_NETWORK: Final = (
    ("unshare", "--net") if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user", "--net")
)


@contextmanager
def listening(address: str = "127.0.0.1", port: int = 0, *, v6only: bool = True) -> Iterator[socket.socket]:
    """Listen, IPv6 when the address looks like it, on a port the kernel picks."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as server:
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6only)
        server.bind((address, port))
        server.listen()
        yield server


def port_of(server: socket.socket) -> int:
    """Return the port a socket is bound to."""
    port: int = server.getsockname()[1]
    return port


def free_port() -> int:
    """Return a port nobody listens on. Somebody may take it at any time, which no test here provokes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return port_of(probe)


def need_ipv6() -> None:
    """Skip the test where this machine has no IPv6 on its loopback."""
    try:
        with listening("::1"):
            pass
    except OSError as err:
        pytest.skip(f"no IPv6 on the loopback: {err.strerror}")


def need_a_blind_spot() -> None:
    """Skip the test where no process can be hidden from another: root of a user namespace sees all of it."""
    if os.geteuid() == 0 and (why := not_root()):
        pytest.skip(why)


def need_namespaces() -> None:
    """Skip the test where namespaces cannot be made."""
    if why := no_namespaces():
        pytest.skip(why)


def line_from(pipe: io.FileIO | None) -> bytes:
    """Return the next line of a child's pipe, or nothing at its end; wait five seconds at most."""
    assert pipe is not None
    assert select.select([pipe], [], [], WITHIN_S)[0], "the child said nothing in time"
    return pipe.readline()
