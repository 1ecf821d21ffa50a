"""The foreground of `up`: the supervisor's loop, its API and its signals, in one event loop."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import anyio
import anyio.abc

from birthmark import __version__
from birthmark.children.installation import Installation
from birthmark.config.model import Config
from birthmark.core.outcomes import ApiServerStamp, Receipt, signal_name
from birthmark.core.service import ServiceName
from birthmark.errors import WorkerLost
from birthmark.interfaces.http.app import make_app
from birthmark.interfaces.http.server import ControlServer, listening
from birthmark.interfaces.sockets import control_socket
from birthmark.registry.sqlite import SqliteRegistry
from birthmark.supervisor.clock import SystemClock
from birthmark.supervisor.status import ServiceStatus
from birthmark.supervisor.supervisor import Supervisor

_STOPS: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
"""What ends an `up`. One that was ignored when we started stays so: `nohup` means it."""


def serve(
    config: Config,
    names: Sequence[str] | None,
    installation: Installation,
    stamp: ApiServerStamp | str,
    *,
    say: Callable[[str], None],
    tell: Callable[[object], None],
) -> list[Receipt]:
    """Supervise until a signal, or a `down` through the API, has stopped everything; return the receipts.

    Args:
        config: Whose services are supervised.
        names: Those to bring up; None means all that are wanted.
        installation: Whose they are.
        stamp: What became of the API server's mark.
        say: Gets lines for people.
        tell: Gets one object once the API listens.

    Raises:
        InstallationLocked: Another supervisor runs the installation. Nothing was touched.
        SupervisionError: It could not be begun, or not be gone on with.
    """
    with SqliteRegistry(installation.registry_path, installation.id, home=installation.home) as registry:
        supervisor = Supervisor(
            services=config.services,
            registry=registry,
            installation=installation,
            clock=SystemClock(),
            say=say,
            settings=config.supervisor,
        )
        about = {
            "pid": os.getpid(),
            "version": __version__,
            "installation": installation.id,
            "home": str(installation.home),
            "config": [str(each.path) for each in config.sources],
            "started_at": SystemClock().now().isoformat(),
            "stamp": stamp.value if isinstance(stamp, ApiServerStamp) else None,
        }
        foreground = _Foreground(supervisor, say)
        try:
            anyio.run(foreground.run, installation, names, about, tell)
        except BaseExceptionGroup as group:
            raise _first(group) from group
        return foreground.receipts


class _Foreground:
    """One `up`: the verbs the API offers, and who may end it."""

    def __init__(self, supervisor: Supervisor, say: Callable[[str], None]) -> None:
        self.receipts: list[Receipt] = []
        self._supervisor, self._say = supervisor, say
        self._asked = anyio.Event()

    # -- what the API offers

    def status(self) -> Sequence[ServiceStatus]:
        return self._supervisor.status()

    async def start(self, name: ServiceName) -> None:
        await self._supervisor.start(name)

    async def stop(self, name: ServiceName, *, force: bool = False) -> Receipt | None:
        return await self._supervisor.stop(name, force=force)

    async def restart(self, name: ServiceName) -> None:
        await self._supervisor.restart(name)

    async def down(self) -> Sequence[Receipt]:
        """Stop everything; the receipts are kept for the end of `up` too."""
        receipts = await self._supervisor.down()
        self.receipts = self.receipts or receipts
        return receipts

    # -- the loop

    async def run(
        self,
        installation: Installation,
        names: Sequence[str] | None,
        about: dict[str, object],
        tell: Callable[[object], None],
    ) -> None:
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._obey_signals)
            try:
                if not await self._boot():
                    return
                with listening(installation.home) as listener:
                    server = ControlServer(make_app(self, about=about), say=self._say)
                    async with anyio.create_task_group() as serving:
                        try:
                            await self._supervisor.up(names)
                            async with anyio.create_task_group() as loop:
                                # The verbs need it: who asks before it runs waits in the socket's queue.
                                await loop.start(self._run_to_its_end, loop.cancel_scope)
                                serving.start_soon(_serve_to_its_end, server, listener)
                                where = control_socket(installation.home)
                                self._say(f"the API listens on {where}; `birthmark ps` asks it")
                                tell({"supervisor": about})
                                loop.start_soon(self._down_when_asked)
                        finally:
                            # A `down` through the API is being answered: the server ends behind its answer.
                            server.end()
            finally:
                self._supervisor.close()
                tasks.cancel_scope.cancel()

    async def _boot(self) -> bool:
        """Boot; False when a signal came first."""
        booted = False
        async with anyio.create_task_group() as boot:
            boot.start_soon(self._cancel_when_asked, boot.cancel_scope)
            await self._supervisor.boot()
            booted = not self._asked.is_set()
            boot.cancel_scope.cancel()
        return booted

    async def _run_to_its_end(
        self, scope: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None]
    ) -> None:
        await self._supervisor.run(task_status=task_status)
        scope.cancel()

    async def _down_when_asked(self) -> None:
        await self._asked.wait()
        # Its loop may have ended this instant, by a `down` through the API: then all is stopped.
        with anyio.CancelScope(shield=True), suppress(WorkerLost):
            await self.down()

    async def _cancel_when_asked(self, scope: anyio.CancelScope) -> None:
        await self._asked.wait()
        scope.cancel()

    async def _obey_signals(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """The first signal stops everything, each further one shortens the grace."""
        chosen = [number for name in _STOPS if (number := getattr(signal, name, None)) is not None]
        heeded = [number for number in chosen if signal.getsignal(number) is not signal.SIG_IGN]
        with anyio.open_signal_receiver(*heeded) as signals:
            task_status.started()
            async for number in signals:
                if self._asked.is_set():
                    self._say("once more: what is left is ended now")
                    self._supervisor.hurry()
                    continue
                self._say(f"{signal_name(number)}: stopping; once more shortens the grace")
                self._asked.set()


async def _serve_to_its_end(server: ControlServer, listener: socket.socket) -> None:
    """Serve until the server is told to end. Cancelled, it would leave its connections open behind it."""
    with anyio.CancelScope(shield=True):
        await server.serve([listener])


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error in a group of groups: what a person is told."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
