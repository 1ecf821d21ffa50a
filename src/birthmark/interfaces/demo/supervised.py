"""`birthmark up` as a user types it, under the demo's hand: started, asked, killed, and ended whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from birthmark.children.child import Child
from birthmark.children.command import Command
from birthmark.children.installation import HOME_ENV, open_installation
from birthmark.children.spawning import Spawner
from birthmark.children.stopping import stop_set_now
from birthmark.config.trust import needs_trust
from birthmark.core.markers import scrub
from birthmark.core.outcomes import Basis, ExitStatus, Warrant
from birthmark.core.policies import StopPolicy
from birthmark.errors import SupervisionError, SupervisorUnreachable
from birthmark.interfaces.cli.client import ask
from birthmark.interfaces.cli.records import written_down
from birthmark.interfaces.demo.telling import DemoFailed, Survivors
from birthmark.platforms import load

READY_WITHIN_S: Final = 60.0
"""From `up` to the last service's readiness; a slow, busy machine needs a third of it."""
COMMAND_WITHIN_S: Final = 60.0
LEAVE_WITHIN_S: Final = 30.0
LOG_LINES: Final = 12
_LOOK_EVERY_S: Final = 0.1

Status = Mapping[str, object]


class House:
    """A folder with an installation of its own, and the supervisor that runs in it, if one does.

    The supervisor is bound to our life: however the demo ends, it gets SIGTERM and stops its services.
    """

    def __init__(self, folder: Path, toml: Path) -> None:
        """Prepare; nothing is started."""
        self.folder = folder
        # In a project's folder a file is asked about first; this one we wrote just now.
        self.up_words = ["up", "-f", str(toml), *(["--trust"] if needs_trust(toml) else [])]
        self.home = folder / "home"
        self.installation = open_installation(self.home)
        self.said = folder / "up.log"
        """All that the supervisors said."""
        self._spawner = Spawner()
        self._child: Child | None = None
        self._from_byte = 0

    # -- the supervisor

    def up(self) -> None:
        """Start the supervisor."""
        # `up` is a command like any other to us, and no variable of ours is ever handed on: env(1) sets it.
        words = ["env", f"{HOME_ENV}={self.home}", sys.executable, "-m", "birthmark", *self.up_words]
        with open(self.said, "ab") as log:
            self._from_byte = log.tell()
            command = Command(words[0], *words[1:], stdout=log.fileno(), stderr=log.fileno(), cwd=self.folder)
            self._child = self._spawner.spawn_owned_supervised(command)

    def until_ready(self, tell: Callable[[Status, float], None]) -> list[Status]:
        """Wait until every service is ready; `tell` gets each as it becomes so, with the seconds it took.

        Raises:
            DemoFailed: It takes too long, a service was given up, or the supervisor has ended.
        """
        began = time.monotonic()
        told: set[str] = set()
        services: list[Status] = []
        while time.monotonic() < began + READY_WITHIN_S:
            services = self._ask_for_services()
            for service in services:
                name = str(service["name"])
                if service["observed"] == "ready" and name not in told:
                    told.add(name)
                    tell(service, time.monotonic() - began)
                if service["observed"] in ("blocked", "gave_up"):
                    raise DemoFailed(
                        f"{name} is {service['observed']}: {service['why']}", self.log_of(service)
                    )
            if services and len(told) == len(services):
                return services
            if self._child is None or not self._child.is_running():
                raise DemoFailed("the supervisor has ended", self.lines_said()[-LOG_LINES:])
            # Readiness is the supervisor's to notice; asking it costs a millisecond.
            time.sleep(_LOOK_EVERY_S)
        late = next((each for each in services if each["name"] not in told), None)
        if late is None:
            raise DemoFailed(
                f"the supervisor does not answer within {READY_WITHIN_S:g} s", self.lines_said()[-LOG_LINES:]
            )
        raise DemoFailed(f"{late['name']} is not ready within {READY_WITHIN_S:g} s", self.log_of(late))

    def _ask_for_services(self) -> list[Status]:
        try:
            found = ask(self.home, "GET", "/v1/services").get("services")
        except (SupervisorUnreachable, TimeoutError):
            return []  # not yet
        return found if isinstance(found, list) else []

    def kill(self) -> ExitStatus:
        """Send the supervisor SIGKILL, and wait until it has ended."""
        child = self._running()
        # Our own unreaped child: its number cannot have changed hands.
        load().deliver(child.pinned, signal.SIGKILL, Warrant(basis=Basis.CHILD, asked_by="demo"))
        return child.wait(LEAVE_WITHIN_S)

    def wait_left(self) -> ExitStatus:
        """Wait until the supervisor has ended by itself.

        Raises:
            DemoFailed: It does not.
        """
        try:
            return self._running().wait(LEAVE_WITHIN_S)
        except TimeoutError:
            raise DemoFailed(
                f"the supervisor is still there {LEAVE_WITHIN_S:g} s after `down`",
                self.lines_said()[-LOG_LINES:],
            ) from None

    @property
    def pid(self) -> int:
        """The pid of the supervisor that was started last."""
        return self._running().pid

    def _running(self) -> Child:
        if self._child is None:
            raise DemoFailed("no supervisor was started")
        return self._child

    # -- what is to be seen of it

    def birthmark(self, *words: str) -> list[str]:
        """Run a birthmark command against this installation; return the lines it printed.

        Raises:
            DemoFailed: Its exit code is not 0, or it takes too long.
        """
        environ = {**scrub(os.environ), HOME_ENV: str(self.home)}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "birthmark", *words],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=COMMAND_WITHIN_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DemoFailed(
                f"birthmark {' '.join(words)} had not ended after {COMMAND_WITHIN_S:g} s"
            ) from None
        if done.returncode != 0:
            raise DemoFailed(
                f"birthmark {' '.join(words)} ended with {done.returncode}", done.stdout.splitlines()
            )
        return done.stdout.splitlines()

    def lines_said(self) -> list[str]:
        """Return what the latest supervisor has said so far."""
        with open(self.said, "rb") as log:
            log.seek(self._from_byte)
            return log.read().decode("utf-8", "replace").splitlines()

    def log_of(self, service: Status) -> list[str]:
        """Return the end of a service's log, and where all of it is."""
        path = Path(str(service.get("log")))
        try:
            last = path.read_text("utf-8", "replace").splitlines()[-LOG_LINES:]
        except OSError as err:
            last = [f"{err.strerror}"]
        return [*last, f"(the end of {path})"]

    # -- the end

    def close(self) -> list[str]:
        """End the supervisor and whatever is left of its services; return a line for each that is not gone."""
        left: list[str] = []
        try:
            if self._child is not None and self._child.is_running():
                self._end(self._child)
            left = self._end_births()
        finally:
            self._spawner.close(children="stop")
        return left

    def _end(self, child: Child) -> None:
        warrant = Warrant(basis=Basis.CHILD, asked_by="demo")
        load().deliver(child.pinned, signal.SIGTERM, warrant)
        with suppress(TimeoutError):
            child.wait(LEAVE_WITHIN_S)

    def _end_births(self) -> list[str]:
        """End what a supervisor without a successor left: each birth by its own record and proof."""
        left = []
        with written_down(self.installation) as registry:
            for record in registry.open_births() if registry is not None else []:
                if record.identity is None:
                    continue
                try:
                    stop_set_now(record.identity, StopPolicy(), asked_by="demo")
                except SupervisionError as err:
                    left.append(f"{record.service}: {err}")
        return left

    def __enter__(self) -> House:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if left := self.close():
            raise Survivors("not everything that was started is gone", left) from error
