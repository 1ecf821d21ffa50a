"""Control: is it running, is it ours, stop it. Asynchronous, under asyncio and trio alike.

Nothing here blocks the event loop: exits are waited for on pidfds, and what has to look at many
processes does so in a worker thread.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

import anyio
import anyio.to_thread

from birthmark.children.child import Child
from birthmark.children.installation import open_installation
from birthmark.children.members import prove_dead_leader
from birthmark.children.proving import (
    LOOK_EVERY_S,
    LOOKS,
    Judge,
    identity_judge,
    look,
    mark_judge,
    never_a_target,
    pin_or_none,
)
from birthmark.children.single import single_steps
from birthmark.children.stopping import set_steps, terminate_steps
from birthmark.children.waiting import Hurry, Steps, Wait, run_now
from birthmark.core.identity import (
    Evidence,
    Identity,
    Proof,
    Reason,
    Verdict,
    gone,
)
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import (
    Basis,
    NotOurs,
    NotRunning,
    Receipt,
    StopOutcome,
    Stopped,
    Termination,
    Warrant,
)
from birthmark.core.parsers import signalable_pid
from birthmark.core.policies import StopPolicy
from birthmark.core.service import InstallationId, ServiceName, installation_id, service_name
from birthmark.errors import SupervisionError
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned

__all__ = [
    "ProcessLiveness",
    "SubprocessLiveness",
    "is_running",
    "owns",
    "pids_listening_on",
    "process_group",
    "stop_owned",
    "stop_set",
    "terminate_gracefully",
    "terminate_group_gracefully",
]

OBEYS_WITHIN_S: Final = 0.00015
"""How long the first wait of a stop is spent outside of the event loop: an obedient child needs 0.0001 s."""

_MOST_SELECTED: Final = 1024  # FD_SETSIZE: select(2) takes no descriptor above

SETTLE_S: Final = 5.0
"""How long a process may take to go after SIGKILL before it counts as a survivor."""


_CALLER: Final = Warrant(basis=Basis.CALLER, asked_by="terminate_gracefully")
_GROUPS_CALLER: Final = Warrant(basis=Basis.CALLER, asked_by="terminate_group_gracefully")


async def is_running(pid: int) -> bool:
    """Say whether `pid` has not exited. Never reaps, so nobody's exit status is lost.

    A process stopped by a signal or a debugger runs; so does a leader whose main thread has
    ended while others serve. False for pid 0, for numbers no process can have, for ourselves
    (who are never a target), and for zombies.

    Raises:
        TypeError: `pid` is not an int.
        LookFailed: We could not look.
    """
    if never_a_target(pid) is not None:
        return False
    pinned = pin_or_none(pid)
    if pinned is None:
        return False
    with pinned:
        return not load().exited(pinned)


async def process_group(pid: int) -> int | None:
    """Return the process group of `pid`; None for pid 0, ourselves, and where there is none. A zombie has one."""
    if never_a_target(pid) is not None:
        return None
    return load().group_of(pid)


async def owns(
    pid: int,
    kind: ChildKind,
    service: str,
    *,
    installation: InstallationId | None = None,
    identity: Identity | None = None,
) -> bool:
    """Say whether `pid` runs and is ours: `service`, as `kind`, of our installation.

    Args:
        pid: As recorded.
        kind, service: What it was started as.
        installation: None means this user's.
        identity: Written down at its birth. Given, the full proof decides, so that a child that
            destroyed its environment is still known; without it, pid and mark do.

    False whenever that is not proven. To learn why, use `prove` or `prove_mark`.

    Raises:
        TypeError, ValueError: No such kind, or a name no service has.
        LookFailed: We could not look.
    """
    pinned, proof = await _pin_and_prove(pid, kind, service, installation, identity)
    if pinned is not None:
        pinned.close()
    return proof.verdict is Verdict.SAME


async def terminate_gracefully(pid: int, grace_s: float) -> Termination:
    """End one process the *caller* vouches for: TERM, wait `grace_s`, KILL, wait 5 s.

    Nobody is asked whose it is; the exclusions hold all the same, and the audit says "caller's
    word". Prefer `stop_owned`.

    Returns:
        ALREADY_EXITED when there was nothing to end (also for pid 0 and our own pid).

    Raises:
        NotPermitted: It is another user's. Nothing was delivered.
        NotSignalable: It is an ancestor of ours.
        StopTimedOut: It survived SIGKILL.
        TypeError, ValueError: `pid` is not an int, or `grace_s` not zero or more seconds.

    Cancelled, the escalation goes on in a thread of its own until its end.
    """
    return await _terminate(pid, grace_s, group=False)


async def terminate_group_gracefully(pid: int, grace_s: float) -> Termination:
    """End the group that `pid` leads, whole: like `terminate_gracefully`, but waits for every member.

    A leader that is dead and unreaped is no obstacle: its living members are ended. A process
    that leads no group is ended alone.

    Returns:
        KILLED if any member needed SIGKILL; ALREADY_EXITED only if the group is empty.
    """
    return await _terminate(pid, grace_s, group=True)


async def _terminate(pid: int, grace_s: float, *, group: bool) -> Termination:
    _check_grace(grace_s)
    if never_a_target(pid) is not None:
        return Termination.ALREADY_EXITED
    pinned = pin_or_none(pid)
    if pinned is None:
        return Termination.ALREADY_EXITED
    if group:
        steps = terminate_steps(pinned, grace_s, group=True, warrant=_GROUPS_CALLER, settle_s=SETTLE_S)
    else:
        steps = single_steps(pinned, grace_s, warrant=_CALLER, settle_s=SETTLE_S)
    receipt = await _drive(steps, finally_=pinned.close)
    return receipt.termination


async def stop_owned(
    pid: int,
    kind: ChildKind,
    service: str,
    grace_s: float,
    *,
    installation: InstallationId | None = None,
    identity: Identity | None = None,
) -> StopOutcome:
    """Stop a process of ours with the group it leads, or say why nothing was signalled.

    The API server is stopped alone: it was stamped in place, and its group is not one that we made.
    One pin holds from the first look to the last signal, so what is signalled is what was proven.
    A leader that has exited and was not reaped still stands for its group: what lives of it is stopped, if the
    identity proves the leader or a member carries the mark.

    Args:
        grace_s: Seconds between TERM and KILL; 0 is one look, then KILL.
        Others: See `owns`.

    Returns:
        `NotRunning`, `NotOurs` with the proof, or `Stopped` with the termination and a receipt.

    Raises:
        StopTimedOut, NotPermitted, NotSignalable, LookFailed, TypeError, ValueError: As `terminate_gracefully`.

    Cancelled, the escalation goes on in a thread of its own until its end.
    """
    _check_grace(grace_s)
    pinned, proof = await _pin_and_prove(pid, kind, service, installation, identity)
    if pinned is None:
        # Of a record from elsewhere nobody can say from here that it is not running.
        return NotOurs(pid, proof) if proof.elsewhere else NotRunning(pid)
    dead = proof.reason is Reason.ZOMBIE
    if dead and kind is not ChildKind.API:
        owner = open_installation().id if installation is None else installation
        try:
            proof = await anyio.to_thread.run_sync(
                prove_dead_leader, pinned, identity, kind, str(service), owner
            )
        except BaseException:
            pinned.close()
            raise
    if proof.verdict is Verdict.GONE or (dead and proof.verdict is not Verdict.SAME):
        pinned.close()
        return NotRunning(pid)
    if proof.verdict is not Verdict.SAME:
        pinned.close()
        return NotOurs(pid, proof)
    warrant = Warrant(basis=Basis.PROOF, asked_by="stop_owned", proof=proof)
    # The API server was stamped in place: its group is a shell's pipeline, not one that we made.
    group = kind is not ChildKind.API
    steps = terminate_steps(
        pinned, grace_s, group=group, warrant=warrant, service=str(service), settle_s=SETTLE_S
    )
    receipt = await _drive(steps, finally_=pinned.close)
    if dead and receipt.termination is Termination.ALREADY_EXITED:
        return NotRunning(pid)
    return Stopped(pid, receipt.termination, receipt)


async def stop_set(
    identity: Identity,
    policy: StopPolicy,
    *,
    asked_by: str,
    child: Child | None = None,
    close_stdin: Callable[[], None] | None = None,
    hurry: Hurry | None = None,
) -> Receipt:
    """End the whole set of a birth: leader, group, session, descendants, and all who carry its mark or tag.

    Args:
        identity: The leader's, written down at birth. It may be gone.
        child: The leader itself, when it is our child: held since birth, and reaped at the end.
        Others: See `children.stopping.set_steps`.

    Raises:
        IdentityMismatch: The pid's process is not provably the recorded one. Nothing was signalled.
        StopTimedOut: Survivors; the error's receipt names them.

    Cancelled, the escalation goes on in a thread of its own until its end.
    """
    steps = set_steps(
        identity,
        policy,
        asked_by=asked_by,
        held=child.pinned if child is not None and child.is_running() else None,
        close_stdin=close_stdin,
        hurry=hurry,
    )
    receipt = await _drive(steps, in_thread=True)
    if child is not None:
        status = child.poll()
        for member in receipt.members:
            if member.pid == identity.pid and status is not None and status.known:
                member.end = str(status)
    return receipt


async def pids_listening_on(port: int) -> list[int]:
    """Return the pids that listen on a TCP port, ascending; clients of the port never count.

    Raises:
        LookFailed: We could not look, or somebody listens whom we may not see. An empty list
            always means nobody.
        ValueError: No such port. Port 0 is nobody's.
    """
    from birthmark.children.ports import listening_pids

    return await anyio.to_thread.run_sync(listening_pids, port)


@runtime_checkable
class ProcessLiveness(Protocol):
    """Asks whether a recorded pid still is its service; the shape that stores of records take."""

    async def owns(self, pid: int, service: ServiceName) -> bool:
        """Say whether `pid` runs and is `service`."""
        ...


class SubprocessLiveness(ProcessLiveness):
    """The default: owned as an agent or as an MCP server. Never accepts the API server."""

    def __init__(self, installation: InstallationId | None = None) -> None:
        self._installation = installation

    async def owns(self, pid: int, service: ServiceName) -> bool:
        """Say whether `pid` is `service`, as either kind of child."""
        for kind in (ChildKind.AGENT, ChildKind.MCP):
            if await owns(pid, kind, service, installation=self._installation):
                return True
        return False


async def _pin_and_prove(
    pid: int,
    kind: ChildKind,
    service: str,
    installation: InstallationId | None,
    identity: Identity | None,
) -> tuple[Pinned | None, Proof]:
    """Pin first, prove second; the caller owns the pin. Waits, without blocking, while it is inside an exec."""
    if not isinstance(kind, ChildKind):
        raise TypeError(f"{kind!r} is no ChildKind")
    if identity is not None and not isinstance(identity, Identity):
        raise TypeError(f"{identity!r} is no Identity")
    if installation is not None:
        installation = installation_id(installation)
    name = service_name(service)
    decide = _identity_judge(pid, kind, name, identity) if identity is not None else None
    excluded = never_a_target(pid)
    if excluded is not None:
        return None, excluded
    if decide is None:
        owner = open_installation().id if installation is None else installation
        decide = mark_judge(pid, kind, name, owner)
    pinned = pin_or_none(pid)
    if pinned is None:
        return None, look(None, decide)
    try:
        proof = look(pinned, decide)
        for _ in range(LOOKS - 1):
            if not proof.transient:
                break
            await anyio.sleep(LOOK_EVERY_S)
            proof = look(pinned, decide)
    except BaseException:
        pinned.close()
        raise
    return pinned, proof


def _identity_judge(pid: int, kind: ChildKind, service: str, identity: Identity) -> Judge:
    if identity.pid != pid:
        raise ValueError(f"the identity is that of pid {identity.pid}, not {pid}")
    for reason, expected, found in (
        (Reason.MARK_OF_ANOTHER_KIND, kind, identity.kind),
        (Reason.MARK_OF_ANOTHER_SERVICE, service, identity.service),
    ):
        if expected != found:
            # The record itself is another service's: no look at the process could make it ours.
            proof = Proof(pid, Verdict.DIFFERENT, (Evidence(reason, str(expected), str(found)),))
            return lambda seen: gone(pid) if seen is None or seen.exited else proof
    return identity_judge(identity)


async def _drive(
    steps: Steps, *, in_thread: bool = False, finally_: Callable[[], None] | None = None
) -> Receipt:
    """Drive a procedure on the event loop. Cancelled, it goes on in a thread, and the cancellation with it."""
    handed_over = False
    first = not in_thread
    try:
        while True:
            turn = await anyio.to_thread.run_sync(_step, steps) if in_thread else _step(steps)
            if isinstance(turn, Receipt):
                return turn
            if first:
                first = False
                if _ready_at_once(turn):
                    continue
            await _pause(turn)
    except anyio.get_cancelled_exc_class():
        handed_over = True
        _finish_in_background(steps, finally_)
        raise
    finally:
        if finally_ is not None and not handed_over:
            finally_()


def _step(steps: Steps) -> Wait | Receipt:
    """Take one step. A StopIteration must not leave it: no future and no coroutine lets one pass."""
    try:
        return next(steps)
    except StopIteration as end:
        receipt: Receipt = end.value
        return receipt


def _ready_at_once(wait: Wait) -> bool:
    """Give a child that obeys the time it takes to go, which is less than an event loop takes to notice it."""
    if wait.fd is None or not 0 <= wait.fd < _MOST_SELECTED or wait.for_s < OBEYS_WITHIN_S:
        return False
    # Of all that wait, only this one is told microseconds; the loop is held up for less than by most callbacks.
    return bool(select.select((wait.fd,), (), (), OBEYS_WITHIN_S)[0])


async def _pause(wait: Wait) -> None:
    if wait.fd is None:
        await anyio.sleep(wait.for_s)
        return
    if _under_asyncio():
        await _pause_asyncio(wait.fd, wait.for_s)
        return
    with anyio.move_on_after(wait.for_s):
        await anyio.wait_readable(wait.fd)


def _under_asyncio() -> bool:
    """Say whether this task is asyncio's own (a loop may also be the host of another one's guest)."""
    asyncio = sys.modules.get("asyncio")
    try:
        return asyncio is not None and asyncio.current_task() is not None
    except RuntimeError:
        return False


async def _pause_asyncio(fd: int, for_s: float) -> None:
    """Wait for the descriptor in one turn of the loop; the general way takes two and a scope.

    A stop of an obedient child is a tenth of a millisecond of the kernel's time: ours should not be ten.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    # A copy: the loop takes one reader a descriptor, and this one may be waited for elsewhere too.
    copy = os.dup(fd)
    timer = None
    try:
        loop.add_reader(copy, wake)
        timer = loop.call_later(for_s, wake)
        await woken
    finally:
        if timer is not None:
            timer.cancel()
        loop.remove_reader(copy)
        os.close(copy)


def _finish_in_background(steps: Steps, finally_: Callable[[], None] | None) -> None:
    """Go on with a stop nobody waits for any more; at interpreter exit it is waited for, grace included."""

    def finish() -> None:
        try:
            run_now(steps)
        except SupervisionError:
            # Whoever asked is gone; the audit has what was sent, and the next look finds who is left.
            pass
        finally:
            if finally_ is not None:
                finally_()

    try:
        threading.Thread(target=finish, name="birthmark-stop", daemon=False).start()
    except RuntimeError:
        # The interpreter ends, or there is no thread to be had: a stop half done would be worse than a late one.
        finish()


def _check_grace(grace_s: float) -> None:
    if isinstance(grace_s, bool) or not isinstance(grace_s, int | float):
        raise TypeError(f"a grace period is seconds, not {type(grace_s).__name__}")
    if not 0 <= grace_s < float("inf"):
        raise ValueError(f"a grace period of {grace_s!r} s: zero or more seconds are expected")


def live_pid_is_subprocess(pid: int, key: str, service: str) -> bool:
    """Say whether the process's environment is readable and carries the child's mark. Blocks.

    The pure rule of the mark: no liveness, no installation, and the caller itself is not excluded.
    """
    from birthmark.core.markers import environ_identifies_child

    if signalable_pid(pid) is None:
        return False
    if pid == os.getpid():
        own = load().own_environ()
        return own is not None and environ_identifies_child(own, key, service)
    pinned = pin_or_none(pid)
    if pinned is None:
        return False
    with pinned:
        seen = load().observe(pinned)
        return seen is not None and environ_identifies_child(seen.environ, key, service)
