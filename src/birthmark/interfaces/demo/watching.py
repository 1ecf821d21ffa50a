"""The processes of some births, each held from now on: the kernel says when the last of them has gone."""

from __future__ import annotations

import select
import time
from collections.abc import Collection
from contextlib import ExitStack
from types import TracebackType
from typing import Final

from birthmark.children.proving import sweep
from birthmark.core.service import BirthId, InstallationId
from birthmark.platforms import load

_LOOK_EVERY_S: Final = 0.05
"""Where the kernel offers no descriptor that tells of an exit."""


class Watch:
    """Holds every process that carries the mark or the tag of one of some births. Close it, or use `with`.

    `commands` are their command lines by pid. A number cannot change hands while it is watched.
    """

    def __init__(self, births: Collection[BirthId], installation: InstallationId) -> None:
        """Take hold of them.

        Raises:
            LookFailed: The processes cannot be listed.
        """
        self._platform = load()
        self._open = ExitStack()
        self._pins = [
            (self._open.enter_context(pinned), carrier) for pinned, carrier in sweep(births, installation)
        ]
        self.commands = {pinned.pid: self._platform.command_line(pinned.pid) for pinned, _ in self._pins}

    def wait_gone(self, within_s: float) -> dict[int, str]:
        """Wait until all have exited; return the command lines of those that had not, by pid."""
        deadline = time.monotonic() + within_s
        while alive := [pinned for pinned, _ in self._pins if not self._platform.exited(pinned)]:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            poller = select.poll()
            told = [fd for pinned in alive if (fd := self._platform.exit_fd(pinned)) is not None]
            for fd in told:
                poller.register(fd, select.POLLIN)
            poller.poll(1000 * (left_s if len(told) == len(alive) else min(left_s, _LOOK_EVERY_S)))
        return {pinned.pid: self.commands[pinned.pid] for pinned in alive}

    def of(self, birth: BirthId) -> list[int]:
        """Return the pids that were found with that birth's mark or tag, ascending."""
        return sorted(pinned.pid for pinned, carrier in self._pins if carrier.birth == birth)

    def __len__(self) -> int:
        return len(self._pins)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of them."""
        self._open.close()
