"""Serve the API on the control socket, inside the event loop of `up`."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from birthmark.errors import InstallationBroken
from birthmark.interfaces.sockets import address_of, control_socket, peer_uid
from birthmark.supervisor.locking import remove_stale_socket

_GRACE_S: Final = 2
"""How long running requests may take to end once the server is to end."""

_TURNS: Final = 5


@contextmanager
def listening(home: Path) -> Iterator[socket.socket]:
    """Listen on the control socket, mode 0600, and take its file away afterwards.

    The caller holds the installation's lock: a socket that is there already belongs to nobody.

    Raises:
        InstallationBroken: The socket cannot be made, or something else has its name.
    """
    path = control_socket(home)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_stale_socket(path)
        listener, made = _bind(path)
    except OSError as err:
        raise InstallationBroken(str(path), f"cannot listen there: {err.strerror or err}") from err
    with listener:
        try:
            yield listener
        finally:
            _take_away(path, made)


def _bind(path: Path) -> tuple[socket.socket, tuple[int, int]]:
    """Make the socket under a passing name and move it: whoever finds it by its name can connect to it."""
    passing = path.with_name(f".{path.name}.{os.getpid()}")
    passing.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address_of(passing) as address:
            listener.bind(address)
        passing.chmod(0o600)
        listener.listen(128)
        found = passing.lstat()
        passing.replace(path)
    except BaseException:
        listener.close()
        raise
    return listener, (found.st_dev, found.st_ino)


def _take_away(path: Path, made: tuple[int, int]) -> None:
    """Remove the socket's file, unless it is somebody else's by now."""
    try:
        found = path.lstat()
        if (found.st_dev, found.st_ino) == made:
            path.unlink()
    except OSError:
        pass  # its folder is gone; so is the socket


class PeerChecked(H11Protocol):
    """HTTP for our own user and for root. Anybody else's connection is closed before a byte is read."""

    say: Callable[[str], None] = staticmethod(lambda line: None)
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Look at the peer's credentials first."""
        uid = peer_uid(transport.get_extra_info("socket"))
        if uid is not None and uid not in (os.geteuid(), 0):
            self._refused = True
            self.say(f"closed a connection of uid {uid} to the control socket: it is not ours")
            transport.abort()
            return
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Say nothing more to whom nothing was said."""
        if not self._refused:
            super().connection_lost(exc)


class ControlServer(Server):
    """uvicorn without signal handlers of its own and without a tick: it ends when told to, and sleeps till then."""

    def __init__(self, app: ASGIApp, *, say: Callable[[str], None]) -> None:
        protocol = type("PeerChecked", (PeerChecked,), {"say": staticmethod(say)})
        super().__init__(
            Config(
                app,
                http=protocol,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                date_header=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE_S,
            )
        )
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Have `serve` return once the running requests have been answered. From the loop's thread only."""
        self.should_exit = True
        self._ended.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `up`."""
        yield

    async def main_loop(self) -> None:
        """Wait for the end. uvicorn wakes ten times a second, for a date that nobody reads here."""
        await self._ended.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nobody any more, let whoever was accepted become known, then end all connections."""
        loop = asyncio.get_running_loop()
        for listener in sockets or ():
            # Not `close` yet: asyncio forgets a connection that was accepted and not yet introduced to its
            # closed server, and leaves it open (CPython 3.11, `Server._attach`). Proactors have no readers.
            with suppress(NotImplementedError):
                loop.remove_reader(listener.fileno())
        # From accept to `connection_made` it takes three turns of the loop.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        await super().shutdown(sockets)
