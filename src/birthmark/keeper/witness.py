"""Whether a signal came to us alone or to the whole group, which the kernel does not say.

A client that signals the group has reached the command already, and a second copy from us would be a second
request: many programs leave at once on that. A client that signals only our pid has not. So one small process
stands in our group, does nothing, and dies of whatever the group is sent.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from typing import Final

from birthmark.core.outcomes import Basis, Warrant
from birthmark.errors import LookFailed, ProcessGone, SupervisionError
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned
from birthmark.platforms.launch import KEEP_HARD, Launch, LaunchFailed, Session, launch
from birthmark.platforms.posix import peek, reap

ANSWERS_WITHIN_S: Final = 0.5
"""What a process that does nothing else may take for an answer, or for dying: the scheduler's time."""

_SHELL: Final = b"/bin/sh"
_SCRIPT: Final = b"while read -r question; do echo; done"
_RLIMIT_CORE: Final = 4


class Witness:
    """A process in our own group that tells which signals the group got. Ends with us, however we end.

    The kernel signals the members of a group from the youngest to the oldest, and we are older: when a signal
    to the group has come to us, it has come to the witness before.
    """

    def __init__(self) -> None:
        """Post the first one; without a shell there is none, and nothing is ever seen."""
        self.pids: set[int] = set()
        """Its pid, or nothing; the same set for ever."""
        self._held: Pinned | None = None
        self._ask = self._answer = -1
        self._post()

    def fell_to(self) -> int | None:
        """Return the signal that the group got and that ended the witness; None when it lives.

        To be asked when signals have come to us, once for all that came together: the kernel hands those out by
        number, not in the order they were sent. Waits for an answer, at most `ANSWERS_WITHIN_S`. Who answers
        was sent none of them: a signal that ends a process is acted on before anything else it does.
        """
        held = self._held
        if held is None:
            return None
        with suppress(BrokenPipeError):
            os.write(self._ask, b"?\n")
            poller = select.poll()
            poller.register(self._answer, select.POLLIN)
            if not poller.poll(int(ANSWERS_WITHIN_S * 1000)):
                # It is stopped, or the machine is on its knees. Better told twice than not at all; and an answer
                # that comes late must not be taken for one to the next question.
                self.close()
                self._post()
                return None
            if os.read(self._answer, 16):
                return None
        _exits(held)
        status = peek(held.pid)
        return None if status is None else status.signal

    def relieve(self) -> None:
        """Post a new one where the last has fallen."""
        self._dismiss()
        self._post()

    def close(self) -> None:
        """End it, and reap it."""
        held = self._held
        if held is None:
            return
        with suppress(SupervisionError):
            load().deliver(held, signal.SIGKILL, Warrant(basis=Basis.CHILD, asked_by="run"))
        _exits(held)
        self._dismiss()

    def _post(self) -> None:
        ours: list[int] = []
        try:
            ours += os.pipe()
            ours += os.pipe()
            ours.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        except OSError:
            # Out of descriptors. Better nobody posted than nobody left to stand by the command.
            for fd in ours:
                os.close(fd)
            return
        their_ask, ask, answer, their_answer, null = ours
        try:
            pid, pidfd = launch(
                Launch(
                    path=_SHELL,
                    argv=(_SHELL, b"-c", _SCRIPT),
                    env=(),
                    descriptors=((their_ask, 0), (their_answer, 1), (null, 2)),
                    parent_death=signal.SIGKILL,
                    session=Session.INHERIT,
                    # ^\ must not leave a core file in the user's folder.
                    limits=((_RLIMIT_CORE, 0, KEEP_HARD),),
                )
            )
        except LaunchFailed:
            os.close(ask)
            os.close(answer)
            return
        finally:
            for fd in (their_ask, their_answer, null):
                os.close(fd)
        self.pids.add(pid)
        try:
            held = load().pin(pid) if pidfd is None else load().adopt_pidfd(pid, pidfd)
        except (LookFailed, ProcessGone):
            # Nobody to ask then. It ends at the end of its input, and we reap it by ending.
            for fd in (ask, answer) if pidfd is None else (ask, answer, pidfd):
                os.close(fd)
            return
        self._held, self._ask, self._answer = held, ask, answer

    def _dismiss(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            if reap(held.pid) is not None:
                self.pids.discard(held.pid)
            held.close()
            os.close(self._ask)
            os.close(self._answer)


def _exits(held: Pinned) -> None:
    """Wait, at most `ANSWERS_WITHIN_S`, until it has exited."""
    fd = load().exit_fd(held)
    poller = select.poll()
    if fd is not None:
        poller.register(fd, select.POLLIN)
        poller.poll(int(ANSWERS_WITHIN_S * 1000))
        return
    for _ in range(int(ANSWERS_WITHIN_S * 1000)):
        if load().exited(held):
            return
        poller.poll(1)  # only where the kernel has no pidfds
