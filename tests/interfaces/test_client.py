"""The client, against servers that answer well, badly, slowly or not at all."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from birthmark.errors import SupervisorUnreachable
from birthmark.interfaces.cli.client import ErrorAnswer, ask, service_path
from birthmark.interfaces.sockets import address_of, control_socket

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"a": 1}\n'


@contextmanager
def serving(home: Path, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Answer one connection on the control socket in a thread."""
    path = control_socket(home)
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        with address_of(path) as address:
            listener.bind(address)
        listener.listen()

        def one() -> None:
            connection, _ = listener.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=one)
        thread.start()
        try:
            yield
        finally:
            thread.join(5)
            assert not thread.is_alive()


def saying(raw: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(raw)

    return serve


def test_an_answer_is_an_object(birthmark_home: Path) -> None:
    with serving(birthmark_home, saying(ANSWER)):
        assert ask(birthmark_home, "GET", "/v1/services") == {"a": 1}


def test_what_is_asked_is_one_plain_request(birthmark_home: Path) -> None:
    heard: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        heard.append(connection.recv(65536))
        connection.sendall(ANSWER)

    with serving(birthmark_home, serve):
        ask(birthmark_home, "POST", service_path("a b/c", "stop"), {"force": True})
    assert heard == [
        b"POST /v1/services/a%20b%2Fc/stop HTTP/1.1\r\nHost: birthmark\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: 15\r\n\r\n"
        b'{"force": true}'
    ]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "it closed the connection"),
        (b"SSH-2.0-OpenSSH\r\n", "what answers there does not speak HTTP"),
        (b"HTTP/1.1 OK\r\n\r\n{}", "what answers there does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{}", "it broke off in the middle of its answer"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "its answer is no JSON"),
        (b"HTTP/1.1 200 OK\r\n\r\n[1]", "its answer is no JSON object"),
    ],
)
def test_what_is_no_answer_of_a_supervisor_is_named(birthmark_home: Path, raw: bytes, why: str) -> None:
    with serving(birthmark_home, saying(raw)), pytest.raises(SupervisorUnreachable, match=why):
        ask(birthmark_home, "GET", "/")


def test_an_error_keeps_its_type_and_words(birthmark_home: Path) -> None:
    raw = b'HTTP/1.1 404 Not Found\r\n\r\n{"error": {"type": "UnknownService", "message": "no service"}}'
    with serving(birthmark_home, saying(raw)), pytest.raises(ErrorAnswer) as caught:
        ask(birthmark_home, "GET", "/")
    assert (caught.value.type, str(caught.value), caught.value.face) == (
        "UnknownService",
        "no service",
        (4, 404),
    )


def test_a_status_without_an_error_is_an_error_too(birthmark_home: Path) -> None:
    with serving(birthmark_home, saying(b"HTTP/1.1 502 Bad Gateway\r\n\r\n{}")):
        with pytest.raises(ErrorAnswer, match="HTTP status 502"):
            ask(birthmark_home, "GET", "/")


def test_a_supervisor_that_does_not_answer_is_not_waited_for(birthmark_home: Path) -> None:
    done = threading.Event()

    def serve(connection: socket.socket) -> None:
        done.wait(5)

    with serving(birthmark_home, serve):
        try:
            with pytest.raises(TimeoutError, match=r"did not answer GET / within 0\.05 s"):
                ask(birthmark_home, "GET", "/", timeout_s=0.05)
        finally:
            done.set()


def test_a_supervisor_that_dribbles_is_not_waited_for_either(birthmark_home: Path) -> None:
    done = threading.Event()

    def serve(connection: socket.socket) -> None:
        try:
            while not done.wait(0.01):
                connection.sendall(b"H")
        except OSError:
            pass  # the client has left, as it should

    with serving(birthmark_home, serve):
        try:
            with pytest.raises(TimeoutError):
                ask(birthmark_home, "GET", "/", timeout_s=0.2)
        finally:
            done.set()


def test_a_socket_that_nobody_listens_on_is_no_supervisor(birthmark_home: Path) -> None:
    path = control_socket(birthmark_home)
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(SupervisorUnreachable, match="nobody listens there any more"):
        ask(birthmark_home, "GET", "/")


def test_a_folder_is_no_supervisor(birthmark_home: Path) -> None:
    control_socket(birthmark_home).mkdir(parents=True)
    with pytest.raises(SupervisorUnreachable):
        ask(birthmark_home, "GET", "/")


def test_a_path_longer_than_a_socket_address_works(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 30) / ("longer" * 20)
    assert len(os.fsencode(control_socket(home))) > 250
    with serving(home, saying(ANSWER)):
        assert ask(home, "GET", "/") == {"a": 1}
