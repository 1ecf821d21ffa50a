"""The API on a real socket, over a household of values."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from birthmark.errors import InstallationBroken
from birthmark.interfaces.cli.client import ErrorAnswer, service_path
from birthmark.interfaces.http import server as server_module
from birthmark.interfaces.http.server import listening
from birthmark.interfaces.sockets import address_of, control_socket
from tests.interfaces.served import Api, receipt, serving


@pytest.fixture
def api(birthmark_home: Path) -> Iterator[Api]:
    with serving(birthmark_home) as served:
        yield served


STATUS = {
    "name": "time",
    "kind": "mcp",
    "desired": "up",
    "observed": "ready",
    "why": "alive",
    "pid": None,
    "port": None,
    "url": None,
    "birth": None,
    "started_at": None,
    "uptime_s": None,
    "restarts": 0,
    "last_exit": None,
    "stdout_bytes": None,
    "proof": None,
    "log": "",
}
RECEIPT = {
    "service": "time",
    "termination": "exited",
    "members": [
        {
            "pid": 5,
            "found": "leader",
            "command": "x",
            "sent": [{"signal": "SIGTERM", "after_ms": 0}],
            "end": "exit code 0",
            "why": None,
        }
    ],
    "took_ms": 3,
    "notes": [],
}


def test_the_supervisor_says_who_it_is(api: Api) -> None:
    assert api.ask("GET", "/v1/supervisor") == {"pid": 1, "version": "x"}


def test_services_are_listed_and_shown_one_by_one(api: Api) -> None:
    services = api.ask("GET", "/v1/services")["services"]
    assert isinstance(services, list)
    assert [each["name"] for each in services] == ["time", "a/b stop", "deaf", "held", "broken"]
    assert api.ask("GET", service_path("time")) == STATUS


def test_a_stop_answers_with_the_receipt_and_the_status(api: Api) -> None:
    assert api.ask("POST", service_path("time", "stop"), {"force": True}) == {
        "receipt": RECEIPT,
        "status": STATUS,
    }
    assert api.household.heard == [("stop", "time", "True")]


def test_a_stop_without_a_body_is_polite(api: Api) -> None:
    api.ask("POST", service_path("time", "stop"))
    assert api.household.heard == [("stop", "time", "False")]


@pytest.mark.parametrize("verb", ["start", "restart"])
def test_a_verb_answers_with_the_status(api: Api, verb: str) -> None:
    assert api.ask("POST", service_path("time", verb)) == {"status": STATUS}
    assert api.household.heard == [(verb, "time")]


def test_a_name_with_slashes_and_verbs_in_it_reaches_the_right_service(api: Api) -> None:
    assert api.ask("GET", service_path("a/b stop"))["name"] == "a/b stop"
    api.ask("POST", service_path("a/b stop", "restart"))
    assert api.household.heard == [("restart", "a/b stop")]


def test_down_answers_with_the_receipts(api: Api) -> None:
    assert api.ask("POST", "/v1/down") == {"receipts": [RECEIPT]}


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "status", "words"),
    [
        ("GET", "/v1/services/nosuch", None, "UnknownService", 404, "no service is called 'nosuch'"),
        ("POST", "/v1/services/held/start", None, "PortHeld", 409, "port 80 is held by process 7 (nginx)"),
        ("POST", "/v1/services/broken/start", None, "ZeroDivisionError", 500, "division by zero"),
        ("POST", "/v1/services/time/stop", {"force": 1}, "BadRequest", 400, "'force' is true or false"),
        ("POST", "/v1/services/a%00b/stop", None, "BadRequest", 400, "which no name may hold"),
        ("POST", "/v1/services//stop", None, "BadRequest", 400, "the service name is empty"),
        ("GET", "/v2/services", None, "NoSuchRoute", 404, "there is no GET /v2/services"),
        ("DELETE", "/v1/services/time", None, "NoSuchRoute", 404, "there is no DELETE /v1/services/time"),
    ],
)
def test_an_error_has_a_type_words_and_a_status(
    api: Api, method: str, path: str, body: dict[str, object] | None, kind: str, status: int, words: str
) -> None:
    raw = exchange(api.home, request(method, path, b"" if body is None else json.dumps(body).encode()))
    answer = json.loads(raw.partition(b"\r\n\r\n")[2])
    assert int(raw.split()[1]) == status
    assert answer["error"]["type"] == kind
    assert words in answer["error"]["message"]


def test_survivors_are_an_error_that_brings_the_receipt(api: Api) -> None:
    with pytest.raises(ErrorAnswer) as caught:
        api.ask("POST", service_path("deaf", "stop"))
    assert (caught.value.type, caught.value.face) == ("StopTimedOut", (6, 504))
    assert caught.value.body["receipt"] == receipt(None).to_dict()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "the body is no JSON"),
        (b"[]", "the body is no JSON object"),
        (b"x" * 70000, "larger than 65536 bytes"),
    ],
)
def test_a_body_that_cannot_be_read_does_nothing(api: Api, body: bytes, words: str) -> None:
    raw = exchange(api.home, request("POST", "/v1/services/time/stop", body))
    assert raw.startswith(b"HTTP/1.1 400 ")
    assert words in json.loads(raw.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert api.household.heard == []


def test_what_is_no_http_harms_nobody(api: Api) -> None:
    assert exchange(api.home, b"\0\1\2\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert api.ask("GET", "/v1/supervisor") == {"pid": 1, "version": "x"}


def request(method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def exchange(home: Path, raw: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        with address_of(control_socket(home)) as address:
            connection.connect(address)
        connection.sendall(raw)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


# -- the socket


def test_only_its_own_user_may_open_the_socket(api: Api) -> None:
    path = control_socket(api.home)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_socket_is_gone_with_its_server(birthmark_home: Path) -> None:
    with serving(birthmark_home):
        assert control_socket(birthmark_home).is_socket()
    assert list(control_socket(birthmark_home).parent.iterdir()) == []


def test_a_connection_that_comes_with_the_end_is_closed(birthmark_home: Path) -> None:
    """An unclosed transport is a warning, and warnings are errors."""
    for _ in range(10):
        with socket.socket(socket.AF_UNIX) as late:
            late.settimeout(5)
            with serving(birthmark_home) as api:
                late.connect(str(control_socket(api.home)))
            try:
                assert late.recv(1) == b""
            except ConnectionResetError:
                pass


def test_a_socket_that_a_dead_server_left_is_replaced(birthmark_home: Path) -> None:
    path = control_socket(birthmark_home)
    path.parent.mkdir(parents=True, mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with serving(birthmark_home) as api:
        assert api.ask("GET", "/v1/supervisor")["pid"] == 1


def test_a_file_in_the_sockets_place_is_left_alone(birthmark_home: Path) -> None:
    path = control_socket(birthmark_home)
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_text("precious")
    with pytest.raises(InstallationBroken, match="it is no socket"):
        with listening(birthmark_home):
            pass
    assert path.read_text() == "precious"


def test_a_socket_that_somebody_else_put_there_meanwhile_is_left_alone(birthmark_home: Path) -> None:
    path = control_socket(birthmark_home)
    with listening(birthmark_home):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


def test_a_path_longer_than_a_socket_address_is_served(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 30) / ("longer" * 20)
    with serving(home) as api:
        assert api.ask("GET", "/v1/supervisor")["pid"] == 1
    assert list(control_socket(home).parent.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="SO_PEERCRED is Linux's")
def test_another_users_connection_is_closed_before_a_byte_is_read(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "peer_uid", lambda connection: os.geteuid() + 1)
    assert exchange_or_nothing(api.home, request("POST", "/v1/down")) == b""
    monkeypatch.undo()
    assert api.ask("GET", "/v1/supervisor")["pid"] == 1
    assert api.household.heard == []
    assert api.said == [
        f"closed a connection of uid {os.geteuid() + 1} to the control socket: it is not ours"
    ]


@pytest.mark.root
@pytest.mark.skipif(sys.platform != "linux", reason="SO_PEERCRED is Linux's")
def test_a_real_process_of_another_user_is_refused(api: Api) -> None:
    path = control_socket(api.home)
    for folder in (path.parent, api.home, *api.home.parents):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o001)
    path.chmod(0o666)
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os._exit(0 if exchange_or_nothing(api.home, request("POST", "/v1/down")) == b"" else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert api.ask("GET", "/v1/supervisor")["pid"] == 1
    assert api.said == ["closed a connection of uid 65534 to the control socket: it is not ours"]
    assert api.household.heard == []


def exchange_or_nothing(home: Path, raw: bytes) -> bytes:
    try:
        return exchange(home, raw)
    except (ConnectionResetError, BrokenPipeError):
        return b""
