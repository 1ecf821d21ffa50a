"""What a platform module promises. No call blocks: waiting is done above, on the descriptor it returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol

from birthmark.core.identity import HostFacts, Sighting
from birthmark.core.outcomes import Delivery, ExitStatus, SignalRecord, Warrant
from birthmark.core.records import dataclass


class Pinned:
    """One process, held from the first look to the last signal.

    With a pidfd (`fd`) it means that process for ever. Without one (`fd` None) every use
    compares `start_ticks` again right before, which leaves a gap of microseconds; `doctor` says so.
    Owns its descriptor: close it, or use it as a context manager.
    """

    __slots__ = ("fd", "pid", "start_ticks")

    def __init__(self, pid: int, fd: int | None, start_ticks: int) -> None:
        self.pid = pid
        self.fd = fd
        self.start_ticks = start_ticks

    def close(self) -> None:
        """Let go of the process. Closing twice is harmless."""
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> Pinned:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Pinned(pid={self.pid}, fd={self.fd})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What this kernel, here and now, can prove and guarantee."""

    platform: str
    pidfd: bool
    pidfs_inode: bool
    group_signal: bool
    """A pidfd reaches its process group even after the leader was reaped (Linux 6.9)."""
    environ: bool
    tag: bool
    parent_death: bool
    subreaper: bool
    sock_diag: bool
    native_spawner: bool
    notes: tuple[str, ...] = ()


class ProcessControl(Protocol):
    """The promises every platform module keeps, as module-level functions."""

    def capabilities(self) -> Capabilities:
        """Ask this kernel what it can do; nothing is assumed from its version."""
        ...

    def facts(self) -> HostFacts:
        """Return the host, boot and pid namespace in which our pids mean something.

        Raises:
            LookFailed: They cannot be read (no procfs, or one of another namespace).
        """
        ...

    def pin(self, pid: int) -> Pinned:
        """Take hold of whatever process has `pid` now. Whose it is, a proof says afterwards.

        Raises:
            ProcessGone: Nothing has that pid. A zombie is still there.
            ValueError: No process can have that pid.
            LookFailed: We could not look.
        """
        ...

    def hold(self, pid: int) -> Pinned:
        """Take hold as `pin` does, for whoever looks next: what the handle already proves is not read twice.

        `start_ticks` may be -1 until `observe` has seen it.
        """
        ...

    def adopt_pidfd(self, pid: int, fd: int) -> Pinned:
        """Wrap a pidfd opened at spawn; the result owns it."""
        ...

    def observe(self, pinned: Pinned, *, environ: bool = True) -> Sighting | None:
        """Look once at a pinned process; None when it is gone (reaped).

        The pidfd is asked last: a process still there after the read is the one that was read.
        Without `environ` neither the block nor the tag is read, and the state says UNSUPPORTED.
        """
        ...

    def exited(self, pinned: Pinned) -> bool:
        """Say whether it has exited, reaped or not. A leader whose threads go on has not."""
        ...

    def exit_fd(self, pinned: Pinned) -> int | None:
        """Return a descriptor that is readable once the process has exited, or None: poll `exited`."""
        ...

    def start_ticks_of(self, pid: int) -> int | None:
        """Return when the process with that number started, zombies included; None when it is gone."""
        ...

    def parent_of(self, pid: int) -> int | None:
        """Return the parent's pid, or None when the process is gone."""
        ...

    def group_of(self, pid: int) -> int | None:
        """Return the process group of `pid`, zombies included; None when gone or not known here."""
        ...

    def children_of(self, pid: int) -> list[int]:
        """Return the direct children of `pid`, zombies included."""
        ...

    def group_lives(self, leader: Pinned) -> bool:
        """Say whether the group `leader` led still owns its number: it has a member, or the leader is unreaped."""
        ...

    def group_members(self, pgid: int) -> list[int]:
        """Return the pids whose group is `pgid`, zombies included.

        Raises:
            LookFailed: The processes cannot be listed.
        """
        ...

    def all_pids(self) -> list[int]:
        """Return every pid we may see, ascending.

        Raises:
            LookFailed: The processes cannot be listed.
        """
        ...

    def session_of(self, pid: int) -> int | None:
        """Return the session of `pid`, zombies included; None when gone or not known here."""
        ...

    def glance(self, pid: int) -> tuple[int | None, bytes]:
        """Return a process's tag, and unless it has one its environment, as cheaply as can be.

        For sweeps that ask whether a closer look pays; nothing is proven by it. (None, b"") means no.

        Raises:
            LookFailed: It is us who cannot look at anybody: out of descriptors, say.
        """
        ...

    def command_line(self, pid: int) -> str:
        """Return the command line as one line for people; empty when unknown."""
        ...

    def is_zombie(self, pid: int) -> bool:
        """Say whether the process has exited and was not reaped. False on every failure."""
        ...

    def is_our_child(self, pid: int) -> bool:
        """Say whether `pid` is our child, unreaped. Nothing is reaped by asking."""
        ...

    def reap(self, pid: int) -> ExitStatus | None:
        """Collect the exit status of our child, which frees its number; None while it lives."""
        ...

    def own_environ(self) -> bytes | None:
        """Return this process's environment block as the kernel shows it to others; None: not shown."""
        ...

    def deliver(self, target: Pinned, sig: int, warrant: Warrant, *, group: bool = False) -> Delivery:
        """Send one signal to a pinned process, or with `group` to the group it leads.

        Returns:
            SENT, or GONE when nothing was left to receive it.

        Raises:
            NotSignalable: An exclusion holds, or the warrant does not cover the target.
            NotPermitted: It exists and is not ours to signal, for the kernel.
            SignalFailed: Any other errno.
        """
        ...


AuditSink = Callable[[SignalRecord], None]

_sinks: list[AuditSink] = []


def add_audit_sink(sink: AuditSink) -> Callable[[], None]:
    """Have `sink` called for every signal sent or refused; returns the way to take it out again.

    A sink runs inside the act of signalling: it must be quick, and must not raise.
    """
    _sinks.append(sink)

    def remove() -> None:
        if sink in _sinks:
            _sinks.remove(sink)

    return remove


def sinks() -> Iterator[AuditSink]:
    """Iterate over the audit's sinks."""
    return iter(tuple(_sinks))
