"""A supervisor in this process for tests: real children, real files, and every wait bounded."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from birthmark.children.installation import Installation, open_installation
from birthmark.config.model import ReadyKind, ReadySpec, Restart, ServiceSpec, Transport
from birthmark.core.policies import StopPolicy
from birthmark.core.service import ServiceName
from birthmark.core.states import Observed
from birthmark.registry.sqlite import SqliteRegistry
from birthmark.supervisor.booting import BootReport
from birthmark.supervisor.clock import SystemClock
from birthmark.supervisor.status import ServiceStatus
from birthmark.supervisor.supervisor import Supervisor

WITHIN_S = 20.0
"""The bound of any wait: far above what it takes, also on a busy machine."""

SOON = ReadySpec(alive_s=0.0)
QUICK = StopPolicy(stdin_grace_s=0.2, term_grace_s=0.2, settle_s=10)

LISTENER = """
import socket, sys
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen()
while True:
    c, _ = s.accept()
    c.recv(4096); c.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n"); c.close()
"""


def python(script: str, *args: str) -> tuple[str, ...]:
    """Return a command that runs a script; `-S -E` make it start faster."""
    return (sys.executable, "-S", "-E", "-c", script, *args)


def service(name: str = "one", command: tuple[str, ...] = ("cat",), **more: object) -> ServiceSpec:
    """Return a service that is ready at once, is stopped quickly and is not restarted, unless said otherwise."""
    values: dict[str, object] = {"ready": SOON, "stop": QUICK, "restart": Restart.NEVER, **more}
    return ServiceSpec(name=ServiceName(name), command=command, written=command, **values)  # type: ignore[arg-type]


def listener(name: str, port: int, **more: object) -> ServiceSpec:
    """Return a service that listens on a port, and is ready when it does."""
    values: dict[str, object] = {
        "port": port,
        "transport": Transport.HTTP,
        "ready": ReadySpec(kind=ReadyKind.TCP, deadline_s=WITHIN_S),
        **more,
    }
    return service(name, python(LISTENER, "{port}"), **values)


DEAF = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(2, b"deaf\\n")
while True: time.sleep(60)
"""
"""Ignores end-of-file and SIGTERM, and says so once it does."""


def says(pattern: str) -> ReadySpec:
    """Be ready when a line matches."""
    return ReadySpec(kind=ReadyKind.LOG, pattern=pattern, deadline_s=WITHIN_S)


@dataclass
class Household:
    """A supervisor that runs, and what it said."""

    supervisor: Supervisor
    registry: SqliteRegistry
    installation: Installation
    report: BootReport
    said: list[str] = field(default_factory=list)

    def status(self, name: str = "one") -> ServiceStatus:
        """Return the status of one service."""
        return next(status for status in self.supervisor.status() if status.name == name)

    def signals(self) -> list[Mapping[str, object]]:
        """Return what the audit says about signals sent and refused, all of it written."""
        trail = self.supervisor.trail
        assert trail is None or trail.flush(WITHIN_S)
        return [line.entry for line in self.registry.audit(last=1000) if "signal" in line.entry]

    async def seen(self, *observed: Observed, name: str = "one") -> ServiceStatus:
        """Wait until a service is observed as one of these."""
        return await self.until(lambda s: s.observed in observed, name=name)

    async def until(self, true: Callable[[ServiceStatus], bool], name: str = "one") -> ServiceStatus:
        """Wait until something is true of a service."""
        with anyio.fail_after(WITHIN_S):
            while not true(self.status(name)):
                await anyio.sleep(0.005)  # the supervisor's own events are its own business
        return self.status(name)


@asynccontextmanager
async def household(
    *specs: ServiceSpec, names: Sequence[str] | None = None, home: Path | None = None
) -> AsyncIterator[Household]:
    """Boot a supervisor in this test's installation, run it, and bring all of it down at the end."""
    installation = open_installation(home)
    said: list[str] = []
    with SqliteRegistry(installation.registry_path, installation.id, home=installation.home) as registry:
        supervisor = Supervisor(
            services=specs,
            registry=registry,
            installation=installation,
            clock=SystemClock(),
            say=said.append,
            subreaper=False,
        )
        report = await supervisor.boot()
        await supervisor.up(names)
        async with anyio.create_task_group() as tasks:
            await tasks.start(supervisor.run)
            try:
                yield Household(supervisor, registry, installation, report, said)
            finally:
                tasks.cancel_scope.cancel()


def free_port() -> int:
    """Return a port nobody listens on; somebody else may take it, but nobody here does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def held_port() -> Iterator[int]:
    """Listen on a port ourselves: to a supervisor in another process we are a stranger."""
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        ours.listen()
        port: int = ours.getsockname()[1]
        yield port


def files_below(folder: Path) -> Iterator[bytes]:
    """Yield the content of every file in a folder."""
    for path, _, names in os.walk(folder):
        for name in names:
            file = Path(path, name)
            if file.is_file():
                yield file.read_bytes()


def answers(port: int) -> bool:
    """Say whether the listener on a port answers a request."""
    with socket.create_connection(("127.0.0.1", port), WITHIN_S) as asking:
        asking.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return asking.recv(64).startswith(b"HTTP/1.1 200")


def log_lines(status: ServiceStatus) -> list[list[str]]:
    """Return a service's log as (time, stream, text) each."""
    return [line.split(" ", 2) for line in Path(status.log).read_text().splitlines()]


def write_program(path: str, text: str) -> None:
    """Write an executable file."""
    Path(path).write_text(text)
    os.chmod(path, 0o755)
