"""Who has a port, and the three answers that are not *nobody*: real sockets, real processes."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from birthmark.children import ports
from birthmark.children.ports import Holder, PortAnswer, PortState, holders_of, listening_pids
from birthmark.errors import LookFailed, ProcessGone
from birthmark.platforms.listeners import Listener, OpenListener, open_listeners
from birthmark.testing import puppet
from tests.platforms.listening import (
    IN_ANOTHER_NETWORK,
    OBSERVER,
    SERVER,
    UNDUMPABLE,
    free_port,
    listening,
    need_a_blind_spot,
    need_namespaces,
    port_of,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets are looked up in Linux's procfs")

HERE = ["127.0.0.1", "0"]
FORKING = SERVER + "if not os.fork():\n    tell(os.getpid())\n    stay()\n    os._exit(0)\n" + "obey()\n"
"""A server and a fork of it: tells the port, then the fork's pid."""


def number(value: object) -> int:
    assert isinstance(value, int)
    return value


# -- nobody --------------------------------------------------------------------


def test_nobody_listens_on_a_free_port() -> None:
    port = free_port()
    answer = holders_of(port, all_holders=True)
    assert answer == PortAnswer(port=port, state=PortState.NOBODY)
    assert str(answer) == f"nobody listens on port {port}"
    assert listening_pids(port) == []


def test_nobody_listens_on_port_zero_and_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ports, "listeners")
    monkeypatch.delattr(ports, "pids_by_tool")
    assert holders_of(0).state is PortState.NOBODY
    assert listening_pids(0) == []


@pytest.mark.parametrize("port", [-1, 65536, 70000, 2**40])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    for ask in (holders_of, listening_pids):
        with pytest.raises(ValueError, match=f"{port} is no port"):
            ask(port)


@pytest.mark.parametrize("port", ["80", None, 80.0, True, b"80"])
def test_what_is_not_a_number_is_no_port(port: Any) -> None:  # Any: the wrong types are the point
    for ask in (holders_of, listening_pids):
        with pytest.raises(TypeError, match="a port is an int"):
            ask(port)


@pytest.mark.parametrize("pid", [0, -1, 2**31])
def test_a_number_that_is_no_pid_is_refused(pid: int) -> None:
    with pytest.raises(ValueError, match=f"{pid} is no pid"):
        holders_of(80, expected=pid)
    with pytest.raises(ValueError, match=f"{pid} is no pid"):
        holders_of(80, expected=[1, pid])
    with pytest.raises(ValueError, match=f"{pid} is no pid"):
        holders_of(80, network_of=pid)


@pytest.mark.parametrize("pid", ["1", True, 1.0])
def test_what_is_not_a_number_is_no_pid(pid: Any) -> None:  # Any: the wrong types are the point
    with pytest.raises(TypeError):
        holders_of(80, expected=pid)


def test_a_socket_that_is_bound_and_does_not_listen_is_held_by_nobody() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert holders_of(port_of(bound), expected=os.getpid()).state is PortState.NOBODY


# -- held ----------------------------------------------------------------------


@pytest.mark.parametrize("expect", [True, False])
def test_the_holder_is_found_expected_or_not(expect: bool) -> None:
    with puppet(SERVER + "obey()", argv=HERE) as holder:
        port = number(holder.hear())
        answer = holders_of(port, expected=holder.pid if expect else None)
        assert (answer.state, answer.pids, answer.unseen) == (PortState.HELD, (holder.pid,), ())
        [found] = answer.holders
        assert found.listeners == answer.listeners
        assert found.shared is None
        assert str(answer) == f"port {port} is held by process {holder.pid} on 127.0.0.1:{port}"
        assert listening_pids(port) == [holder.pid]


def test_an_expected_holder_is_found_without_a_look_at_anybody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = []

    def watched(
        pid: int, wanted: Mapping[str, Listener], **how: Any
    ) -> list[OpenListener] | None:  # Any: passed on unread
        looked_at.append((pid, how["fd"]))
        return open_listeners(pid, wanted, **how)

    monkeypatch.setattr(ports, "open_listeners", watched)
    with listening() as server:
        me = os.getpid()
        [found] = holders_of(port_of(server), expected=me).holders
        assert looked_at == [(me, None)]
        looked_at.clear()
        [again] = holders_of(port_of(server), expected=me, fds={me: found.fds[0]}).holders
        assert looked_at == [(me, server.fileno())]
        assert again == found


def test_an_expected_process_that_does_not_hold_it_does_not_hide_who_does() -> None:
    with listening() as server, puppet() as bystander:
        bystander.wait_ready()
        assert holders_of(port_of(server), expected=bystander.pid).pids == (os.getpid(),)


def test_an_expected_process_that_is_gone_does_not_hide_who_holds_it() -> None:
    with puppet("ready()") as leaving:
        leaving.wait_ready()
        leaving.wait_exited()
        with listening() as server:
            assert holders_of(port_of(server), expected=leaving.pid).pids == (os.getpid(),)
        assert holders_of(free_port(), expected=leaving.pid).state is PortState.NOBODY
    assert holders_of(free_port(), expected=leaving.pid).state is PortState.NOBODY


def test_clients_never_count() -> None:
    client = (
        "import socket\nlink = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\nready()\nobey()\n"
    )
    with listening() as server, puppet(client, argv=[str(port_of(server))]) as visitor:
        visitor.wait_ready()
        answer = holders_of(port_of(server), expected=visitor.pid, all_holders=True)
        assert answer.pids == (os.getpid(),)


def test_a_listener_of_two_processes_has_two_holders_and_is_shared() -> None:
    with puppet(FORKING, argv=HERE) as parent:
        port, fork = number(parent.hear()), number(parent.hear())
        answer = holders_of(port, expected=parent.pid, all_holders=True)
        assert answer.pids == (parent.pid, fork)
        assert [holder.shared for holder in answer.holders] == [True, True]
        assert len(answer.listeners) == 1
        assert listening_pids(port) == sorted([parent.pid, fork])
        # Found without a look at others, nobody knows whether there are any.
        [first] = holders_of(port, expected=fork).holders
        assert (first.pid, first.shared) == (fork, None)


def test_expected_processes_come_first_in_their_order_and_the_newest_of_the_rest_next() -> None:
    script = (
        SERVER
        + "for _ in range(3):\n    if not os.fork(): tell(os.getpid()); stay(); os._exit(0)\n"
        + "obey()\n"
    )
    with puppet(script, argv=HERE) as parent:
        port = number(parent.hear())
        forks = [parent.hear_pid() for _ in range(3)]
        answer = holders_of(port, expected=[forks[0], parent.pid], all_holders=True)
        assert answer.pids == (forks[0], parent.pid, *sorted(forks[1:], reverse=True))


@pytest.mark.parametrize("all_holders", [False, True])
def test_a_listener_on_a_standard_descriptor_is_found_as_inetd_leaves_it(all_holders: bool) -> None:
    with puppet(SERVER + "os.dup2(server.fileno(), 2); server.close(); ready(); obey()", argv=HERE) as holder:
        port = number(holder.hear())
        holder.wait_ready()
        [found] = holders_of(port, all_holders=all_holders).holders
        assert (found.pid, found.fds) == (holder.pid, (2,))


def test_an_heir_whose_maker_has_gone_is_the_only_holder() -> None:
    script = SERVER + "if os.fork(): sys.stdin.readline(); os._exit(0)\ntell(os.getpid())\nsignal.pause()\n"
    with puppet(script, argv=HERE) as maker:
        port, heir = number(maker.hear()), number(maker.hear())
        maker.say("go")
        maker.wait_exited()
        [holder] = holders_of(port, expected=maker.pid, all_holders=True).holders
        assert (holder.pid, holder.shared) == (heir, False)


def test_a_stranger_on_another_address_of_the_port_is_a_holder_too() -> None:
    with puppet(SERVER + "obey()", argv=HERE) as ours:
        port = number(ours.hear())
        with listening("127.0.0.2", port):
            answer = holders_of(port, expected=ours.pid)
            assert answer.pids == (ours.pid, os.getpid())
            assert [str(listener) for holder in answer.holders for listener in holder.listeners] == [
                f"127.0.0.1:{port}",
                f"127.0.0.2:{port}",
            ]


# -- held by somebody we may not see -------------------------------------------

ASK = (
    "from birthmark.children.ports import holders_of, listening_pids\n"
    "from birthmark.errors import LookFailed\n"
    f"{OBSERVER}"
    "port = int(sys.argv[1])\n"
    "answer = holders_of(port)\n"
    "tell([answer.state.value, str(answer), answer.pids, [one.uid for one in answer.unseen]])\n"
    "try: listening_pids(port); tell('an answer')\n"
    "except LookFailed as err: tell(str(err))\n"
    "obey()\n"
)


def test_a_holder_we_may_not_see_is_somebody_with_a_user() -> None:
    need_a_blind_spot()
    with puppet(UNDUMPABLE + SERVER + "obey()", argv=HERE) as holder:
        port, user = number(holder.hear()), os.geteuid()
        with puppet(ASK, argv=[str(port)]) as observer:
            words = f"port {port} is held by a process that we may not see, on 127.0.0.1:{port}, opened by user {user}"
            assert observer.hear() == ["held_by_unseen", words, [], [user]]
            assert observer.hear() == f"could not look at port {port}: {words}"


def test_one_listener_seen_does_not_hide_one_unseen() -> None:
    need_a_blind_spot()
    serve = "server = socket.create_server(('127.0.0.2', int(sys.argv[1])))\n"
    with puppet(UNDUMPABLE + SERVER + "obey()", argv=HERE) as holder:
        port, user = number(holder.hear()), os.geteuid()
        script = "import socket\n" + ASK.replace("answer = holders_of", serve + "answer = holders_of")
        with puppet(script, argv=[str(port)]) as observer:
            told = observer.hear()
            assert isinstance(told, list)
            assert (told[0], told[2], told[3]) == ("held", [observer.pid], [user])
            assert "that we may not see" in str(observer.hear())


# -- could not look ------------------------------------------------------------


def refused(*_: object) -> list[Listener]:
    raise LookFailed("the port", "refused")


def test_could_not_look_is_never_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "listeners", refused)

    def no_tool(port: int) -> list[int]:
        raise LookFailed(f"port {port}", "lsof is not installed")

    monkeypatch.setattr(ports, "pids_by_tool", no_tool)
    answer = holders_of(80)
    assert answer == PortAnswer(
        port=80, state=PortState.COULD_NOT_LOOK, cause="refused; lsof is not installed"
    )
    assert str(answer) == "could not look at port 80: refused; lsof is not installed"
    with pytest.raises(LookFailed, match="lsof is not installed"):
        listening_pids(80)


@pytest.mark.skipif(shutil.which("lsof") is None, reason="lsof is not installed")
def test_where_the_kernel_refuses_lsof_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "listeners", refused)
    with puppet(FORKING, argv=HERE) as parent:
        port, fork = number(parent.hear()), number(parent.hear())
        answer = holders_of(port, expected=parent.pid)
        assert answer == PortAnswer(
            port=port, state=PortState.HELD, holders=(Holder(pid=parent.pid), Holder(pid=fork))
        )
        assert str(answer) == f"port {port} is held by process {parent.pid}; process {fork}"
    assert holders_of(port).state is PortState.NOBODY


@pytest.mark.parametrize(
    ("pids", "state"),
    [
        ([], PortState.NOBODY),
        ([0], PortState.HELD_BY_UNSEEN),
        ([7], PortState.HELD),
        ([0, 7], PortState.COULD_NOT_LOOK),
    ],
)
def test_half_an_answer_of_a_tool_is_none(
    pids: list[int], state: PortState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "listeners", refused)
    monkeypatch.setattr(ports, "pids_by_tool", lambda port: pids)
    assert holders_of(80).state is state


def test_a_procfs_that_cannot_be_listed_is_could_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind:
        def all_pids(self) -> list[int]:
            raise LookFailed("processes", "there is no procfs on /proc")

    monkeypatch.setattr(ports, "load", Blind)
    with listening() as server:
        answer = holders_of(port_of(server))
        assert (answer.state, answer.cause) == (PortState.COULD_NOT_LOOK, "there is no procfs on /proc")
        # Whom we expect needs no list.
        assert holders_of(port_of(server), expected=os.getpid()).state is PortState.HELD


# -- another network -----------------------------------------------------------


def test_an_expected_process_in_another_network_is_asked_about_there() -> None:
    need_namespaces()
    port = free_port()
    with puppet(SERVER + "obey()", argv=["127.0.0.1", str(port)], under=IN_ANOTHER_NETWORK) as holder:
        assert holder.hear() == port
        assert holders_of(port).state is PortState.NOBODY
        assert holders_of(port, expected=holder.pid).pids == (holder.pid,)
        assert holders_of(port, network_of=holder.pid).pids == (holder.pid,)
        with listening(port=port):
            assert holders_of(port).pids == (os.getpid(),)
            assert holders_of(port, expected=holder.pid).pids == (holder.pid,)
            assert holders_of(port, expected=holder.pid, network_of=os.getpid()).pids == (os.getpid(),)


def test_another_network_where_nobody_listens_is_nobody() -> None:
    need_namespaces()
    with listening() as server, puppet(under=IN_ANOTHER_NETWORK) as neighbour:
        neighbour.wait_ready()
        assert holders_of(port_of(server), network_of=neighbour.pid).state is PortState.NOBODY
        assert holders_of(port_of(server), expected=neighbour.pid).state is PortState.NOBODY


def test_the_network_of_a_process_that_is_gone_is_could_not_look() -> None:
    with puppet("ready()") as leaving:
        leaving.wait_ready()
        leaving.wait_exited()
    answer = holders_of(80, network_of=leaving.pid)
    assert answer.state is PortState.COULD_NOT_LOOK
    assert answer.cause == f"the network namespace of process {leaving.pid}: process {leaving.pid} is gone"


@pytest.mark.parametrize("elsewhere", [True, None])
def test_another_network_that_cannot_be_looked_at_is_never_nobody(
    elsewhere: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "lives_elsewhere", lambda pid: elsewhere)
    monkeypatch.setattr(ports, "listeners_of", refused)
    for answer in (
        holders_of(free_port(), expected=os.getppid()),
        holders_of(free_port(), network_of=os.getppid()),
    ):
        assert answer.state is PortState.COULD_NOT_LOOK
        assert answer.cause == f"the network namespace of process {os.getppid()}: refused"


def test_another_users_process_in_our_network_changes_nothing() -> None:
    need_a_blind_spot()
    script = (
        "from birthmark.children.ports import holders_of\nimport socket\n"
        f"{OBSERVER}"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "port = server.getsockname()[1]\n"
        "tell([holders_of(port, expected=int(sys.argv[1])).pids, os.getpid()])\n"
        "server.close()\n"
        "tell(holders_of(port, expected=int(sys.argv[1])).state.value)\n"
        "obey()\n"
    )
    with puppet(UNDUMPABLE + "ready(); obey()") as hidden:
        hidden.wait_ready()
        with puppet(script, argv=[str(hidden.pid)]) as observer:
            assert observer.hear() == [[observer.pid], observer.pid]
            assert observer.hear() == "nobody"


# -- while we look -------------------------------------------------------------


def test_a_listener_closed_while_we_look_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as server:
        port = port_of(server)

        def closing(
            pid: int, wanted: Mapping[str, Listener], **how: Any
        ) -> list[OpenListener] | None:  # Any: passed on unread
            server.close()
            return open_listeners(pid, wanted, **how)

        monkeypatch.setattr(ports, "open_listeners", closing)
        assert holders_of(port).state is PortState.NOBODY


def test_a_listener_handed_on_while_we_look_is_found_with_its_heir(monkeypatch: pytest.MonkeyPatch) -> None:
    script = SERVER + "sys.stdin.readline()\nif os.fork(): os._exit(0)\ntell(os.getpid())\nstay()\n"
    with puppet(script, argv=HERE) as maker:
        port = number(maker.hear())
        heirs: list[int] = []

        def late(
            pid: int, wanted: Mapping[str, Listener], **how: Any
        ) -> list[OpenListener] | None:  # Any: passed on unread
            if not heirs:
                # The pids are listed already; the heir is not among them.
                maker.say("hand it on")
                heirs.append(maker.hear_pid())
                maker.wait_exited()
            return open_listeners(pid, wanted, **how)

        monkeypatch.setattr(ports, "open_listeners", late)
        assert holders_of(port).pids == tuple(heirs)


def test_a_server_replaced_while_we_look_is_seen_as_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as old:
        port = port_of(old)
        new: list[socket.socket] = []

        def replacing(
            pid: int, wanted: Mapping[str, Listener], **how: Any
        ) -> list[OpenListener] | None:  # Any: passed on unread
            if not new:
                old.close()
                new.append(socket.create_server(("127.0.0.1", port)))
            return open_listeners(pid, wanted, **how)

        monkeypatch.setattr(ports, "open_listeners", replacing)
        try:
            [holder] = holders_of(port).holders
            assert holder.fds == (new[0].fileno(),)
            assert holder.listeners[0].inode == os.fstat(new[0].fileno()).st_ino
        finally:
            new[0].close()


def test_the_expected_process_going_while_we_look_is_could_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def going(self: ports._Look) -> None:
        raise ProcessGone(7)

    monkeypatch.setattr(ports._Look, "_move_to_expected", going)
    answer = holders_of(free_port(), expected=os.getpid())
    assert (answer.state, answer.cause) == (PortState.COULD_NOT_LOOK, "process 7 is gone")


def test_psutil_says_the_same() -> None:
    psutil = pytest.importorskip("psutil")
    with listening() as server, puppet(FORKING, argv=HERE) as parent:
        ours = {port_of(server): [os.getpid()]}
        port, fork = number(parent.hear()), number(parent.hear())
        ours[port] = [parent.pid, fork]
        theirs: dict[int, list[int]] = {}
        for connection in psutil.net_connections("tcp"):
            if connection.status == "LISTEN" and connection.laddr.port in ours:
                theirs.setdefault(connection.laddr.port, []).append(connection.pid)
        for asked, pids in ours.items():
            assert set(theirs[asked]) <= set(pids) == set(listening_pids(asked))


def test_words_for_a_user_name_every_listener() -> None:
    listener = Listener("IPv6", "::1", 80, 1, 0, True)
    held = PortAnswer(
        port=80,
        state=PortState.HELD,
        holders=(Holder(pid=7, listeners=(listener, listener._replace(address="::2"))),),
        unseen=(listener._replace(family="IPv4", address="127.0.0.1", uid=3),),
    )
    assert str(held) == (
        "port 80 is held by process 7 on [::1]:80, [::2]:80; "
        "a process that we may not see, on 127.0.0.1:80, opened by user 3"
    )
    assert re.fullmatch(
        "port 80 is held by a process that we may not see",
        str(PortAnswer(port=80, state=PortState.HELD_BY_UNSEEN)),
    )
