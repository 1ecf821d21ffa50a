"""Stop: ask, wait, insist, report. Procedures of synchronous steps, and the blocking way to run them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from birthmark.children.ladder import Ladder, climb
from birthmark.children.members import group_of, nobody, set_of
from birthmark.children.proving import look_until_settled, pin_or_none
from birthmark.children.waiting import Hurry, Steps, Wait, run_now, wait_for_any
from birthmark.core.identity import Identity, Proof, Verdict
from birthmark.core.judging import judge
from birthmark.core.outcomes import (
    Basis,
    Receipt,
    Warrant,
)
from birthmark.core.policies import StopPolicy
from birthmark.errors import (
    IdentityMismatch,
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
) -> Steps:
    """Return the steps that end one process, or with `group` the whole group it leads.

    The receipt says in a note when a group was asked for and the process leads none.
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
    leader = held if held is not None else pin_or_none(identity.pid)
    try:
        is_held = held is not None and held.fd is not None
        proof = look_until_settled(leader, lambda seen: judge(identity, seen, held=is_held))
        if proof.verdict is Verdict.UNKNOWN:
            raise IdentityMismatch(proof)
        # Somebody else has the number now: the leader is gone, and what it left may still carry the mark.
        ours = leader if _pins_the_number(leader, identity, proof) else None
        ladder = Ladder(
            service=str(identity.service or ""),
            leader=ours,
            warrant=Warrant(basis=Basis.PROOF, asked_by=asked_by, proof=proof),
            find=set_of(ours, birth=identity.birth, installation=identity.installation),
            lead_group=ours is not None and load().group_of(identity.pid) == identity.pid,
            asked_by=asked_by,
            hurry=hurry,
        )
        try:
            return (yield from climb(ladder, policy, close_stdin, identity.pid))
        finally:
            ladder.close()
    finally:
        if leader is not None and held is None:
            leader.close()


def _pins_the_number(leader: Pinned | None, identity: Identity, proof: Proof) -> bool:
    """Say whether the recorded process still has its number: alive, or a zombie nobody has reaped."""
    if leader is None:
        return False
    if proof.verdict is Verdict.SAME:
        return True
    return proof.verdict is Verdict.GONE and load().start_ticks_of(identity.pid) == identity.start_ticks


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
    running = [
        terminate_steps(
            pinned, grace_s, group=True, warrant=Warrant(basis=Basis.CHILD, asked_by="spawner close")
        )
        for pinned in children
    ]
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
