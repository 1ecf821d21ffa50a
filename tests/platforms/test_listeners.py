"""Listeners and open descriptors, asked of the kernel about real sockets."""

from __future__ import annotations

import _socket
import errno
import os
import platform
import socket
import sys
from typing import Final

import pytest

from birthmark.errors import LookFailed, ProcessGone
from birthmark.platforms import listeners as room
from birthmark.platforms.listeners import (
    Listener,
    OpenListener,
    link_of,
    listeners,
    listeners_of,
    lives_elsewhere,
    open_in_threads,
    open_listeners,
)
from birthmark.testing import puppet
from tests.platforms.listening import (
    IN_ANOTHER_NETWORK,
    OBSERVER,
    SERVER,
    UNDUMPABLE,
    free_port,
    listening,
    need_a_blind_spot,
    need_ipv6,
    need_namespaces,
    port_of,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sock_diag and procfs are Linux's")

# Answers EPERM to socket(AF_NETLINK, ...), as container filters do: load the number, the first argument, compare.
REFUSE_NETLINK: Final = """
import ctypes, struct
from birthmark.platforms.listeners import listeners
code = struct.pack("=" + "HBBI" * 6,
    0x20, 0, 0, 0, 0x15, 0, 3, {nr}, 0x20, 0, 0, 16, 0x15, 0, 1, 16, 6, 0, 0, 0x00050001, 6, 0, 0, 0x7fff0000)
buffer = ctypes.create_string_buffer(code)
program = ctypes.create_string_buffer(struct.pack("@HP", 6, ctypes.addressof(buffer)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
"""
SOCKET_NR: Final = {"x86_64": 41, "aarch64": 198}
EXIT_NR: Final = {"x86_64": 60, "aarch64": 93}


def wanted(server: socket.socket) -> dict[str, Listener]:
    return {link_of(listener.inode): listener for listener in listeners(port_of(server))}


def test_a_listener_is_named_with_address_port_inode_and_user() -> None:
    with listening("127.0.0.1") as server:
        inode = os.fstat(server.fileno()).st_ino
        assert listeners(port_of(server)) == [
            Listener("IPv4", "127.0.0.1", port_of(server), inode, os.geteuid(), None)
        ]


@pytest.mark.parametrize(("address", "v6only"), [("::1", True), ("::", True), ("::", False)])
def test_an_ipv6_listener_says_whether_it_takes_ipv4_too(address: str, v6only: bool) -> None:
    need_ipv6()
    with listening(address, v6only=v6only) as server:
        [found] = listeners(port_of(server))
        assert (found.family, found.address, found.v6only) == ("IPv6", address, v6only)
        assert str(found) == f"[{address}]:{port_of(server)}"


def test_every_address_of_a_port_is_found() -> None:
    need_ipv6()
    with listening("127.0.0.1") as one, listening("127.0.0.2", port_of(one)), listening("::1", port_of(one)):
        assert sorted(str(found) for found in listeners(port_of(one))) == [
            f"127.0.0.1:{port_of(one)}",
            f"127.0.0.2:{port_of(one)}",
            f"[::1]:{port_of(one)}",
        ]


def test_two_listeners_may_share_one_address() -> None:
    with socket.socket() as one, socket.socket() as two:
        for server in (one, two):
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(("127.0.0.1", port_of(one) if server is two else 0))
            server.listen()
        inodes = {os.fstat(server.fileno()).st_ino for server in (one, two)}
        assert {found.inode for found in listeners(port_of(one))} == inodes


def test_more_listeners_than_one_answer_holds_are_all_found() -> None:
    with listening("127.0.0.1") as first:
        others = [listening(f"127.0.1.{n}", port_of(first)) for n in range(1, 200)]
        sockets = [other.__enter__() for other in others]
        try:
            assert len(listeners(port_of(first))) == 200
        finally:
            for server in sockets:
                server.close()


def test_a_socket_that_is_bound_and_does_not_listen_is_no_listener() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert listeners(port_of(bound)) == []
        bound.listen()
        assert len(listeners(port_of(bound))) == 1


def test_udp_is_no_listener() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        assert listeners(port_of(udp)) == []


def test_a_connection_is_no_listener_on_either_end() -> None:
    with listening() as server:
        with socket.create_connection(server.getsockname()) as client:
            peer, _ = server.accept()
            with peer:
                assert len(listeners(port_of(server))) == 1
                assert listeners(port_of(client)) == []


def test_a_closed_listener_is_gone_at_once() -> None:
    with listening() as server:
        port = port_of(server)
    assert listeners(port) == []


def test_where_netlink_is_refused_the_table_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    need_ipv6()
    with listening("127.0.0.1") as one, listening("::1", port_of(one)):
        by_netlink = listeners(port_of(one))

        def refused(port: int) -> list[Listener]:
            raise LookFailed(f"port {port}", "refused")

        monkeypatch.setattr(room, "_by_sock_diag", refused)
        assert listeners(port_of(one)) == [found._replace(v6only=None) for found in by_netlink]


@pytest.mark.skipif(platform.machine() not in SOCKET_NR, reason="the filter is written for two machines")
def test_a_filter_that_forbids_netlink_hides_no_listener() -> None:
    script = REFUSE_NETLINK.replace("{nr}", str(SOCKET_NR[platform.machine()]))
    script += (
        "import socket\n"
        "try: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4)\n"
        "except PermissionError: ready()\n"
        "tell([str(found) for found in listeners(int(sys.argv[1]))])\n"
        "obey()\n"
    )
    with listening() as server, puppet(script, argv=[str(port_of(server))]) as observer:
        observer.wait_ready()
        assert observer.hear() == [f"127.0.0.1:{port_of(server)}"]


def test_could_not_look_is_an_error_that_names_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused:
        def __init__(self, *_: object) -> None:
            raise OSError(errno.EPROTONOSUPPORT, "not here")

    monkeypatch.setattr(_socket, "socket", Refused)
    with pytest.raises(LookFailed, match=r"netlink: .*EPROTONOSUPPORT.*; /nowhere/tcp: .*ENOENT"):
        monkeypatch.setattr(room, "_by_table", lambda port, folder: by_table(port, "/nowhere"))
        listeners(1)


by_table = room._by_table


@pytest.mark.parametrize(
    "answer",
    [
        b"\x10\0\0\0\x02\0\0\0\x02\0\0\0\0\0\0\0",  # an error without a number
        b"\x08\0\0\0\x14\0\0\0\x02\0\0\0\0\0\0\0",  # shorter than its own header
        b"\xff\0\0\0\x14\0\0\0\x02\0\0\0\0\0\0\0",  # longer than what came
        b"\x14\0\0\0\x03\0\0\0\x63\0\0\0\0\0\0\0\0\0\0\0",  # the answer to another question
        b"\x14\0\0\0\x04\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0",  # the kernel lost some
        b"\x14\0\0\0\x03\0\0\0\x02\0\0\0\0\0\0\0\xf3\xff\xff\xff",  # done, with EACCES
        b"\x24\0\0\0\x02\0\0\0\x02\0\0\0\0\0\0\0\xfe\xff\xff\xff" + bytes(16),  # ENOENT: no such module
    ],
)
@pytest.mark.skipif(sys.byteorder != "little", reason="the answers are written for a little-endian machine")
def test_an_answer_that_cannot_be_read_is_never_nobody(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Netlink:
        def __init__(self, *_: object) -> None: ...
        def send(self, _: bytes) -> None: ...
        def close(self) -> None: ...
        def recv(self, _: int) -> bytes:
            return answer

    monkeypatch.setattr(_socket, "socket", Netlink)
    with pytest.raises(LookFailed, match="sock_diag"):
        room._by_sock_diag(80)


# -- whose descriptor ----------------------------------------------------------


def test_the_descriptor_of_a_listener_is_found() -> None:
    with listening() as server:
        looked_for = wanted(server)
        [listener] = looked_for.values()
        assert open_listeners(os.getpid(), looked_for) == [OpenListener(server.fileno(), listener)]


@pytest.mark.parametrize("wrong_by", [0, 1, 1000])
def test_a_descriptor_seen_last_time_is_a_guess_that_is_checked(wrong_by: int) -> None:
    with listening() as server:
        looked_for = wanted(server)
        found = open_listeners(os.getpid(), looked_for, fd=server.fileno() + wrong_by)
        assert found is not None
        assert [one.fd for one in found] == [server.fileno()]


def test_a_process_without_it_and_a_process_that_is_gone_have_nothing() -> None:
    with listening() as server:
        looked_for = wanted(server)
        with puppet() as stranger:
            stranger.wait_ready()
            assert open_listeners(stranger.pid, looked_for) == []
            stranger.close_stdin()
            stranger.wait_exited()
            # An exited process belongs to root until it is reaped.
            assert not open_listeners(stranger.pid, looked_for)
        assert open_listeners(stranger.pid, looked_for) == []
        assert open_in_threads(stranger.pid, looked_for) == []


def test_a_process_that_may_not_be_looked_at_is_not_one_without_listeners() -> None:
    need_a_blind_spot()
    observe = (
        "from birthmark.platforms.listeners import listeners, link_of, open_listeners\n"
        f"{OBSERVER}"
        "found = {link_of(one.inode): one for one in listeners(int(sys.argv[2]))}\n"
        "tell([len(found), open_listeners(int(sys.argv[1]), found)])\n"
        "obey()\n"
    )
    with puppet(UNDUMPABLE + SERVER + "obey()", argv=["127.0.0.1", "0"]) as holder:
        port = holder.hear()
        with puppet(observe, argv=[str(holder.pid), str(port)]) as observer:
            assert observer.hear() == [1, None]


@pytest.mark.skipif(
    platform.machine() not in EXIT_NR, reason="the number of exit(2) is known for two machines"
)
def test_threads_that_outlive_their_leader_still_have_its_listener() -> None:
    script = (
        "import ctypes\n"
        "def serve():\n"
        "    while b') Z ' not in open('/proc/self/stat', 'rb').read(): pass\n"
        "    ready()\n"
        "    obey()\n"
        "threading.Thread(target=serve).start()\n"
        f"ctypes.CDLL(None).syscall({EXIT_NR.get(platform.machine())}, 0)\n"
    )
    with puppet(SERVER + script, argv=["127.0.0.1", "0"]) as holder:
        port = holder.hear()
        assert isinstance(port, int)
        holder.wait_ready()
        looked_for = {link_of(one.inode): one for one in listeners(port)}
        assert not open_listeners(holder.pid, looked_for)
        assert [one.listener for one in open_in_threads(holder.pid, looked_for)] == list(looked_for.values())


# -- another network -----------------------------------------------------------


def test_a_listener_in_another_network_namespace_is_seen_through_its_process() -> None:
    need_namespaces()
    port = free_port()
    with puppet(SERVER + "obey()", argv=["0.0.0.0", str(port)], under=IN_ANOTHER_NETWORK) as holder:
        assert holder.hear() == port
        assert listeners(port) == []
        [found] = listeners_of(holder.pid, port)
        assert (found.address, found.port) == ("0.0.0.0", port)
        assert lives_elsewhere(holder.pid) is True
        assert open_listeners(holder.pid, {link_of(found.inode): found})


def test_our_own_network_is_not_another() -> None:
    with puppet() as neighbour, listening() as server:
        neighbour.wait_ready()
        assert lives_elsewhere(os.getpid()) is False
        assert lives_elsewhere(neighbour.pid) is False
        assert [one.inode for one in listeners_of(neighbour.pid, port_of(server))] == [
            one.inode for one in listeners(port_of(server))
        ]


def test_a_process_that_has_exited_has_no_network() -> None:
    with puppet("ready()") as leaving:
        leaving.wait_ready()
        leaving.wait_exited()
        assert lives_elsewhere(leaving.pid) is None
        with pytest.raises(ProcessGone):
            listeners_of(leaving.pid, 80)
    with pytest.raises(ProcessGone):
        listeners_of(leaving.pid, 80)


def test_a_thread_in_another_network_sees_its_own() -> None:
    need_namespaces()
    if os.geteuid() != 0:
        pytest.skip("only root may enter a namespace with one thread")
    script = (
        "import ctypes, socket\n"
        "from birthmark.platforms.listeners import listeners, lives_elsewhere\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "port = server.getsockname()[1]\n"
        "def elsewhere():\n"
        "    assert ctypes.CDLL(None).unshare(0x40000000) == 0\n"
        "    tell([len(listeners(port)), lives_elsewhere(os.getpid())])\n"
        "thread = threading.Thread(target=elsewhere); thread.start(); thread.join()\n"
        "tell([len(listeners(port)), lives_elsewhere(os.getpid())])\n"
    )
    with puppet(script) as child:
        assert child.hear() == [0, True]
        assert child.hear() == [1, False]
