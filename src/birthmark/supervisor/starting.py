"""Start one birth: resolve, lease, look at the port, write the intent, spawn, write who was born, prove."""

from __future__ import annotations

import errno
import signal
from functools import partial
from typing import Final

import anyio.to_thread

from birthmark.children.command import Command, Session, Stdio, mark_child, new_birth
from birthmark.children.proving import nobody_of, prove
from birthmark.children.stopping import stop_set_now
from birthmark.config.environ import child_environ
from birthmark.config.model import ReadyKind, ServiceSpec, Transport, with_port
from birthmark.config.programs import resolve_command
from birthmark.core.identity import Verdict
from birthmark.core.markers import ChildKind
from birthmark.core.service import BirthId
from birthmark.errors import (
    LookFailed,
    PortHeld,
    RecordConflict,
    RegistryError,
    SpawnFailed,
    SupervisionError,
)
from birthmark.registry.contract import BirthRecord, BirthState
from birthmark.supervisor.booting import Leftover
from birthmark.supervisor.house import House
from birthmark.supervisor.journal import CountSink, Journal, LineSink, log_path
from birthmark.supervisor.leases import held_by, lease, look_at
from birthmark.supervisor.running import LineWatch, Running

RETRIED: Final = frozenset({"port", "registry", "look", "leftover", "system"})
"""Reasons for *blocked* that are looked at again by themselves: the world may change without us."""

_PASSING: Final = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What a spawn fails with for want of something that others may give back."""


class Blocked(Exception):
    """Nothing runs that could serve, and starting again blindly would not help. `reason` is one word.

    `leftover` is a birth that came to nothing and could not be ended: while it lives, nothing may be started.
    """

    def __init__(self, reason: str, why: str, leftover: Leftover | None = None) -> None:
        super().__init__(reason, why)
        self.reason, self.why, self.leftover = reason, why, leftover

    def __str__(self) -> str:
        return f"{self.reason}: {self.why}"


async def start_birth(house: House, spec: ServiceSpec, journal: Journal) -> Running:
    """Start one birth of a service, whose intent is on disk before it exists.

    Raises:
        Blocked: Nothing runs: no such program, a stranger on the port, a registry that cannot be written.
    """
    birth = new_birth()
    try:
        port = await lease(house, spec)
        if port is not None:
            spec = with_port(spec, port)
            if (held := await anyio.to_thread.run_sync(_held, house, port)) is not None:
                raise held
        command = build_command(house, spec, birth)
        await house.write(
            partial(house.registry.intend, birth, spec.name, spec.kind, house.clock.now(), epoch=house.epoch)
        )
    except RecordConflict as err:
        raise Blocked("lease", str(err)) from err
    except PortHeld as err:
        raise Blocked("port", str(err)) from err
    except SpawnFailed as err:
        raise Blocked("command", str(err)) from err
    except RegistryError as err:
        raise Blocked("registry", str(err)) from err
    except LookFailed as err:
        raise Blocked("look", str(err)) from err
    except ValueError as err:
        raise Blocked("config", str(err)) from err
    # In one go in a thread: a cancellation in between must not lose a child that exists already.
    return await anyio.to_thread.run_sync(_spawn, house, spec, birth, command, journal)


def _held(house: House, port: int) -> PortHeld | None:
    return held_by(house, look_at(port))


def build_command(house: House, spec: ServiceSpec, birth: BirthId) -> Command:
    """Return the marked command of one birth, in a session of its own.

    Raises:
        SpawnFailed: There is no such program, or no such working directory; the PATH searched is named.
    """
    held = holds_stdin(spec)
    environ = child_environ(spec, house.environ)
    command = Command(
        resolve_command(spec, environ),
        *spec.command[1:],
        env=environ,
        cwd=spec.cwd,
        stdin=Stdio.PIPE if held else Stdio.NULL,
        stdout=Stdio.PIPE,
        stderr=Stdio.PIPE,
        session=Session.NEW_SESSION,
        parent_death=signal.SIGTERM,
    )
    return mark_child(command, spec.kind, spec.name, installation=house.installation.id, birth=birth)


def holds_stdin(spec: ServiceSpec) -> bool:
    """Say whether we stand in for the service's client: its stdin is held open, its stdout drained and counted."""
    return spec.kind is ChildKind.MCP and spec.transport is Transport.STDIO


def _spawn(house: House, spec: ServiceSpec, birth: BirthId, command: Command, journal: Journal) -> Running:
    """Spawn, and write down who was born; what cannot be written down is ended again."""
    now = house.clock.now
    try:
        with house.orphans.birth_under_way() as leaders:
            child = house.spawner.spawn_owned_supervised(command)
            leaders.add(child.pid)
    except (SupervisionError, OSError) as err:
        _close_record(house, birth, f"never born: {err}")
        ours = isinstance(err, SpawnFailed) and err.errno not in _PASSING
        raise Blocked("command" if ours else "system", str(err)) from err
    running = Running(
        spec=spec,
        birth=birth,
        child=child,
        journal=journal,
        born_at=now(),
        since=house.clock.monotonic(),
    )
    try:
        house.registry.born(birth, child.identity, now(), epoch=house.epoch)
        _connect(house, running)
    except Exception as err:
        # No record, no descriptors, no thread: it has lived for a millisecond, and nobody could stand by it.
        raise _undone(house, running, err) from err
    _read_back(running)
    return running


def _undone(house: House, running: Running, err: Exception) -> Blocked:
    """End a newborn that we cannot stand by, and return why it is blocked."""
    child, spec, now = running.child, running.spec, house.clock.now()
    try:
        identity = child.identity
    except SupervisionError:
        # Somebody else has reaped it. What it left carries its mark.
        identity = nobody_of(running.birth, house.installation.id, spec.kind, spec.name)
    reason = "registry" if isinstance(err, RegistryError) else "system"
    leftover: Leftover | None = None
    try:
        stop_set_now(identity, spec.stop, asked_by="start", held=child.pinned)
    except (SupervisionError, OSError) as left:
        record = BirthRecord(
            birth=running.birth,
            service=spec.name,
            kind=spec.kind,
            state=BirthState.BORN,
            epoch=house.epoch,
            identity=identity,
            intended_at=now,
            born_at=now,
        )
        leftover = Leftover(record, None, str(left))
    child.poll()
    house.orphans.forget(child.pid)
    running.finish_output()
    child.close()
    if leftover is None:
        _close_record(house, running.birth, f"ended at its birth: {err}")
    return Blocked(reason, str(err), leftover)


def _close_record(house: House, birth: BirthId, why: str) -> None:
    try:
        house.registry.ended(birth, house.clock.now(), epoch=house.epoch, why=why)
    except RegistryError as err:
        # The next boot looks for carriers of this birth, finds none, and says so.
        house.say(f"birth {birth}: {err}")


def _connect(house: House, running: Running) -> None:
    """Have the child's output read: into the log, or counted where it is a protocol nobody listens to."""
    child, journal = running.child, running.journal
    spec = running.spec
    if spec.ready.kind is ReadyKind.LOG and spec.ready.pattern is not None:
        running.watch = LineWatch(spec.ready.pattern)
    stdout, stderr = child.stdout, child.stderr
    assert stdout is not None
    assert stderr is not None
    # Each is the drains' own from its `add` on: closed by two, its number could be somebody else's by then.
    if holds_stdin(spec):
        running.counted = CountSink()
        running.drains.append(house.drains.add(stdout, running.counted))
    else:
        sink = LineSink(journal, "stdout", watch=running.watch)
        running.drains.append(house.drains.add(stdout, sink))
    child.stdout = None
    running.drains.append(house.drains.add(stderr, LineSink(journal, "stderr", watch=running.watch)))
    child.stderr = None
    armed = "" if child.armed else f"; not ended with us: {child.unarmed_reason}"
    journal.notice(f"born: pid {child.pid}, birth {running.birth}{armed}")


def _read_back(running: Running) -> None:
    """Read the mark back, as a later supervisor will have to, and note when it could not be proven then."""
    try:
        proof = prove(running.child.identity)
    except LookFailed as err:
        running.journal.notice(f"its mark cannot be read back: {err}")
        return
    if proof.verdict not in (Verdict.SAME, Verdict.GONE):
        running.journal.notice(f"a later supervisor could not prove it ours: {proof}")


def service_log(house: House, spec: ServiceSpec) -> Journal:
    """Return the journal of a service."""
    return Journal(log_path(house.installation.logs, spec.name), spec.logs)
