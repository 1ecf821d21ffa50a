"""A kernel of values: `FakeControl` keeps the promises of `ProcessControl` without a process.

For orchestration, and for what no kernel does on request: a pid recycled between two looks, a signal
that is ignored, an environment that is denied. The contract suite runs on it and on the real ones.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from birthmark.core.identity import EnvironState, HostFacts, Identity, Sighting
from birthmark.core.markers import ChildKind, entry, is_tag, mark_entries, tag_of
from birthmark.core.outcomes import Basis, Delivery, ExitStatus, Scope, SignalRecord, Warrant
from birthmark.core.parsers import signalable_pid
from birthmark.core.service import BirthId, InstallationId, ServiceName, service_name
from birthmark.errors import LookFailed, NotPermitted, NotSignalable, ProcessGone
from birthmark.platforms import contract
from birthmark.platforms.contract import Capabilities, Pinned

__all__ = ["FakeControl", "FakeProcess"]

_HARMLESS: Final = frozenset(
    getattr(signal, name) for name in ("SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH") if hasattr(signal, name)
)
_STOPS: Final = frozenset(
    getattr(signal, name) for name in ("SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU") if hasattr(signal, name)
)
_ASKS_TO_LEAVE: Final = frozenset(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
)
_KILL: Final = int(getattr(signal, "SIGKILL", 9))
_CONT: Final = int(getattr(signal, "SIGCONT", 18))


@dataclass(slots=True, kw_only=True, eq=False)
class FakeProcess:
    """One process of a `FakeControl`. Its fields may be changed at any time; that is the point.

    `ignores` are the signals that do nothing to it; SIGKILL is never ignored, only `unkillable` (in an
    uninterruptible sleep) survives it. `on_signal` is called with each signal that arrives, before its effect.
    `permitted` False makes every signal fail as another user's process does.
    """

    pid: int
    ppid: int
    pgid: int
    session: int
    start_ticks: int
    inode: int | None
    environ: bytes = b""
    environ_state: EnvironState = EnvironState.READABLE
    tag: int | None = None
    command: str = "fake"
    threads: int = 1
    state: str = "S"
    permitted: bool = True
    unkillable: bool = False
    ignores: set[int] = field(default_factory=set)
    on_signal: Callable[[FakeProcess, int], object] | None = None
    status: ExitStatus | None = None
    reaped: bool = False
    _watch: tuple[int, int] | None = None

    @property
    def alive(self) -> bool:
        """Whether it has not exited."""
        return self.status is None


class FakeControl:
    """A `ProcessControl` whose processes are values.

    `delivered` holds every signal that was sent or refused, in order, as the audit's sinks get them; the
    CONT that follows a request to leave is not listed, as with the real one. Own it as a context manager,
    or `close` it: with `pidfd` each pin holds a real descriptor, readable once its process has exited.

    Args:
        pidfd: Whether pins have descriptors; without, `exit_fd` is None and callers poll.
        inodes: Whether processes have an inode of their own (Linux 6.9 and newer).
        group_flag: Whether a group can be signalled after its leader was reaped.
        own_pid: Our own pid; our parent is pid 1.
    """

    def __init__(
        self, *, pidfd: bool = True, inodes: bool = True, group_flag: bool = True, own_pid: int = 100
    ) -> None:
        self.delivered: list[SignalRecord] = []
        self.host = HostFacts("fake-host", "fake-boot", 4026531836)
        self.blind = False
        """True: nothing can be looked at, as with no procfs."""
        self.subreaper = False
        self._pidfd, self._inodes, self._group_flag = pidfd, inodes, group_flag
        self._by_pid: dict[int, FakeProcess] = {}
        self._pinned: dict[Pinned, FakeProcess] = {}
        self._open: list[int] = []
        self._last_inode = 1000
        self._ticks = 5000
        self.init = self.add(pid=1, ppid=0, pgid=1, command="init")
        self.own = self.add(pid=own_pid, ppid=1, pgid=own_pid, command="ourselves")
        self._last_pid = own_pid

    # What a test does to this world.

    def add(
        self,
        *,
        pid: int | None = None,
        ppid: int | None = None,
        pgid: int | None = None,
        session: int | None = None,
        environ: bytes = b"PATH=/bin\0",
        environ_state: EnvironState = EnvironState.READABLE,
        tag: int | None = None,
        command: str = "fake",
        ignores: set[int] | None = None,
        start_ticks: int | None = None,
    ) -> FakeProcess:
        """Let a process be born. Unless said, it is our child and leads a group and session of its own.

        Raises:
            ValueError: The pid is taken.
        """
        if pid is None:
            pid = self._last_pid + 1
            while pid in self._by_pid:
                pid += 1
            self._last_pid = pid
        elif pid in self._by_pid:
            raise ValueError(f"pid {pid} is taken")
        self._last_inode += 1
        self._ticks += 1
        process = FakeProcess(
            pid=pid,
            ppid=self.own.pid if ppid is None else ppid,
            pgid=pid if pgid is None else pgid,
            session=(pid if pgid is None else pgid) if session is None else session,
            start_ticks=self._ticks if start_ticks is None else start_ticks,
            inode=self._last_inode if self._inodes else None,
            environ=environ,
            environ_state=environ_state,
            tag=tag,
            command=command,
            ignores=set() if ignores is None else set(ignores),
        )
        self._by_pid[pid] = process
        return process

    def add_birth(
        self,
        service: str,
        *,
        birth: BirthId,
        installation: InstallationId,
        kind: ChildKind = ChildKind.MCP,
        tagged: bool = True,
        ppid: int | None = None,
        pgid: int | None = None,
    ) -> tuple[FakeProcess, Identity]:
        """Let a marked process be born; return it with the identity written down at its birth."""
        name: ServiceName = service_name(service)
        marks = mark_entries(kind=kind, service=name, installation=installation, birth=birth)
        block = b"".join(entry(key, value) + b"\0" for key, value in marks.items())
        process = self.add(
            environ=block + b"PATH=/bin\0",
            tag=tag_of(birth) if tagged else None,
            ppid=ppid,
            pgid=pgid,
            command=service,
        )
        sighting = self._sighting(process)
        return process, sighting.identity(birth=birth, installation=installation, kind=kind, service=name)

    def fork(
        self, parent: FakeProcess, *, own_group: bool = False, command: str | None = None
    ) -> FakeProcess:
        """Let `parent` fork: same group, session, environment and tag; `own_group` adds a setsid."""
        return self.add(
            ppid=parent.pid,
            pgid=None if own_group else parent.pgid,
            session=None if own_group else parent.session,
            environ=parent.environ,
            environ_state=parent.environ_state,
            tag=parent.tag,
            command=parent.command if command is None else command,
        )

    def process(self, pid: int) -> FakeProcess:
        """Return the process with that number, zombies included.

        Raises:
            KeyError: There is none.
        """
        return self._by_pid[pid]

    def exit(self, pid: int, status: ExitStatus | None = None) -> None:
        """Let a process exit: a zombie from now on, and its children fall to init, or to us as subreaper."""
        process = self._by_pid[pid]
        if process.status is not None:
            return
        process.status = ExitStatus(code=0) if status is None else status
        process.state = "Z"
        heir = self.own if self.subreaper and process is not self.own else self.init
        for other in self._by_pid.values():
            if other.ppid == pid:
                other.ppid = heir.pid
        if process._watch is not None:
            os.write(process._watch[1], b"x")

    def vanish(self, pid: int) -> None:
        """Let a process exit, if it has not, and be reaped by whoever its parent is: its number is free."""
        self.exit(pid)
        self._by_pid.pop(pid).reaped = True

    def recycle(self, pid: int, *, same_tick: bool = True, **born: str) -> FakeProcess:
        """Let the process go altogether and a stranger be born under its number, within the same tick."""
        before = self._by_pid[pid]
        self.vanish(pid)
        ticks = before.start_ticks if same_tick else before.start_ticks + 1
        return self.add(pid=pid, ppid=1, start_ticks=ticks, command=born.get("command", "stranger"))

    def deny_environ(self, pid: int) -> None:
        """Make its environment unreadable, as another user's is."""
        self._by_pid[pid].environ_state = EnvironState.DENIED

    def destroy_environ(self, pid: int) -> None:
        """Wipe its environment, as a process title written over it does."""
        process = self._by_pid[pid]
        process.environ, process.environ_state = b"", EnvironState.DESTROYED

    @contextmanager
    def settling(self, pid: int) -> Iterator[None]:
        """Hold it inside its execve while the block lasts."""
        process = self._by_pid[pid]
        before, process.environ_state = process.environ_state, EnvironState.SETTLING
        try:
            yield
        finally:
            process.environ_state = before

    def signals_to(self, pid: int) -> list[int]:
        """Return what was sent to `pid`, directly or through its group's leader, refusals left out."""
        return [each.signal for each in self.delivered if each.pid == pid and each.result is Delivery.SENT]

    def close(self) -> None:
        """Give back the descriptors of processes; those of pins are their owners'."""
        for fd in self._open:
            os.close(fd)
        self._open.clear()
        for process in [*self._by_pid.values(), *self._pinned.values()]:
            process._watch = None

    def __enter__(self) -> FakeControl:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What `ProcessControl` promises.

    def capabilities(self) -> Capabilities:
        return Capabilities(
            platform="fake",
            pidfd=self._pidfd,
            pidfs_inode=self._inodes,
            group_signal=self._group_flag,
            environ=True,
            tag=True,
            parent_death=True,
            subreaper=True,
            sock_diag=False,
            native_spawner=False,
        )

    def facts(self) -> HostFacts:
        self._require_sight()
        return self.host

    def pin(self, pid: int) -> Pinned:
        if signalable_pid(pid) is None:
            raise ValueError(f"{pid} is no pid: 1 to 2**31-1 are")
        process = self._by_pid.get(pid)
        if process is None:
            raise ProcessGone(pid)
        if not self._pidfd:
            self._require_sight()
        return self._hold(process)

    def hold(self, pid: int) -> Pinned:
        return self.pin(pid)

    def adopt_pidfd(self, pid: int, fd: int) -> Pinned:
        process = self._by_pid.get(pid)
        pinned = Pinned(pid, fd, -1 if process is None else process.start_ticks)
        if process is not None:
            self._pinned[pinned] = process
        return pinned

    def observe(self, pinned: Pinned, *, environ: bool = True) -> Sighting | None:
        self._require_sight()
        process = self._held(pinned)
        return None if process is None else self._sighting(process, environ=environ)

    def exited(self, pinned: Pinned) -> bool:
        process = self._held(pinned)
        return process is None or not process.alive

    def exit_fd(self, pinned: Pinned) -> int | None:
        return pinned.fd

    def start_ticks_of(self, pid: int) -> int | None:
        process = self._look(pid)
        return None if process is None else process.start_ticks

    def parent_of(self, pid: int) -> int | None:
        process = self._look(pid)
        return None if process is None else process.ppid

    def group_of(self, pid: int) -> int | None:
        process = self._by_pid.get(pid)
        return None if process is None else process.pgid

    def session_of(self, pid: int) -> int | None:
        process = self._by_pid.get(pid)
        return None if process is None else process.session

    def children_of(self, pid: int) -> list[int]:
        return sorted(each.pid for each in self._by_pid.values() if each.ppid == pid)

    def group_lives(self, leader: Pinned) -> bool:
        return bool(self._receivers(leader, group=True))

    def group_members(self, pgid: int) -> list[int]:
        self._require_sight()
        return sorted(each.pid for each in self._by_pid.values() if each.pgid == pgid)

    def all_pids(self) -> list[int]:
        self._require_sight()
        return sorted(self._by_pid)

    def glance(self, pid: int) -> tuple[int | None, bytes]:
        process = self._by_pid.get(pid)
        if process is None or self.blind:
            return None, b""
        if process.tag is not None and is_tag(process.tag):
            return process.tag, b""
        return None, self._sighting(process).environ

    def command_line(self, pid: int) -> str:
        process = self._by_pid.get(pid)
        return "" if process is None or self.blind else process.command

    def is_zombie(self, pid: int) -> bool:
        process = self._by_pid.get(pid)
        return process is not None and not process.alive and not self.blind

    def is_our_child(self, pid: int) -> bool:
        process = self._by_pid.get(pid)
        return process is not None and process.ppid == self.own.pid

    def reap(self, pid: int) -> ExitStatus | None:
        status = self.peek(pid)
        if status is not None and self.is_our_child(pid):
            self._by_pid.pop(pid).reaped = True
        return status

    def peek(self, pid: int) -> ExitStatus | None:
        return self._by_pid[pid].status if self.is_our_child(pid) else ExitStatus()

    def own_environ(self) -> bytes | None:
        return None if self.blind else self.own.environ

    def read_tag(self, pid: int) -> int | None:
        process = self._by_pid.get(pid)
        return None if process is None else process.tag

    def become_subreaper(self) -> bool:
        self.subreaper = True
        return True

    def deliver(self, target: Pinned, sig: int, warrant: Warrant, *, group: bool = False) -> Delivery:
        refusal = self._exclusion(target.pid, warrant, group=group)
        if refusal is None:
            refusal = self._lost_ground(target.pid, warrant)
            if refusal is not None and self._held(target) is None:
                self._record(target.pid, sig, warrant, group, Delivery.GONE)
                return Delivery.GONE
        if refusal is not None:
            self._record(target.pid, sig, warrant, group, Delivery.REFUSED, refusal)
            raise NotSignalable(target.pid, refusal)
        receivers = self._receivers(target, group=group)
        if not receivers:
            self._record(target.pid, sig, warrant, group, Delivery.GONE)
            return Delivery.GONE
        permitted = [process for process in receivers if process.permitted]
        if not permitted:
            self._record(target.pid, sig, warrant, group, Delivery.NOT_PERMITTED)
            raise NotPermitted(target.pid, f"send {signal.Signals(sig).name} to", 1)
        self._record(target.pid, sig, warrant, group, Delivery.SENT)
        for process in permitted:
            self._receive(process, sig)
            if sig in _ASKS_TO_LEAVE:
                self._receive(process, _CONT)
        return Delivery.SENT

    # The works.

    def _hold(self, process: FakeProcess) -> Pinned:
        fd = None
        if self._pidfd:
            if process._watch is None:
                process._watch = os.pipe()
                self._open.extend(process._watch)
                if not process.alive:
                    os.write(process._watch[1], b"x")
            fd = os.dup(process._watch[0])
        pinned = Pinned(process.pid, fd, process.start_ticks)
        self._pinned[pinned] = process
        return pinned

    def _held(self, pinned: Pinned) -> FakeProcess | None:
        """Return the process a pin means, or None when it is gone: by descriptor, else by number and tick."""
        if self._pidfd:
            process = self._pinned.get(pinned)
            return None if process is None or process.reaped else process
        found = self._by_pid.get(pinned.pid)
        return None if found is None or found.start_ticks != pinned.start_ticks else found

    def _look(self, pid: int) -> FakeProcess | None:
        self._require_sight()
        return self._by_pid.get(pid)

    def _require_sight(self) -> None:
        if self.blind:
            raise LookFailed("processes", "this fake is blind")

    def _sighting(self, process: FakeProcess, *, environ: bool = True) -> Sighting:
        state = process.environ_state if environ else EnvironState.UNSUPPORTED
        shown = state in (EnvironState.READABLE, EnvironState.PARENTS)
        return Sighting(
            facts=self.host,
            pid=process.pid,
            start_ticks=process.start_ticks,
            inode=process.inode if self._pidfd else None,
            exited=not process.alive,
            ppid=process.ppid,
            pgid=process.pgid,
            session=process.session,
            state=process.state,
            threads=process.threads,
            environ_state=state,
            environ=process.environ if shown else b"",
            tag=process.tag if environ else None,
        )

    def _receivers(self, target: Pinned, *, group: bool) -> list[FakeProcess]:
        process = self._held(target)
        if not group:
            return [] if process is None else [process]
        if process is None and not (self._pidfd and self._group_flag):
            return []
        return [each for each in self._by_pid.values() if each.pgid == target.pid]

    def _receive(self, process: FakeProcess, sig: int) -> None:
        if process.on_signal is not None:
            process.on_signal(process, sig)
        if not process.alive:
            return
        if sig in _STOPS:
            process.state = "T"
        elif sig == _CONT:
            process.state = "S"
        elif sig in _HARMLESS or sig == 0:
            return
        elif (sig == _KILL and not process.unkillable) or (sig != _KILL and sig not in process.ignores):
            self.exit(process.pid, ExitStatus(signal=sig))

    def _exclusion(self, pid: int, warrant: Warrant, *, group: bool) -> str | None:
        """The rules of the real one, on values."""
        if signalable_pid(pid) is None:
            return "no process has such a pid"
        if pid == self.own.pid:
            return "it is ourselves"
        if pid == 1 and warrant.basis is not Basis.PROOF:
            return "pid 1 is signalled only when proven ours"
        ancestors = self._ancestors()
        if pid in ancestors:
            return "it is an ancestor of ours"
        if group:
            if pid == self.own.pgid:
                return "it is our own process group"
            if any(self.group_of(ancestor) == pid for ancestor in ancestors):
                return "an ancestor of ours is in that group"
        if not warrant.covers(pid):
            return (
                "it is not proven ours"
                if warrant.proof is None
                else f"it is not proven ours: {warrant.proof}"
            )
        return None

    def _lost_ground(self, pid: int, warrant: Warrant) -> str | None:
        if warrant.basis is Basis.CHILD and not self.is_our_child(pid):
            return "it is not our unreaped child"
        if warrant.basis is Basis.DESCENT and self.parent_of(pid) != warrant.parent:
            return "its parent is not the one it was found under"
        return None

    def _ancestors(self) -> set[int]:
        chain: set[int] = set()
        pid = self.own.ppid
        while pid and pid not in chain and pid in self._by_pid:
            chain.add(pid)
            pid = self._by_pid[pid].ppid
        return chain

    def _record(
        self, pid: int, sig: int, warrant: Warrant, group: bool, result: Delivery, detail: str = ""
    ) -> None:
        record = SignalRecord(
            pid=pid,
            signal=sig,
            scope=Scope.GROUP if group else Scope.PROCESS,
            basis=warrant.basis,
            asked_by=warrant.asked_by,
            result=result,
            detail=detail,
        )
        self.delivered.append(record)
        for sink in contract.sinks():
            sink(record)
