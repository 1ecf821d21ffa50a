"""Run one command the way an init would: take in what it leaves behind, and name what still lives at its end.

    python -m workshop.reaper [--loopback] [--user UID] [--within SECONDS] -- COMMAND…

The exit code is the command's, 128 + n after signal n, or 1 if it ended well but left processes behind. A suite
about processes that must not be left is not passed while one of its own is still there. Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

PR_SET_CHILD_SUBREAPER: Final = 36  # prctl(2)
SIOCGIFFLAGS: Final = 0x8913  # netdevice(7), as the next two
SIOCSIFFLAGS: Final = 0x8914
IFF_UP: Final = 1
SETTLE_S: Final = 2.0
"""Seconds in which what was killed at the very end may still finish dying."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code, or 1 where it left survivors."""
    parser = argparse.ArgumentParser(prog="workshop.reaper")
    parser.add_argument("--loopback", action="store_true", help="bring lo up first")
    parser.add_argument("--user", type=int, help="uid and gid of the command")
    parser.add_argument("--within", type=int, default=0, help="seconds the command may take")
    parser.add_argument("command", nargs="+")
    chosen = parser.parse_args(arguments)
    if chosen.loopback:
        raise_loopback()
    if os.getpid() != 1:
        adopt_orphans()
    child = start(chosen.command, chosen.user)
    code = wait_for(child, chosen.within)
    survivors = [describe(pid) for pid in settle()]
    if survivors:
        print("\nFAILED: processes left behind by the pass:", *survivors, sep="\n  ", flush=True)
        end_all()
    return code or int(bool(survivors))


def start(command: Sequence[str], user: int | None) -> int:
    """Fork and exec the command, as another user if one is given; return its pid."""
    child = os.fork()
    if child:
        return child
    try:
        if user is not None:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        os.execvp(command[0], list(command))
    except OSError as err:
        print(f"reaper: {command[0]}: {err.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def wait_for(child: int, within_s: int) -> int:
    """Reap everything that ends until the child does; return the child's exit code.

    ^C reaches the command by itself, since it is in our group; SIGTERM is passed on. A command that takes longer
    than `within_s` (0: no bound) gets SIGABRT, which makes Python print where every thread stands.
    """

    def too_long(*_: object) -> None:
        print(f"\nFAILED: still running after {within_s} s", flush=True)
        os.kill(child, signal.SIGABRT)

    # Functions, since SIG_IGN would be inherited through exec; these are not.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(within_s)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            signal.alarm(0)
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def settle() -> list[int]:
    """Reap what is ending; return the pids that are still there after SETTLE_S."""
    # Blocked first: a SIGCHLD that comes between the look and the wait is then kept, not lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    deadline = time.monotonic() + SETTLE_S
    while reap_ended():
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return sorted(descendants(os.getpid()))
        signal.sigtimedwait([signal.SIGCHLD], left_s)
    return []


def reap_ended() -> bool:
    """Reap every child that has ended; tell whether any child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def end_all() -> None:
    """Kill our children, and what falls to us when they die, until there is none."""
    deadline = time.monotonic() + SETTLE_S
    while reap_ended() and time.monotonic() < deadline:
        for pid in children(os.getpid()):
            os.kill(pid, signal.SIGKILL)  # ours, and not yet reaped: the number is theirs
        signal.sigtimedwait([signal.SIGCHLD], 0.2)


def children(pid: int) -> Iterator[int]:
    """Yield the children of a process, as far as /proc tells."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            yield from map(int, task.read_text().split())
        except OSError:
            continue


def descendants(pid: int) -> Iterator[int]:
    for child in children(pid):
        yield child
        yield from descendants(child)


def describe(pid: int) -> str:
    """Return a line about a process, for a person."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return f"{pid} (just gone)"
    return f"{pid} {line or f'[{name}]'}"


def adopt_orphans() -> None:
    """Make this process the one its orphaned descendants fall to. Source: prctl(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def raise_loopback() -> None:
    """Bring `lo` up in a fresh network namespace. Source: netdevice(7)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH22x", b"lo", 0)
        (flags,) = struct.unpack_from("16xH", fcntl.ioctl(control, SIOCGIFFLAGS, request))
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | IFF_UP))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
