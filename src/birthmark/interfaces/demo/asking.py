"""JSON over HTTP to a service of the demo: requests, JSON-RPC, and answers that come as events."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Final

from birthmark.interfaces.demo.telling import DemoFailed

ANSWER_WITHIN_S: Final = 20.0
_ANSWER_BYTES: Final = 4 * 1024 * 1024


class Answer:
    """An HTTP answer, read to the end of what was asked for: `status`, `headers`, and `value` from its JSON."""

    def __init__(self, status: int, headers: Mapping[str, str], value: object) -> None:
        self.status, self.headers, self.value = status, headers, value


def request(
    port: int, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """Send one request to a port of this host; return its answer.

    Raises:
        DemoFailed: No answer in time, or one that is no JSON.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_WITHIN_S)
    sent = None if body is None else json.dumps(body)
    try:
        connection.request(method, path, sent, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        if found.get("content-type", "").startswith("text/event-stream"):
            return Answer(response.status, found, _last_event(response))
        raw = response.read(_ANSWER_BYTES)
        return Answer(response.status, found, json.loads(raw) if raw else None)
    except (OSError, http.client.HTTPException, ValueError) as err:
        raise DemoFailed(f"{method} http://127.0.0.1:{port}{path}: {err or type(err).__name__}") from err
    finally:
        connection.close()


def _last_event(response: http.client.HTTPResponse) -> object:
    """Return the first event that is an answer: a server may send notifications before it."""
    for line in response:
        name, _, data = line.decode("utf-8", "replace").partition(":")
        if name == "data":
            value = json.loads(data)
            if isinstance(value, dict) and "id" in value:
                return value
    return None


def result_of(answer: Answer, what: str) -> object:
    """Return the result in a JSON-RPC answer.

    Raises:
        DemoFailed: It is an error, or no such answer.
    """
    if isinstance(answer.value, dict) and "result" in answer.value:
        return answer.value["result"]
    raise DemoFailed(f"{what} was answered with HTTP status {answer.status} and {json.dumps(answer.value)}")


def pick(value: object, *path: str | int) -> object:
    """Return what stands at a place deep inside of JSON; None where there is no such place."""
    for step in path:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value
