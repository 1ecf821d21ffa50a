"""Stop: ask, wait, insist, report. Procedures of synchronous steps, and the blocking way to run them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from birthmark.children.ladder import Ladder, climb
from birthmark.children.members import group_of, nobody, set_of
from birthmark.children.proving import identity_judge, look, look_until_settled, pin_or_none
from birthmark.children.waiting import Hurry, Steps, Wait, run_now, wait_for_any
from birthmark.core.identity import Identity, Reason, Verdict
from birthmark.core.judging import judge_number
from birthmark.core.outcomes import (
    Basis,
    Receipt,
    Warrant,
)
from birthmark.core.policies import StopPolicy
from birthmark.errors import (
    IdentityMismatch,
    LookFailed,
    SupervisionError,
)
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned

__all__ = ["set_steps", "stop_children_now", "stop_set_now", "terminate_steps"]


def terminate_steps(
    pinned: Pinned,
    grace_s: float,
    *,
    group: bool,
    warrant: Warrant,
    service: str = "",
    settle_s: float = 5.0,
    insist: bool = True,
) -> Steps:
    """Return the steps that end one process, or with `group` the whole group it leads.

    With `insist` a process that may not be signalled is an error, and its group is left alone; without it,
    it is a survivor, and its group is stopped. The receipt says in a note when a group was asked for and the process leads none.
    """
    platform = load()
    leads = group and platform.group_of(pinned.pid) == pinned.pid
    own = leads and hasattr(os, "getpgrp") and pinned.pid == os.getpgrp()
    ladder = Ladder(
        service=service,
        leader=pinned,
        warrant=warrant,
        find=group_of(pinned) if leads else nobody,
        lead_group=leads and not own,
        asked_by=warrant.asked_by,
        hurry=None,
        insist_on_leader=insist,
    )
    if group and not leads:
        ladder.receipt.notes.append("not a group leader: only the process itself was stopped")
    policy = StopPolicy(stdin_grace_s=0, term_grace_s=grace_s, settle_s=settle_s)
    try:
        return (yield from climb(ladder, policy, None, pinned.pid))
    finally:
        ladder.close()


def set_steps(
    identity: Identity,
    policy: StopPolicy,
    *,
    asked_by: str,
    held: Pinned | None = None,
    close_stdin: Callable[[], None] | None = None,
    hurry: Hurry | None = None,
) -> Steps:
    """Return the steps that end the whole set of a birth: leader, group, session, descendants, carriers.

    Args:
        identity: Of the leader, written down at birth. A leader that is gone is no obstacle: what
            carries the birth's mark or tag is ended all the same.
        policy: The ladder.
        asked_by: For the audit.
        held: A pin of the leader held since birth; stays the caller's.
        close_stdin: Closes our end of the leader's stdin.
        hurry: Shortens the grace when said.

    Raises (while run):
        IdentityMismatch: A live process has the recorded pid and is not proven to be it. Nothing was signalled.
        StopTimedOut: Survivors; the receipt names them.
    """
    with ExitStack() as ours:
        leader = pin_or_none(identity.pid) if held is None else _second_pin(held)
        if leader is not None and leader is not held:
            ours.enter_context(leader)
        is_held = held is not None and leader is not None and leader.fd is not None
        proof = look_until_settled(leader, identity_judge(identity, held=is_held))
        if proof.verdict is Verdict.UNKNOWN:
            raise IdentityMismatch(proof)
        if proof.reason is Reason.ZOMBIE:
            # Dead and not reaped: its group and its session still go by its number.
            proof = look(leader, lambda seen: judge_number(identity, seen, held=is_held))
        # Somebody else may have the number now: the leader is gone, and what it left may still carry the mark.
        if proof.verdict is not Verdict.SAME:
            leader = None
        ladder = Ladder(
            service=str(identity.service or ""),
            leader=leader,
            warrant=Warrant(basis=Basis.PROOF, asked_by=asked_by, proof=proof),
            find=set_of(leader, birth=identity.birth, installation=identity.installation),
            lead_group=leader is not None and load().group_of(identity.pid) == identity.pid,
            asked_by=asked_by,
            hurry=hurry,
        )
        try:
            return (yield from climb(ladder, policy, close_stdin, identity.pid))
        finally:
            ladder.close()


def _second_pin(held: Pinned) -> Pinned:
    """Return a pin of our own, since the owner closes his when he reaps it; his where there are no pidfds."""
    fd = held.fd
    if fd is None:
        return held
    try:
        copy = os.dup(fd)
    except OSError as err:
        if err.errno == errno.EBADF:
            return held  # closed just now: it was reaped
        raise LookFailed(f"process {held.pid}", os.strerror(err.errno or 0)) from err
    return load().adopt_pidfd(held.pid, copy)


def stop_set_now(
    identity: Identity,
    policy: StopPolicy,
    *,
    asked_by: str,
    held: Pinned | None = None,
    close_stdin: Callable[[], None] | None = None,
) -> Receipt:
    """End the whole set of a birth, blocking; see `set_steps`."""
    return run_now(set_steps(identity, policy, asked_by=asked_by, held=held, close_stdin=close_stdin))


def stop_children_now(children: Sequence[Pinned], grace_s: float = 5.0) -> list[Receipt]:
    """End our own unreaped children, each with the group it leads, all at once. Blocks for one grace at most.

    Raises:
        StopTimedOut: The first that survived SIGKILL; the others have been stopped by then.
    """
    with ExitStack() as ours:
        pins = [_second_pin(each) for each in children]
        for pin, each in zip(pins, children, strict=True):
            if pin is not each:
                ours.enter_context(pin)
        return _run_together(
            [
                terminate_steps(
                    pin,
                    grace_s,
                    group=True,
                    warrant=Warrant(basis=Basis.CHILD, asked_by="spawner close"),
                    insist=False,
                )
                for pin in pins
            ]
        )


def _run_together(running: Sequence[Steps]) -> list[Receipt]:
    """Drive several procedures at once, in this thread."""
    receipts: list[Receipt] = []
    failed: SupervisionError | None = None
    waits: list[tuple[Steps, Wait]] = []
    pending = [(steps, Wait(None, 0)) for steps in running]
    while pending:
        waits.clear()
        for steps, _ in pending:
            try:
                waits.append((steps, next(steps)))
            except StopIteration as end:
                receipts.append(end.value)
            except SupervisionError as err:
                failed = failed or err
        pending = list(waits)
        if pending:
            wait_for_any([wait for _, wait in pending])
    if failed is not None:
        raise failed
    return receipts
