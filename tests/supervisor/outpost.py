"""A supervisor in a process of its own, to be killed: ``outpost.py SPECS``; see `crashed` and `outpost`.

Says one line of JSON for every state it reaches: ``locked``, or ``up`` with the statuses of its services.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from birthmark.children.installation import open_installation
from birthmark.config.model import ServiceSpec
from birthmark.core.states import Observed
from birthmark.errors import InstallationLocked
from birthmark.registry.sqlite import SqliteRegistry
from birthmark.supervisor.clock import SystemClock
from birthmark.supervisor.supervisor import Supervisor
from tests.supervisor.household import WITHIN_S, listener, says, service

ROOT = Path(__file__).resolve().parents[2]


def specs_of(text: str) -> list[ServiceSpec]:
    """Return the services that a line of JSON describes."""
    specs = []
    for entry in json.loads(text):
        if "listens" in entry:
            specs.append(listener(entry["name"], entry["listens"]))
        else:
            specs.append(
                service(
                    entry["name"], tuple(entry["command"]), ready=says(entry["says"]), port=entry.get("port")
                )
            )
    return specs


async def main(specs: Sequence[ServiceSpec]) -> None:
    installation = open_installation()
    with SqliteRegistry(installation.registry_path, installation.id) as registry:
        supervisor = Supervisor(
            services=specs,
            registry=registry,
            installation=installation,
            clock=SystemClock(),
            say=lambda _: None,
        )
        try:
            await supervisor.boot()
        except InstallationLocked as err:
            print(json.dumps({"locked": err.pid}), flush=True)
            return
        await supervisor.up()
        async with anyio.create_task_group() as tasks:
            await tasks.start(supervisor.run)
            while any(status.observed is not Observed.READY for status in supervisor.status()):
                await anyio.sleep(0.01)
            said = {"up": [status.to_dict() for status in supervisor.status()]}
            print(json.dumps(said), flush=True)
            await anyio.to_thread.run_sync(sys.stdin.read)
            await supervisor.down()


class Outpost:
    """The process, and the lines it says."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def hear(self) -> dict[str, object]:
        """Return the next line it says."""
        out = self.process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], WITHIN_S)
        assert ready, "the outpost says nothing"
        line: dict[str, object] = json.loads(out.readline())
        return line

    def kill(self) -> None:
        """End it with SIGKILL, so that nothing of it runs any more."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WITHIN_S)


@contextmanager
def outpost(services: Sequence[dict[str, object]]) -> Iterator[Outpost]:
    """Run a supervisor in a process of its own, in this test's installation; it is ended at the end."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.supervisor.outpost", json.dumps(services)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ,
        cwd=ROOT,
    )
    try:
        with process:
            try:
                yield Outpost(process)
            finally:
                process.kill()
    finally:
        process.wait(WITHIN_S)


if __name__ == "__main__":
    anyio.run(main, specs_of(sys.argv[1]))
