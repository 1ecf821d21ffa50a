"""The API: each route is one verb of the supervisor, and each error has its status."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from typing import Final, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from birthmark.core.outcomes import Receipt
from birthmark.core.service import ServiceName, service_name
from birthmark.errors import StopTimedOut, SupervisionError, UnknownService
from birthmark.interfaces.faces import PLAIN, face_of
from birthmark.supervisor.status import ServiceStatus

_BODY_BYTES: Final = 64 * 1024

Endpoint = Callable[[Request], Awaitable[Response]]


class Household(Protocol):
    """The verbs of a supervisor that the API offers; what they promise and raise is the supervisor's."""

    def status(self) -> Sequence[ServiceStatus]: ...

    async def start(self, name: ServiceName) -> None: ...

    async def stop(self, name: ServiceName, *, force: bool = False) -> Receipt | None: ...

    async def restart(self, name: ServiceName) -> None: ...

    async def down(self) -> Sequence[Receipt]: ...


class _Answer(JSONResponse):
    """JSON in ASCII: a path or an argument need not be valid Unicode, and starlette's own would fail on it."""

    def render(self, content: object) -> bytes:
        """Return the body."""
        return json.dumps(content, separators=(",", ":")).encode("ascii")


class BadRequest(Exception):
    """The request cannot be understood; the text says what was expected."""


def make_app(supervisor: Household, *, about: Mapping[str, object]) -> Starlette:
    """Return the API of one supervisor.

    Args:
        supervisor: Whose verbs are called, in its own event loop.
        about: What `GET /v1/supervisor` answers.
    """
    api = _Api(supervisor, about)
    # Names may hold slashes: `path` takes them, and only GET has a route without a verb behind the name.
    return Starlette(
        routes=[
            Route("/v1/supervisor", _answering(api.about), methods=["GET"]),
            Route("/v1/services", _answering(api.services), methods=["GET"]),
            Route("/v1/services/{name:path}/stop", _answering(api.stop), methods=["POST"]),
            Route("/v1/services/{name:path}/start", _answering(api.start), methods=["POST"]),
            Route("/v1/services/{name:path}/restart", _answering(api.restart), methods=["POST"]),
            Route("/v1/services/{name:path}", _answering(api.service), methods=["GET"]),
            Route("/v1/down", _answering(api.down), methods=["POST"]),
            Route(
                "/{path:path}", _answering(_nothing_here), methods=["GET", "POST", "PUT", "PATCH", "DELETE"]
            ),
        ]
    )


class _Api:
    def __init__(self, supervisor: Household, about: Mapping[str, object]) -> None:
        self._supervisor, self._about = supervisor, about

    async def about(self, request: Request) -> Response:
        return _Answer(dict(self._about))

    async def services(self, request: Request) -> Response:
        return _Answer({"services": [each.to_dict() for each in self._supervisor.status()]})

    async def service(self, request: Request) -> Response:
        return _Answer(self._status(_name(request)).to_dict())

    async def stop(self, request: Request) -> Response:
        name = _name(request)
        force = (await _body(request)).get("force", False)
        if not isinstance(force, bool):
            raise BadRequest("'force' is true or false")
        receipt = await self._supervisor.stop(name, force=force)
        return _Answer(
            {
                "receipt": None if receipt is None else receipt.to_dict(),
                "status": self._status(name).to_dict(),
            }
        )

    async def start(self, request: Request) -> Response:
        name = _name(request)
        await self._supervisor.start(name)
        return _Answer({"status": self._status(name).to_dict()})

    async def restart(self, request: Request) -> Response:
        name = _name(request)
        await self._supervisor.restart(name)
        return _Answer({"status": self._status(name).to_dict()})

    async def down(self, request: Request) -> Response:
        receipts = await self._supervisor.down()
        return _Answer({"receipts": [each.to_dict() for each in receipts]})

    def _status(self, name: ServiceName) -> ServiceStatus:
        statuses = {each.name: each for each in self._supervisor.status()}
        if name not in statuses:
            raise UnknownService(name, sorted(statuses))
        return statuses[name]


async def _nothing_here(request: Request) -> Response:
    return _error("NoSuchRoute", f"there is no {request.method} {request.url.path}", 404)


def _name(request: Request) -> ServiceName:
    """Return the service's name from the path.

    Raises:
        BadRequest: No service can have it.
    """
    try:
        return service_name(request.path_params["name"])
    except ValueError as err:
        raise BadRequest(str(err)) from err


async def _body(request: Request) -> dict[str, object]:
    """Return the request's JSON object; without a body an empty one."""
    raw = b""
    async for part in request.stream():
        raw += part
        if len(raw) > _BODY_BYTES:
            raise BadRequest(f"the body is larger than {_BODY_BYTES} bytes")
    if not raw:
        return {}
    try:
        body = json.loads(raw)
    except ValueError as err:
        raise BadRequest(f"the body is no JSON: {err}") from err
    if not isinstance(body, dict):
        raise BadRequest("the body is no JSON object")
    return body


def _answering(endpoint: Endpoint) -> Endpoint:
    """Turn what the endpoint raises into an answer, here and nowhere else."""

    @wraps(endpoint)
    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except BadRequest as err:
            return _error("BadRequest", str(err), 400)
        except SupervisionError as err:
            extra: dict[str, object] = {}
            if isinstance(err, StopTimedOut) and err.receipt is not None:
                extra["receipt"] = err.receipt.to_dict()
            return _error(type(err).__name__, str(err), face_of(err).http_status, extra)
        except Exception as err:
            if os.environ.get("BIRTHMARK_DEBUG"):
                raise
            return _error(type(err).__name__, f"{type(err).__name__}: {err}", PLAIN.http_status)

    return answer


def _error(kind: str, message: str, status: int, extra: Mapping[str, object] | None = None) -> Response:
    return _Answer({"error": {"type": kind, "message": message}, **(extra or {})}, status_code=status)
