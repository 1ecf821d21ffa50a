"""What a procedure waits for, and how a plain thread waits for it.

A procedure is a generator: it yields what it waits for, and is sent nothing but its turn. It
never sleeps, so the same steps run under asyncio, under trio and in a plain thread.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from birthmark.core.outcomes import (
    Receipt,
)

POLL_S: Final = 0.025
"""How often exits are looked for where the kernel has no pidfd."""

_MOST_MS: Final = 2**31 - 1
"""What poll(2) takes; whoever waits longer waits again."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a procedure waits for: `fd` readable (None: nothing to wake on), at most `for_s` seconds."""

    fd: int | None
    for_s: float


Steps = Generator[Wait, None, Receipt]


class Hurry:
    """Tells a stop that is under way that patience is over: its grace ends now. May be said once, from any thread."""

    def __init__(self) -> None:
        self._ear, self._mouth = os.pipe()
        self.said = False

    @property
    def fd(self) -> int:
        """Readable once it has been said; owned by this object."""
        return self._ear

    def say(self) -> None:
        """Shorten the grace to nothing."""
        if not self.said:
            self.said = True
            os.write(self._mouth, b"!")

    def close(self) -> None:
        """Let go of the pipe. Closing twice is harmless."""
        for name in ("_ear", "_mouth"):
            fd = getattr(self, name)
            if fd >= 0:
                os.close(fd)
                setattr(self, name, -1)

    def __enter__(self) -> Hurry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run_now(steps: Steps) -> Receipt:
    """Drive a procedure to its end in this thread. Blocks."""
    try:
        wait = next(steps)
        while True:
            wait_for(wait)
            wait = next(steps)
    except StopIteration as end:
        receipt: Receipt = end.value
        return receipt


def wait_for(wait: Wait) -> None:
    if wait.fd is None:
        time.sleep(wait.for_s)
        return
    poller = select.poll()
    poller.register(wait.fd, select.POLLIN)
    # Rounded up: waking a fraction early would only turn the wait into a busy loop.
    poller.poll(min(int(wait.for_s * 1000) + 1, _MOST_MS))


def wait_for_any(waits: Sequence[Wait]) -> None:
    for_s = min(wait.for_s for wait in waits)
    fds = [wait.fd for wait in waits if wait.fd is not None]
    if len(fds) < len(waits):
        time.sleep(min(for_s, POLL_S))
        return
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    poller.poll(min(int(for_s * 1000) + 1, _MOST_MS))


def wait_readable(fd: int | None, timeout_s: float | None) -> None:
    """Block until `fd` is readable, at most `timeout_s` seconds (None: for ever); without one, `POLL_S`."""
    if fd is None:
        time.sleep(POLL_S if timeout_s is None else min(POLL_S, timeout_s))
        return
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    poller.poll(None if timeout_s is None else min(max(1, int(timeout_s * 1000)), _MOST_MS))
