"""The ladder for one process alone, whose caller vouches for it: two rungs, and nobody to look for."""

from __future__ import annotations

import signal
import time
from typing import Final

from birthmark.children.ladder import KILL, why_alive
from birthmark.children.waiting import POLL_S, Steps, Wait
from birthmark.core.outcomes import (
    Delivery,
    Found,
    MemberReceipt,
    Receipt,
    Termination,
    Warrant,
    signal_name,
)
from birthmark.errors import StopTimedOut
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned

_TERM: Final = int(signal.SIGTERM)


def single_steps(pinned: Pinned, grace_s: float, *, warrant: Warrant, settle_s: float) -> Steps:
    """Return the steps that end one process: TERM, `grace_s`, KILL, `settle_s`.

    An obedient child is gone a tenth of a millisecond after the signal, so what is done before and after
    it counts; the ladder for sets does much that one process does not need. The receipt has the termination;
    what was done to the process is in it only when it is a survivor.

    Raises (while run):
        NotSignalable, NotPermitted, SignalFailed: Nothing was delivered.
        StopTimedOut: It survived SIGKILL.
    """
    platform = load()
    began = time.monotonic()
    if platform.exited(pinned):
        return Receipt(service="", termination=Termination.ALREADY_EXITED)
    sent: list[tuple[int, float]] = []
    gone = False
    for sig, wait_s in ((_TERM, grace_s), (KILL, settle_s)):
        if platform.deliver(pinned, sig, warrant) is Delivery.SENT:
            sent.append((sig, time.monotonic() - began))
        deadline = time.monotonic() + wait_s
        # Nothing is written down before we wait: on a busy machine it can end only once we let it run.
        left_s = wait_s
        while left_s > 0 and not gone:
            yield Wait(None, min(POLL_S, left_s)) if pinned.fd is None else Wait(pinned.fd, left_s)
            gone = platform.exited(pinned)
            left_s = deadline - time.monotonic()
        if gone or (gone := platform.exited(pinned)):
            break
    killed = any(sig == KILL for sig, _ in sent)
    receipt = Receipt(service="", termination=Termination.KILLED if killed else Termination.EXITED)
    if gone:
        return receipt
    names = [(signal_name(sig), int(after_s * 1000)) for sig, after_s in sent]
    member = MemberReceipt(pid=pinned.pid, found=Found.LEADER, sent=names, why=why_alive(pinned.pid))
    receipt.members.append(member)
    receipt.took_ms = int((time.monotonic() - began) * 1000)
    tried = f"SIGTERM, {grace_s:g} s, SIGKILL, {settle_s:g} s"
    raise StopTimedOut(pinned.pid, [pinned.pid], tried, receipt)
