"""Who has a port: nobody, somebody, somebody we may not see, or *could not look*. Whose they are is for others to judge."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from birthmark.core.parsers import signalable_pid
from birthmark.errors import LookFailed, ProcessGone
from birthmark.platforms import load
from birthmark.platforms.listeners import (
    Listener,
    OpenListener,
    link_of,
    listeners,
    listeners_of,
    lives_elsewhere,
    open_as_standard,
    open_in_threads,
    open_listeners,
)
from birthmark.platforms.listening_tools import UNSEEN, pids_by_tool

__all__ = ["Holder", "Listener", "PortAnswer", "PortState", "holders_of", "listening_pids"]

_ROUNDS: Final = 3
"""How often to look again when a listener is there and no process has it: it may be on its way to another."""


class PortState(Enum):
    """What a look at a port gave. Only NOBODY means that nobody listens."""

    NOBODY = "nobody"
    HELD = "held"
    HELD_BY_UNSEEN = "held_by_unseen"
    COULD_NOT_LOOK = "could_not_look"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that had a listener of the port open when we looked. Pin it, and prove it, before anything else.

    `listeners` and `fds` go together, one descriptor for each; both are empty where a tool was asked that
    names pids only. `shared`: whether another process has one of them open too, which makes one of the
    two an heir. None: the look ended before that could be known; ask with `all_holders`.
    """

    pid: int
    listeners: tuple[Listener, ...] = ()
    fds: tuple[int, ...] = ()
    shared: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PortAnswer:
    """What a look at a port gave.

    Attributes:
        port: 0 to 65535.
        state: See `PortState`.
        holders: The expected processes first, in the order asked for; then the newest pid first.
        listeners: The listening sockets on the port, on any address.
        unseen: Those among them that no process we may look at has open. Not empty with HELD_BY_UNSEEN
            (unless a tool was asked), and with HELD where only a part is somebody's we can see.
        cause: Why we could not look, else None.
    """

    port: int
    state: PortState
    holders: tuple[Holder, ...] = ()
    listeners: tuple[Listener, ...] = ()
    unseen: tuple[Listener, ...] = ()
    cause: str | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """The holders' pids, in their order."""
        return tuple(holder.pid for holder in self.holders)

    def __str__(self) -> str:
        if self.state is PortState.NOBODY:
            return f"nobody listens on port {self.port}"
        if self.state is PortState.COULD_NOT_LOOK:
            return f"could not look at port {self.port}: {self.cause}"
        return f"port {self.port} is held by " + "; ".join(self._parts())

    def _parts(self) -> Iterable[str]:
        for holder in self.holders:
            addresses = ", ".join(map(str, holder.listeners))
            yield f"process {holder.pid}" + (f" on {addresses}" if addresses else "")
        for listener in self.unseen:
            yield f"a process that we may not see, on {listener}, opened by user {listener.uid}"
        if self.state is PortState.HELD_BY_UNSEEN and not self.unseen:
            yield "a process that we may not see"


def holders_of(
    port: int,
    *,
    expected: int | Collection[int] | None = None,
    network_of: int | None = None,
    all_holders: bool = False,
    fds: Mapping[int, int] | None = None,
) -> PortAnswer:
    """Look who listens on a TCP port, on any address of IPv4 and IPv6. Clients never count.

    The look ends as soon as every listener has a holder, so an expected process is found in a fifth of a
    millisecond however many processes there are. It reads procfs: run it in a thread from an event loop.

    Args:
        port: 0 to 65535; nobody listens on 0.
        expected: The pid, or pids in order of likelihood, to look at first.
        network_of: A pid in whose network namespace to look. None: in ours, or, if there is one expected
            pid and it lives in another, in that one.
        all_holders: Look at every process, so that `Holder.shared` is known and heirs are listed too.
        fds: The descriptor that each expected pid had the listener under when last seen.

    Returns:
        The answer; a look that fails is COULD_NOT_LOOK with its cause, and never NOBODY.

    Raises:
        TypeError, ValueError: The port or a pid cannot be one.
    """
    number = _checked_port(port)
    first = _checked_pids(expected)
    if network_of is not None:
        _checked_pids(network_of)
    if number == 0:
        return PortAnswer(port=0, state=PortState.NOBODY)
    if sys.platform != "linux":
        return _ask_tool(number, first)
    look = _Look(number, first, network_of, all_holders, fds or {})
    try:
        look.start()
    except (LookFailed, ProcessGone) as err:
        if network_of is None:
            return _ask_tool(number, first, after=_cause(err))
        return _could_not(number, f"the network namespace of process {network_of}: {_cause(err)}")
    try:
        return look.answer()
    except (LookFailed, ProcessGone) as err:
        return _could_not(number, _cause(err))


def listening_pids(port: int) -> list[int]:
    """Return every pid that has a listener of the port open, ascending; empty means that nobody listens.

    Raises:
        LookFailed: We could not look, or somebody listens whom we may not see.
        TypeError, ValueError: It is no port.
    """
    answer = holders_of(port, all_holders=True)
    if answer.state is PortState.COULD_NOT_LOOK:
        raise LookFailed(f"port {port}", answer.cause or "no reason given")
    if answer.unseen or answer.state is PortState.HELD_BY_UNSEEN:
        raise LookFailed(f"port {port}", str(answer))
    return sorted(answer.pids)


class _Look:
    """One look: the kernel's listeners, and then process after process until each has a holder."""

    def __init__(
        self,
        port: int,
        expected: tuple[int, ...],
        network_of: int | None,
        everyone: bool,
        fds: Mapping[int, int],
    ) -> None:
        self.port, self.expected, self.everyone, self.fds = port, expected, everyone, fds
        self.network_of = network_of
        self.may_move = network_of is None and len(expected) == 1

    def start(self) -> None:
        """Ask for the listeners."""
        if self.network_of is not None and lives_elsewhere(self.network_of) is False:
            self.network_of = None
        self._aim(self._table())

    def _table(self) -> list[Listener]:
        return listeners(self.port) if self.network_of is None else listeners_of(self.network_of, self.port)

    def _aim(self, table: list[Listener]) -> None:
        """Start anew, looking for these listeners."""
        self.table = table
        self.wanted = {link_of(listener.inode): listener for listener in table}
        self.found: dict[int, list[OpenListener]] = {}
        self.missing = set(self.wanted)
        self.looked_at: set[int] = set()

    def answer(self) -> PortAnswer:
        self._look_at_expected()
        if self.missing == set(self.wanted):
            self._move_to_expected()
        for _ in range(_ROUNDS):
            if not self.wanted or not (self.missing or self.everyone):
                break
            self._look_at_everyone()
            if not self.missing:
                break
            # A listener, and nobody has it. It was closed while we looked, or handed on to a process that
            # was not there yet: its heir is newer, so only the new ones are looked at. Or we may not see.
            table = self._table()
            if {listener.inode for listener in table} != {listener.inode for listener in self.table}:
                self._aim(table)
                self._look_at_expected()
        return self._result()

    def _look_at_expected(self) -> None:
        for pid in self.expected:
            if not self.wanted or not (self.missing or self.everyone):
                return
            self._add(pid, open_listeners(pid, self.wanted, fd=self.fds.get(pid)))
            if pid not in self.found:
                self._add(pid, open_in_threads(pid, self.wanted))

    def _move_to_expected(self) -> None:
        """Look in the network namespace of the expected process, if it is another one than ours."""
        if not self.may_move:
            return
        [pid] = self.expected
        self.may_move = False
        if lives_elsewhere(pid) is False:
            return
        try:
            table = listeners_of(pid, self.port)
        except ProcessGone:
            return
        except LookFailed as err:
            raise LookFailed(err.subject, f"the network namespace of process {pid}: {err.cause}") from err
        if {listener.inode for listener in table} == {listener.inode for listener in self.table}:
            return
        self.network_of = pid
        self._aim(table)
        self._look_at_expected()

    def _look_at_everyone(self) -> None:
        """Look at whom we have not looked at yet, the newest pids first: what was started last is asked for most."""
        newcomers = [pid for pid in reversed(load().all_pids()) if pid not in self.looked_at]
        for pid in newcomers:
            if not self.missing and not self.everyone:
                return
            self._add(pid, open_listeners(pid, self.wanted, standard=self.everyone))
        if self.missing and not self.everyone:
            for pid in newcomers:
                self._add(pid, open_as_standard(pid, self.wanted))
        if self.missing or self.everyone:
            for pid in newcomers:
                if pid not in self.found:
                    self._add(pid, open_in_threads(pid, self.wanted))

    def _add(self, pid: int, opened: list[OpenListener] | None) -> None:
        self.looked_at.add(pid)
        if opened:
            self.found[pid] = [*self.found.get(pid, ()), *opened]
            self.missing.difference_update(link_of(one.listener.inode) for one in opened)

    def _result(self) -> PortAnswer:
        if not self.table:
            return PortAnswer(port=self.port, state=PortState.NOBODY)
        return PortAnswer(
            port=self.port,
            state=PortState.HELD if self.found else PortState.HELD_BY_UNSEEN,
            holders=tuple(self._holder(pid, opened) for pid, opened in self.found.items()),
            listeners=tuple(self.table),
            unseen=tuple(self.wanted[link] for link in sorted(self.missing)),
        )

    def _holder(self, pid: int, opened: list[OpenListener]) -> Holder:
        inodes = {one.listener.inode for one in opened}
        shared: bool | None = any(
            one.listener.inode in inodes
            for other, theirs in self.found.items()
            if other != pid
            for one in theirs
        )
        if not shared and not self.everyone:
            shared = None
        return Holder(
            pid=pid,
            listeners=tuple(one.listener for one in opened),
            fds=tuple(one.fd for one in opened),
            shared=shared,
        )


def _ask_tool(port: int, first: tuple[int, ...], *, after: str | None = None) -> PortAnswer:
    """Ask the platform's tool, which names pids only. `after` is why nothing better could be asked."""
    try:
        pids = pids_by_tool(port)
    except LookFailed as err:
        cause = err.cause if after is None else f"{after}; {err.cause}"
        return _could_not(port, cause)
    if not pids:
        return PortAnswer(port=port, state=PortState.NOBODY)
    seen = sorted((pid for pid in pids if pid != UNSEEN), reverse=True)
    seen.sort(key=lambda pid: first.index(pid) if pid in first else len(first))
    if UNSEEN in pids and seen:
        # A part of an answer would read as the whole.
        cause = (
            f"listeners of processes {', '.join(map(str, seen))}, and one of a process that we may not see"
        )
        return _could_not(port, cause)
    return PortAnswer(
        port=port,
        state=PortState.HELD if seen else PortState.HELD_BY_UNSEEN,
        holders=tuple(Holder(pid=pid) for pid in seen),
    )


def _could_not(port: int, cause: str) -> PortAnswer:
    return PortAnswer(port=port, state=PortState.COULD_NOT_LOOK, cause=cause)


def _cause(err: LookFailed | ProcessGone) -> str:
    return err.cause if isinstance(err, LookFailed) else str(err)


def _checked_port(port: int) -> int:
    if isinstance(port, bool) or not isinstance(port, int):
        raise TypeError(f"a port is an int, not {type(port).__name__}")
    if not 0 <= port <= 65535:
        raise ValueError(f"{port} is no port: 0 to 65535 are")
    return port


def _checked_pids(pids: int | Collection[int] | None) -> tuple[int, ...]:
    if pids is None:
        return ()
    listed = (pids,) if isinstance(pids, int) else tuple(pids)
    for pid in listed:
        if signalable_pid(pid) is None:
            raise ValueError(f"{pid} is no pid: 1 to 2**31-1 are")
    return listed
