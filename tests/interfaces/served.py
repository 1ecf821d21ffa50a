"""The real API on its real socket, over a household of values."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.lowlevel

from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import Found, MemberReceipt, Receipt, Termination
from birthmark.core.service import ServiceName
from birthmark.core.states import Desired, Observed
from birthmark.errors import PortHeld, StopTimedOut
from birthmark.interfaces.cli.client import ask
from birthmark.interfaces.http.app import make_app
from birthmark.interfaces.http.server import ControlServer, listening
from birthmark.supervisor.status import ServiceStatus


class FakeHousehold:
    """Services of values; `heard` is what was asked of it."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, ...]] = []

    def status(self) -> Sequence[ServiceStatus]:
        return [
            ServiceStatus(
                name=ServiceName(name),
                kind=ChildKind.MCP,
                desired=Desired.UP,
                observed=Observed.READY,
                why="alive",
            )
            for name in ("time", "a/b stop", "deaf", "held", "broken")
        ]

    async def start(self, name: ServiceName) -> None:
        self.heard.append(("start", name))
        if name == "held":
            raise PortHeld(80, ["process 7 (nginx)"])
        if name == "broken":
            raise ZeroDivisionError("division by zero")

    async def stop(self, name: ServiceName, *, force: bool = False) -> Receipt | None:
        self.heard.append(("stop", name, str(force)))
        if name == "deaf":
            raise StopTimedOut(5, [5], "SIGKILL", receipt(None))
        return receipt("exit code 0")

    async def restart(self, name: ServiceName) -> None:
        self.heard.append(("restart", name))

    async def down(self) -> Sequence[Receipt]:
        self.heard.append(("down",))
        return [receipt("exit code 0")]


def receipt(end: str | None) -> Receipt:
    member = MemberReceipt(pid=5, found=Found.LEADER, command="x", sent=[("SIGTERM", 0)], end=end)
    return Receipt(service="time", termination=Termination.EXITED, members=[member], took_ms=3)


class Api:
    """A served household: `say` collects what the server has to say."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.household = FakeHousehold()
        self.said: list[str] = []
        self._up = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._end: Callable[[], None] | None = None

    def _run(self) -> None:
        try:
            anyio.run(self._serve)
        except BaseException as err:
            self._failed = err
            self._up.set()

    async def _serve(self) -> None:
        with listening(self.home) as listener:
            app = make_app(self.household, about={"pid": 1, "version": "x"})
            server = ControlServer(app, say=self.said.append)
            token = anyio.lowlevel.current_token()
            self._end = lambda: anyio.from_thread.run_sync(server.end, token=token)
            self._up.set()
            await server.serve([listener])

    def start(self) -> None:
        self._thread.start()
        assert self._up.wait(5)
        if self._failed is not None:
            raise self._failed

    def end(self) -> None:
        if self._end is not None:
            self._end()
        self._thread.join(10)
        assert not self._thread.is_alive()
        if self._failed is not None:
            raise self._failed

    def ask(self, method: str, path: str, body: dict[str, object] | None = None) -> dict[str, object]:
        return ask(self.home, method, path, body)


@contextmanager
def serving(home: Path) -> Iterator[Api]:
    api = Api(home)
    api.start()
    try:
        yield api
    finally:
        api.end()
