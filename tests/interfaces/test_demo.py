"""The demo's two clients against a small HTTP server of our own, and its words."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from birthmark.interfaces.demo import a2a_client
from birthmark.interfaces.demo.asking import pick, request, result_of
from birthmark.interfaces.demo.mcp_client import McpSession
from birthmark.interfaces.demo.telling import DemoFailed, Teller
from birthmark.interfaces.demo.wishes import free_ports

Body = Any  # JSON that was sent to the little server, of whatever shape


class Server(ThreadingHTTPServer):
    """Answers as `answers` say, and keeps what it was asked."""

    answers: Mapping[str, object]
    events = False
    asked: list[tuple[str, str, Mapping[str, str], Body]]


class Page(BaseHTTPRequestHandler):
    server: Server

    def answer(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.loads(raw) if raw else None
        self.server.asked.append((self.command, self.path, dict(self.headers), body))
        method = body.get("method") if isinstance(body, dict) else None
        found = self.server.answers.get(method or self.path)
        if isinstance(body, dict) and "id" in body:
            found = {"jsonrpc": "2.0", "id": body["id"], "result": found}
        text = json.dumps(found).encode()
        if self.server.events:
            text = b'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/message"}\n\n' + (
                b"event: message\ndata: " + text + b"\n\n"
            )
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if self.server.events else "application/json")
        self.send_header("Mcp-Session-Id", "s1")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_DELETE = answer  # noqa: N815 - the names the library calls

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(answers: Mapping[str, object], *, events: bool = False) -> Iterator[tuple[int, Server]]:
    with Server(("127.0.0.1", 0), Page) as server:
        server.answers, server.events, server.asked = answers, events, []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1], server
        finally:
            server.shutdown()
            thread.join(5)


HELLO = {"protocolVersion": "2025-06-18", "serverInfo": {"name": "little", "version": "1"}}
TOOLS = {"tools": [{"name": "look"}, {"name": "leap"}]}
SAID = {"content": [{"type": "text", "text": "looked"}]}


@pytest.mark.parametrize("events", [False, True], ids=["json", "events"])
def test_a_tool_is_called_within_a_session_however_the_server_answers(events: bool) -> None:
    answers = {"initialize": HELLO, "tools/list": TOOLS, "tools/call": SAID}
    with serving(answers, events=events) as (port, server):
        with McpSession(port) as session:
            assert session.server == "little 1"
            assert session.tools() == ["look", "leap"]
            assert session.call("look", far=True) == "looked"
        assert [(verb, path, body and body["method"]) for verb, path, _, body in server.asked] == [
            ("POST", "/mcp", "initialize"),
            ("POST", "/mcp", "notifications/initialized"),
            ("POST", "/mcp", "tools/list"),
            ("POST", "/mcp", "tools/call"),
            ("DELETE", "/mcp", None),
        ]
        assert all(headers["Mcp-Session-Id"] == "s1" for _, _, headers, _ in server.asked[1:])
        assert server.asked[3][3]["params"] == {"name": "look", "arguments": {"far": True}}


def test_an_error_in_place_of_a_result_is_told_with_its_words() -> None:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "no session"}}
    with serving({"/": error}) as (port, _):
        answer = request(port, "GET", "/")
        with pytest.raises(DemoFailed, match="tools/list was answered with HTTP status 200 .*no session"):
            result_of(answer, "tools/list")


def test_a_port_on_which_nobody_listens_is_named() -> None:
    (port,) = free_ports(1)
    with pytest.raises(DemoFailed, match=f"http://127.0.0.1:{port}/: .*refused"):
        request(port, "GET", "/")


def test_an_agent_whose_card_names_another_port_is_no_success() -> None:
    card = {"name": "clock", "supportedInterfaces": [{"url": "http://127.0.0.1:9/"}]}
    with serving({"/.well-known/agent-card.json": card}) as (port, _):
        with pytest.raises(DemoFailed, match=f"clock on port {port} says in its card .* http://127.0.0.1:9/"):
            a2a_client.card_of(port)


def test_free_ports_differ_and_come_from_the_picked_range() -> None:
    found = free_ports(5)
    assert len(set(found)) == 5
    assert all(20000 <= port <= 29999 for port in found)


def test_pick_returns_none_for_a_place_that_is_not_there() -> None:
    assert pick({"a": [{"b": 1}]}, "a", 0, "b") == 1
    assert pick({"a": []}, "a", 0, "b") is None
    assert pick("text", "a") is None


def test_the_object_at_the_end_holds_the_chapters_the_reason_and_the_facts() -> None:
    teller = Teller(as_json=True)
    teller.chapter("One")
    teller.shown("it is so")
    teller.chapter("Two")
    teller.failed(DemoFailed("it is not", ["look there"]))
    teller.facts["left"] = 3
    told = teller.to_dict()
    first, second = teller.chapters
    assert (told["ok"], told["reason"], told["left"]) == (False, "it is not", 3)
    assert (first["title"], first["shown"]) == ("One", "it is so")
    assert second == {"title": "Two", "failed": "it is not"}


def test_long_paths_are_shortened_in_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    teller = Teller(as_json=False, short={"/very/long/folder": "$SERVERS"})
    teller.lines(["/very/long/folder/bin/python x"])
    assert capsys.readouterr().out == "    $SERVERS/bin/python x\n"
