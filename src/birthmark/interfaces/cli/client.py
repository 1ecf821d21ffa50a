"""Ask the running supervisor: HTTP over its unix socket, one request a connection, nothing heavy loaded."""

from __future__ import annotations

import _socket  # half the import time of `socket`, and all that is needed here
import json
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from birthmark.errors import SupervisorUnreachable
from birthmark.interfaces.faces import FACES, PLAIN, Exit, Face, error_called
from birthmark.interfaces.sockets import address_of, control_socket

READ_WITHIN_S: Final = 5.0
"""For questions that the supervisor answers from what it knows."""

# RFC 3986, 2.3; `urllib.parse` costs more to import than a whole request takes.
_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_CHUNK_BYTES: Final = 65536
_ANSWER_BYTES: Final = 64 * 1024 * 1024


class ErrorAnswer(Exception):
    """The supervisor answered with an error: `type` is its class name, `message` its words, `body` all of it."""

    def __init__(self, type: str, message: str, body: Mapping[str, object]) -> None:  # noqa: A002
        super().__init__(type, message, body)
        self.type, self.message, self.body = type, message, body

    @property
    def face(self) -> Face:
        """The face of the error as it was raised over there."""
        kind = error_called(self.type)
        if kind is not None:
            return FACES[kind]
        return Face(Exit.USAGE, 400) if self.type == "BadRequest" else PLAIN

    def __str__(self) -> str:
        return self.message


def service_path(name: str, verb: str = "") -> str:
    """Return the path of a service, or of one of its verbs."""
    raw = name.encode("utf-8", "surrogateescape")
    path = "/v1/services/" + "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in raw)
    return f"{path}/{verb}" if verb else path


def ask(
    home: Path,
    method: str,
    path: str,
    body: Mapping[str, object] | None = None,
    *,
    timeout_s: float = READ_WITHIN_S,
) -> dict[str, object]:
    """Send one request to the supervisor of the installation in `home`; return the object it answers with.

    Raises:
        SupervisorUnreachable: Nobody listens, or what answers is no supervisor.
        ErrorAnswer: It answered, with an error.
        TimeoutError: No answer within `timeout_s`; what was asked for may still happen.
    """
    where = control_socket(home)
    deadline = time.monotonic() + timeout_s
    payload = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: birthmark\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    try:
        with closing(_socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)) as connection:
            connection.settimeout(timeout_s)
            with address_of(where) as address:
                connection.connect(address)
            connection.sendall(head.encode("ascii") + payload)
            raw = _read_to_end(connection, deadline)
    except TimeoutError:
        raise TimeoutError(f"the supervisor did not answer {method} {path} within {timeout_s:g} s") from None
    except FileNotFoundError as err:
        raise SupervisorUnreachable(str(where), "there is no such socket") from err
    except ConnectionRefusedError as err:
        raise SupervisorUnreachable(str(where), "nobody listens there any more") from err
    except OSError as err:
        raise SupervisorUnreachable(str(where), str(err.strerror or err)) from err
    return _read_answer(raw, where)


def _read_to_end(connection: _socket.socket, deadline: float) -> bytes:
    parts: list[bytes] = []
    size = 0
    while size < _ANSWER_BYTES:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        part = connection.recv(_CHUNK_BYTES)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _read_answer(raw: bytes, where: Path) -> dict[str, object]:
    """Take the JSON object out of a whole HTTP answer that ended with the connection."""
    if not raw:
        # It closes without a word on whoever is another user.
        raise SupervisorUnreachable(str(where), "it closed the connection; it answers its own user, and root")
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ", 2)
    if not words[0].startswith("HTTP/1.") or len(words) < 2 or not words[1].isdecimal():
        raise SupervisorUnreachable(str(where), "what answers there does not speak HTTP")
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
    }
    if (length := headers.get("content-length", "")).isdecimal() and int(length) != len(body):
        raise SupervisorUnreachable(str(where), "it broke off in the middle of its answer")
    try:
        answer = json.loads(body)
    except ValueError as err:
        raise SupervisorUnreachable(str(where), f"its answer is no JSON: {err}") from err
    if not isinstance(answer, dict):
        raise SupervisorUnreachable(str(where), "its answer is no JSON object")
    error = answer.get("error")
    if isinstance(error, dict):
        raise ErrorAnswer(str(error.get("type")), str(error.get("message")), answer)
    if not 200 <= int(words[1]) < 300:
        raise ErrorAnswer("Unknown", f"the supervisor answered with HTTP status {words[1]}", answer)
    return answer
