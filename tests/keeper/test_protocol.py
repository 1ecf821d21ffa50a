"""The protocol, over real sockets: whole messages or none, versions apart, descriptors beside, deep folders."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from birthmark.keeper import protocol
from birthmark.keeper.protocol import BadMessage, Ended, Hello, Lost, Stop, decode, encode, receive, send


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = protocol.pair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize(
    "message",
    [
        Hello(7, control=False),
        Stop("the test"),
        Stop("half a pair \udc80", {"term_grace_s": 0.5}, force=True),
        Ended(None, 9, True, "asked", {"members": []}),
        Lost("b" * 32, 12, 7, None, False, [1, 2]),
    ],
)
def test_a_message_arrives_as_it_was_sent(
    message: protocol.Message, ends: tuple[socket.socket, socket.socket]
) -> None:
    send(ends[0], message)
    assert receive(ends[1]) == (message, [])


def test_a_message_larger_than_a_socket_takes_arrives_whole_with_its_descriptors(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    message = Stop("x" * (8 << 20))
    with open(os.devnull) as file:
        send(ends[0], message, [file.fileno()])
        found = receive(ends[1])
    assert found is not None
    assert found[0] == message
    assert [os.readlink(f"/proc/self/fd/{fd}") for fd in found[1]] == ["/dev/null"]
    assert [os.get_inheritable(fd) for fd in found[1]] == [False]
    os.close(found[1][0])


def test_a_newer_senders_fields_are_left_out_and_an_older_ones_have_their_defaults() -> None:
    newer = json.dumps({"v": 9, "message": "Hello", "epoch": 3, "colour": "blue"}).encode()
    assert decode(newer) == Hello(3, control=True)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"v": 1}',
        b'{"v": 1, "message": "Surprise"}',
        b'{"message": "Hello", "epoch": 1}',
        b'{"v": 1, "message": "Hello"}',
        b'{"v": 1, "message": "Hello", "epoch": "1"}',
        b'{"v": 1, "message": "Hello", "epoch": true}',
        b'{"v": 1, "message": "Hello", "epoch": null}',
        b'{"v": 1, "message": "Stop", "asked_by": 3}',
    ],
)
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(body)


def test_the_descriptors_of_a_bad_message_are_closed(ends: tuple[socket.socket, socket.socket]) -> None:
    reading, writing = os.pipe()
    import array

    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [writing]))]
    ends[0].sendmsg([b"nonsense"], rights)
    os.close(writing)
    with pytest.raises(BadMessage):
        receive(ends[1])
    assert os.read(reading, 1) == b"", "end-of-file: nobody holds the other end"
    os.close(reading)


def test_the_end_is_none(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].close()
    assert receive(ends[1]) is None


def test_the_last_words_of_whoever_went_with_something_unread_are_heard(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    send(ends[1], Stop("unread"))
    send(ends[0], Ended(7, None, False, "its leader ended"))
    ends[0].close()
    assert receive(ends[1]) == (Ended(7, None, False, "its leader ended"), [])
    assert receive(ends[1]) is None


def test_a_full_socket_blocks_nobody_who_does_not_want_to(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        for _ in range(100_000):
            send(ends[0], Hello(1))


def test_a_socket_in_a_folder_deeper_than_an_address_reaches_is_bound_and_reached(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)
    birth = "0" * 32
    with protocol.listen(str(deep), birth) as listener:
        assert (deep / protocol.name_of(birth)).is_socket()
        with protocol.connect(str(deep), birth) as ours:
            theirs, _ = listener.accept()
            with theirs:
                assert protocol.peer(ours) == (os.getpid(), os.geteuid())
                assert protocol.trusted(theirs)
                send(ours, Hello(1))
                assert receive(theirs) == (Hello(1), [])


def test_a_name_is_bound_once(tmp_path: Path) -> None:
    with protocol.listen(str(tmp_path), "1" * 32):
        with pytest.raises(OSError, match="in use"):
            protocol.listen(str(tmp_path), "1" * 32)


def test_nobody_answers_where_no_keeper_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        protocol.connect(str(tmp_path), "2" * 32)
    protocol.listen(str(tmp_path), "2" * 32).close()
    with pytest.raises(ConnectionRefusedError):
        protocol.connect(str(tmp_path), "2" * 32)


def test_every_message_is_encoded_without_anything_but_ascii() -> None:
    assert encode(Stop("Ünïcödé")).isascii()
