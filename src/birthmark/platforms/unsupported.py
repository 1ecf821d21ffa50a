"""Every system we know nothing about: it fails closed. Nothing is identified, and nothing is signalled."""

from __future__ import annotations

import sys
from typing import NoReturn

from birthmark.core.identity import HostFacts, Sighting
from birthmark.core.outcomes import Delivery, ExitStatus, Warrant
from birthmark.core.parsers import signalable_pid
from birthmark.errors import Unsupported
from birthmark.platforms.contract import Capabilities, Pinned

__all__ = [
    "adopt_pidfd",
    "all_pids",
    "become_subreaper",
    "capabilities",
    "children_of",
    "command_line",
    "deliver",
    "exit_fd",
    "exited",
    "facts",
    "glance",
    "group_lives",
    "group_members",
    "group_of",
    "hold",
    "is_our_child",
    "is_zombie",
    "observe",
    "own_environ",
    "parent_of",
    "pin",
    "reap",
    "session_of",
    "start_ticks_of",
]


def capabilities() -> Capabilities:
    """Say that nothing can be proven here."""
    return Capabilities(
        platform=sys.platform,
        pidfd=False,
        pidfs_inode=False,
        group_signal=False,
        environ=False,
        tag=False,
        parent_death=False,
        subreaper=False,
        sock_diag=False,
        native_spawner=False,
        notes=(f"birthmark does not know {sys.platform}: it identifies and signals nothing here",),
    )


def _refuse(operation: str) -> NoReturn:
    raise Unsupported(operation, sys.platform)


def facts() -> HostFacts:
    _refuse("naming this host and boot")


def pin(pid: int) -> Pinned:
    if signalable_pid(pid) is None:
        raise ValueError(f"{pid} is no pid: 1 to 2**31-1 are")
    _refuse("taking hold of a process")


hold = pin


def adopt_pidfd(pid: int, fd: int) -> Pinned:
    _refuse("taking hold of a process")


def observe(pinned: Pinned, *, environ: bool = True) -> Sighting | None:
    _refuse("identifying a process")


def exited(pinned: Pinned) -> bool:
    _refuse("looking at a process")


def exit_fd(pinned: Pinned) -> int | None:
    return None


def start_ticks_of(pid: int) -> int | None:
    _refuse("looking at a process")


def parent_of(pid: int) -> int | None:
    _refuse("looking at a process")


def group_of(pid: int) -> int | None:
    return None


def session_of(pid: int) -> int | None:
    return None


def children_of(pid: int) -> list[int]:
    _refuse("listing processes")


def group_lives(leader: Pinned) -> bool:
    _refuse("looking at a process group")


def group_members(pgid: int) -> list[int]:
    _refuse("listing processes")


def all_pids() -> list[int]:
    _refuse("listing processes")


def glance(pid: int) -> tuple[int | None, bytes]:
    return None, b""


def command_line(pid: int) -> str:
    return ""


def is_zombie(pid: int) -> bool:
    return False


def is_our_child(pid: int) -> bool:
    return False


def reap(pid: int) -> ExitStatus | None:
    _refuse("reaping a process")


def own_environ() -> bytes | None:
    return None


def become_subreaper() -> bool:
    return False


def deliver(target: Pinned, sig: int, warrant: Warrant, *, group: bool = False) -> Delivery:
    _refuse("signalling")
