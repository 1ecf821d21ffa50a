"""The supervisor: takes an installation, settles what is left in it, and keeps its services as they are wanted."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import anyio
import anyio.abc
import anyio.to_thread

from birthmark.children.installation import Installation
from birthmark.children.proving import prove
from birthmark.config.model import ServiceSpec, SupervisorSettings
from birthmark.core.clock import Clock
from birthmark.core.identity import Identity, Verdict
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import Found, MemberReceipt, Receipt, Termination
from birthmark.core.service import ServiceName, api_server_service
from birthmark.core.states import Desired
from birthmark.errors import (
    ConfigError,
    InstallationLocked,
    LookFailed,
    RegistryError,
    StopTimedOut,
    SupervisionError,
    UnknownService,
    WorkerLost,
)
from birthmark.platforms import load
from birthmark.registry.contract import BirthOrigin, Registry
from birthmark.supervisor.booting import BootReport, sweep_births
from birthmark.supervisor.house import House
from birthmark.supervisor.leases import release_stale, report_ports
from birthmark.supervisor.locking import InstallationLock
from birthmark.supervisor.reconciling import Service
from birthmark.supervisor.records import remembered, service_record
from birthmark.supervisor.status import ServiceStatus
from birthmark.supervisor.trail import AuditTrail

ORPHANS_EVERY_S: Final = 5.0
"""How often fallen orphans are reaped where no SIGCHLD can be received: off the main thread."""


class Supervisor:
    """Supervises services of one installation. Call `boot`, then `up`, then `run`; the rest while `run` runs.

    All methods belong to one event loop (asyncio or trio). `say` gets a line for everything a person
    would want to know; it is called on that loop's thread, or on a worker's.
    """

    def __init__(
        self,
        *,
        services: Sequence[ServiceSpec],
        registry: Registry,
        installation: Installation,
        clock: Clock,
        say: Callable[[str], None],
        settings: SupervisorSettings | None = None,
        environ: Mapping[str, str] | None = None,
        subreaper: bool = True,
    ) -> None:
        """Make a supervisor; nothing is touched yet.

        Args:
            services: What the configuration names.
            registry: The installation's memory; stays the caller's, to be closed after `close`.
            installation: Whose services these are.
            clock: Both its clocks are used.
            say: Gets lines for people.
            settings: None means the defaults.
            environ: What services inherit from, by their profile; None means ours.
            subreaper: Have escaped descendants fall to this process, which then reaps them.
        """
        self._specs = {spec.name: spec for spec in services}
        self._registry, self._installation, self._clock = registry, installation, clock
        self._say = _heard_or_not(say)
        self._settings = settings or SupervisorSettings()
        self._environ = dict(os.environ) if environ is None else dict(environ)
        self._subreaper = subreaper
        self._lock: InstallationLock | None = None
        self._house: House | None = None
        self._services: dict[ServiceName, Service] = {}
        self._report = BootReport()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._leaving = False
        self._leave = anyio.Event()
        self._down = anyio.Event()

    # -- before the loop

    async def boot(self) -> BootReport:
        """Take the installation, and settle what an earlier supervisor left in it.

        Each birth without an end is proven: ours is ended with its whole set, also where only its mark or
        tag is left of it; somebody else's pid is named and left alone. All of it is said.

        Raises:
            InstallationLocked: Another supervisor runs it. Nothing was touched.
            RegistryError, LookFailed: We could not know what is left. Nothing was signalled.
        """
        self._lock = InstallationLock.acquire(self._installation)
        try:
            me = own_identity(self._installation)
            await anyio.to_thread.run_sync(self._refuse_living_owner, me)
            epoch = await anyio.to_thread.run_sync(self._registry.take, me, self._clock.now())
            self._house = House(
                installation=self._installation,
                registry=self._registry,
                clock=self._clock,
                say=self._say,
                settings=self._settings,
                environ=self._environ,
                epoch=epoch,
                trail=AuditTrail(self._registry, say=self._say),
            )
            if self._subreaper and sys.platform == "linux":
                from birthmark.platforms.linux import become_subreaper

                become_subreaper()
            self._report = await sweep_births(self._house, self._specs)
            await anyio.to_thread.run_sync(release_stale, self._house, self._specs)
            self._report.lines += await anyio.to_thread.run_sync(
                report_ports, self._house, list(self._specs.values())
            )
        except BaseException:
            self.close()
            raise
        return self._report

    def _refuse_living_owner(self, me: Identity) -> None:
        """Refuse an installation whose owner on record lives, lock or not: some file systems only pretend to lock."""
        owner = self._registry.owner()
        if owner is None or owner.identity is None:
            return
        try:
            proof = prove(owner.identity)
        except LookFailed:
            return
        before = f"the supervisor before this one (pid {owner.identity.pid}) did not leave in order"
        if proof.elsewhere:
            self._say(f"{before}; whether it lives cannot be seen from here: {proof}")
        elif owner.identity.pid == me.pid:
            return
        elif proof.verdict is Verdict.SAME:
            raise InstallationLocked(str(self._installation.home), owner.identity.pid)
        elif proof.verdict is not Verdict.UNKNOWN:
            self._say(before)

    async def up(self, names: Sequence[str] | None = None) -> None:
        """Want services up: those named, or all but those stopped by hand, disabled, or not ours to start.

        Raises:
            UnknownService: No service has that name.
            RegistryError: It could not be written down.
        """
        house = self._booted()
        chosen = None if names is None else {self._spec(name).name for name in names}
        before = await anyio.to_thread.run_sync(remembered, house)
        for spec in self._specs.values():
            service = self._services.get(spec.name)
            if chosen is not None and spec.name not in chosen:
                desired, why = (service.desired, "") if service else (Desired.DOWN, "not asked for")
            elif spec.remote:
                desired, why = Desired.DOWN, "remote: somebody else runs it"
            elif chosen is None and not spec.enabled:
                desired, why = Desired.DOWN, "disabled in the configuration"
            elif chosen is None and before.get(spec.name) is Desired.DOWN:
                desired, why = Desired.DOWN, f"stopped by hand; `birthmark start {spec.name}` starts it"
            else:
                desired, why = Desired.UP, "not started yet"
            await self._admit(spec, desired, why, keep=before.get(spec.name), named=chosen is not None)
        self._live_all()

    async def _admit(
        self, spec: ServiceSpec, desired: Desired, why: str, *, keep: Desired | None, named: bool
    ) -> None:
        house = self._booted()
        # Not asked for, disabled, remote: none of that is a stop by hand, which alone is remembered as *down*.
        written = Desired.UP if desired is Desired.UP and named else keep or Desired.UP
        record = service_record(spec, written, self._clock.now())
        await house.write(partial(self._registry.put_service, record, epoch=house.epoch))
        service = self._services.get(spec.name)
        if service is None:
            service = Service(house, spec, desired=desired, why=why)
            # A birth of `run` with the same name is another client's copy, and blocks nothing.
            service.leftovers = [
                left
                for left in self._report.leftovers
                if left.record.service == spec.name and left.record.origin is BirthOrigin.UP
            ]
            self._services[spec.name] = service
        elif service.desired is not desired:
            service.want(desired)

    # -- the loop

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep the services as they are wanted until `down` has ended them; then let go of the installation.

        Cancelled, it stops all of them first, within the shutdown's bound. The verbs work from
        `task_status.started()` on.
        """
        self._booted()
        try:
            async with anyio.create_task_group() as outer:
                outer.start_soon(self._notice_cancellation)
                async with anyio.create_task_group() as tasks:
                    # A cancellation from outside must not end those who are to do the stopping.
                    tasks.cancel_scope.shield = True
                    self._tasks = tasks
                    self._live_all()
                    tasks.start_soon(self._reap_orphans)
                    task_status.started()
                    await self._leave.wait()
                    if not self._down.is_set():
                        await self.down()
                    tasks.cancel_scope.cancel()
                outer.cancel_scope.cancel()
        finally:
            self._tasks = None
            self.close()

    async def _notice_cancellation(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            self._leave.set()

    def _live_all(self) -> None:
        if self._tasks is None:
            return
        for service in self._services.values():
            if not service.lives:
                service.lives = True
                self._tasks.start_soon(service.live, self._tasks)

    async def _reap_orphans(self) -> None:
        house = self._booted()
        try:
            receiver = anyio.open_signal_receiver(signal.SIGCHLD)
            with receiver as signals:
                await anyio.to_thread.run_sync(house.orphans.reap)
                async for _ in signals:
                    await anyio.to_thread.run_sync(house.orphans.reap)
        except (ValueError, RuntimeError, NotImplementedError):
            # Signals are received on the main thread only.
            while True:
                await anyio.to_thread.run_sync(house.orphans.reap)
                await anyio.sleep(ORPHANS_EVERY_S)

    @property
    def trail(self) -> AuditTrail | None:
        """The audit's way into the registry; None before `boot` and after the end, when all of it is written."""
        return None if self._house is None else self._house.trail

    # -- verbs

    def status(self) -> list[ServiceStatus]:
        """Return what can be said of each service now, in the configuration's order."""
        return [service.status() for service in self._services.values()]

    async def start(self, name: str) -> None:
        """Want a service up, which is remembered, and wait until a start was made or refused.

        Raises:
            UnknownService: No service has that name.
            ConfigError: It is remote: not ours to start.
            RegistryError: It could not be written down; nothing was changed.
            WorkerLost: All is being stopped; what was wanted is remembered for the next `up`.
        """
        service = self._service(name)
        spec = service.spec
        if spec.remote:
            raise ConfigError(
                spec.source or "the configuration",
                "it is remote: somebody else runs it",
                spec.line,
                spec.name,
            )
        await self._remember(service, Desired.UP)
        # Started now, it would be in nobody's order of stops.
        if self._leaving:
            raise WorkerLost("the supervisor, which stops everything now,")
        # Asked a hundred times, one that waits for its next start still waits for it.
        if service.desired is Desired.DOWN or service.rests:
            service.want(Desired.UP)
        await service.until_settled()

    async def stop(self, name: str, *, force: bool = False) -> Receipt | None:
        """Want a service down, which is remembered until `start`, and wait until all of it is gone.

        Stops at the same time join: each gets the same receipt. `force` shortens the grace to nothing.

        Returns:
            What was done to each member of its set; None when nothing ran.

        Raises:
            StopTimedOut: Survivors. The service is *unknown*, and is looked at again.
            UnknownService, RegistryError: As `start`.
        """
        service = self._service(name)
        await self._remember(service, Desired.DOWN)
        return await self._bring_down(service, force=force)

    async def restart(self, name: str) -> None:
        """Stop a service, all of it, and start it again; that it is wanted is remembered.

        Raises:
            StopTimedOut: Survivors; nothing was started beside them.
            UnknownService, ConfigError, RegistryError: As `start`.
        """
        service = self._service(name)
        await self._bring_down(service, force=False)
        await self.start(name)

    async def down(self, *, force: bool = False) -> list[Receipt]:
        """Stop all services at once, last of the configuration first, and have `run` end.

        Bounded by the shutdown's settings: then the grace of those that are left is over. What was wanted
        is remembered, so that the next `up` brings it back. Survivors are in the receipts. From now on
        nothing is started.

        Raises:
            WorkerLost: `run` does not run: nothing can be stopped, nor said of what is left.
        """
        if self._tasks is None:
            raise WorkerLost("the supervisor's loop")
        self._leaving = True
        found: dict[ServiceName, Receipt | None] = {}

        async def one(service: Service) -> None:
            try:
                found[service.spec.name] = await self._bring_down(service, force=force)
            except StopTimedOut as err:
                found[service.spec.name] = err.receipt
            except SupervisionError as err:
                found[service.spec.name] = _not_stopped(service, err)

        order = list(reversed(self._services.values()))
        async with anyio.create_task_group() as patience:
            patience.start_soon(self._lose_patience)
            async with anyio.create_task_group() as stops:
                for service in order:
                    stops.start_soon(one, service)
            patience.cancel_scope.cancel()
        if (trail := self.trail) is not None:
            # Whoever gets the receipts finds their signals in the audit.
            await anyio.to_thread.run_sync(trail.flush)
        self._down.set()
        self._leave.set()
        return [receipt for service in order if (receipt := found.get(service.spec.name)) is not None]

    def hurry(self) -> None:
        """Shorten the grace of every stop under way to nothing: what a second Ctrl-C means."""
        for service in self._services.values():
            service.hurry()

    def close(self) -> None:
        """Let go of the installation. `run` does it; needed only after a `boot` without a `run`. Twice is harmless."""
        house, self._house = self._house, None
        if house is not None:
            for service in self._services.values():
                service.close()
            house.drains.close()
            with suppress(SupervisionError):
                # Nothing lives by now, unless `run` broke or somebody survived.
                house.spawner.close(children="stop")
            house.trail.close()
            with suppress(RegistryError):
                house.registry.leave(house.epoch)
        if self._lock is not None:
            self._lock.release()

    async def _lose_patience(self) -> None:
        await anyio.sleep(self._settings.shutdown_s)
        self.hurry()

    async def _bring_down(self, service: Service, *, force: bool) -> Receipt | None:
        if self._tasks is None:
            raise WorkerLost("the supervisor's loop")
        ran = service.runs
        service.want(Desired.DOWN)
        if force:
            service.hurry()
        await service.until_down()
        if service.stop_error is not None:
            raise service.stop_error
        return service.receipt if ran else None

    async def _remember(self, service: Service, desired: Desired) -> None:
        if self._tasks is None:
            raise WorkerLost("the supervisor's loop")
        house = self._booted()
        await house.write(
            partial(
                self._registry.set_desired, service.spec.name, desired, self._clock.now(), epoch=house.epoch
            )
        )

    def _service(self, name: str) -> Service:
        found = self._services.get(self._spec(name).name)
        if found is None:
            raise UnknownService(name, [str(known) for known in self._services])
        return found

    def _spec(self, name: str) -> ServiceSpec:
        for spec in self._specs.values():
            if spec.name == name:
                return spec
        raise UnknownService(name, [str(known) for known in self._specs])

    def _booted(self) -> House:
        if self._house is None:
            raise WorkerLost("the supervisor")
        return self._house


def _heard_or_not(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a `say` whose listener may leave: a closed terminal ends no service."""

    def speak(line: str) -> None:
        with suppress(OSError, ValueError):
            say(line)

    return speak


def own_identity(installation: Installation) -> Identity:
    """Write down who this process is, as the installation's API server.

    Raises:
        LookFailed: We could not look at ourselves.
    """
    platform = load()
    with platform.pin(os.getpid()) as pinned:
        seen = platform.observe(pinned)
    if seen is None:
        raise LookFailed("this process", "it is not shown to itself")
    return seen.identity(installation=installation.id, kind=ChildKind.API, service=api_server_service())


def _not_stopped(service: Service, err: SupervisionError) -> Receipt:
    """Return the receipt of a stop that could not be made: its leader is a survivor, and it says why."""
    pid = service.status().pid or 0
    member = MemberReceipt(pid=pid, found=Found.LEADER, why=str(err))
    return Receipt(service=service.spec.name, termination=Termination.ALREADY_EXITED, members=[member])
