"""The papers of a birth: what was meant, who was born, how it ended. Files, so that nothing waits for a database.

``births/ID/`` holds `intent.json`, written before the spawn by whoever spawns; `identity.json`, written
after it; `exit.json`, written when the birth has ended. A crash between any two steps leaves papers that
tell the truth: an intent alone may have become a process or not, an identity without an exit lives or died
unseen.
"""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from birthmark.core.identity import Identity
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import ExitStatus
from birthmark.core.service import BirthId, InstallationId, ServiceName

if TYPE_CHECKING:
    from pathlib import Path

INTENT: Final = "intent.json"
IDENTITY: Final = "identity.json"
EXIT: Final = "exit.json"
VERSION: Final = 1

KEPT: Final = 200
"""Births whose papers stay when there are more: the newest, and those that may not be over."""


def crowded(births: Path) -> bool:
    """Say whether there are more papers than are kept. Reads no more of the folder than that takes."""
    with os.scandir(births) as folders:
        return any(number >= KEPT for number, _ in enumerate(folders))


class Papers:
    """The papers of one birth, being written. Every method raises OSError when the disk refuses."""

    def __init__(self, births: str | os.PathLike[str], birth: BirthId) -> None:
        """Name the place; nothing is made yet. `births` is the installation's folder of papers."""
        # Text: what a Path touches in an interpreter, a keeper would no longer share with the others.
        self._folder = f"{os.fspath(births)}/{birth}"
        self.birth = birth

    @property
    def folder(self) -> Path:
        """The folder of this birth's papers."""
        from pathlib import Path

        return Path(self._folder)

    def intend(
        self,
        *,
        installation: InstallationId,
        kind: ChildKind,
        service: ServiceName,
        program: str,
        by: str,
        front: Identity | None = None,
    ) -> None:
        """Write down what is about to be spawned. Arguments are left out: they may hold secrets.

        Args:
            front: Who we are, for whoever asks later whether this birth is still answered for.

        Raises:
            FileExistsError: The birth has papers already.
        """
        os.mkdir(self._folder, mode=0o700)
        try:
            self._create(
                INTENT,
                {
                    "installation": installation,
                    "kind": kind.value,
                    "service": str(service),
                    "program": program,
                    "by": by,
                    "by_pid": os.getpid(),
                    "front": None if front is None else front.to_dict(),
                },
            )
        except OSError:
            # Without an intent the folder would say nothing, and nobody could tell when it is over.
            with suppress(OSError):
                os.rmdir(self._folder)
            raise

    def born(self, identity: Identity, *, keeper: Identity | None = None) -> None:
        """Write down who it became, and who stands by it where somebody does."""
        record: dict[str, object] = {"identity": identity.to_dict()}
        if keeper is not None:
            record["keeper"] = keeper.to_dict()
        self._create(IDENTITY, record)

    def never_born(self, why: str) -> None:
        """Write down that the spawn failed, so that nobody looks for it."""
        self._create(EXIT, {"exit": ExitStatus().to_dict(), "why": why, "born": False, "survivors": []})

    def ended(
        self,
        status: ExitStatus,
        *,
        why: str,
        survivors: list[int],
        exited_at: float | None = None,
        receipt: dict[str, object] | None = None,
        by: str | None = None,
    ) -> None:
        """Write down how it ended, and which of its processes were still there when we gave up on them.

        Args:
            status: How the leader ended.
            why: What ended it, for people.
            survivors: Pids.
            exited_at: When the leader ended, in seconds since 1970; None: not seen.
            receipt: What was done to each member, as values; None: nobody was signalled.
            by: Who writes this, where it is not whoever spawned.

        Raises:
            FileExistsError: It has been written down already; the first record stands.
        """
        record: dict[str, object] = {
            "exit": status.to_dict(),
            "why": why,
            "born": True,
            "survivors": survivors,
        }
        more = {"exited_at": exited_at, "receipt": receipt, "by": by}
        self._create(EXIT, record | {name: value for name, value in more.items() if value is not None})

    def _create(self, name: str, record: dict[str, object]) -> None:
        """Write the file whole or not at all: under another name first, then linked, which refuses to replace."""
        record = {"version": VERSION, "birth": self.birth, "at": round(time.time(), 3), **record}
        draft = f"{self._folder}/.{name}.{os.getpid()}"
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                text = json.dumps(record, ensure_ascii=True).encode() + b"\n"
                # The end of the disk, of a quota or of RLIMIT_FSIZE cuts a write short before it refuses one.
                if os.write(fd, text) != len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(fd)
            os.link(draft, f"{self._folder}/{name}")
        finally:
            os.unlink(draft)


def exit_of(births: str | os.PathLike[str], birth: str) -> ExitStatus | None:
    """Return how a birth ended, as its exit record says; None when there is none that can be read."""
    try:
        with open(f"{os.fspath(births)}/{birth}/{EXIT}", "rb") as file:
            record = json.loads(file.read())["exit"]
        return ExitStatus(record["code"], record["signal"], record["core_dumped"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
