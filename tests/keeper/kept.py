"""A nursery of the test's own, and puppets under its keepers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from birthmark.children.command import Command, Session, mark_child, new_birth
from birthmark.children.installation import Installation, open_installation
from birthmark.core.markers import ChildKind
from birthmark.core.service import BirthId, ServiceName
from birthmark.errors import WorkerLost
from birthmark.keeper.owner import Kept, Nursery
from tests.keeper.stage import kill, pin

PRELUDE: Final = """\
import json, os, signal, sys, time
def say(word): os.write(1, json.dumps(word).encode() + b"\\n")
DEAF = lambda: [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
def stay():
    while True: signal.pause()
def daemon():
    if os.fork() == 0:
        os.setsid()
        DEAF()  # before anybody else can go on, and end, and have us asked to
        if os.fork(): os._exit(0)
        say(os.getpid()); stay()
    os.wait()
"""


class Lifeline:
    """What a set writes to: words, one a line, and end-of-file once the last of it has gone."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self._had = b""

    def hear(self, within_s: float = 20.0) -> Any:
        """Return the next word."""
        import json

        while b"\n" not in self._had:
            part = self._read(within_s)
            assert part, "the set has ended without a word"
            self._had += part
        line, _, self._had = self._had.partition(b"\n")
        return json.loads(line)

    def wait_end(self, within_s: float = 20.0) -> None:
        """Wait until nobody is left who holds it."""
        while self._read(within_s):
            pass

    def _read(self, within_s: float) -> bytes:
        import select

        assert select.select([self.reading], [], [], within_s)[0], "nothing is heard, and not the end"
        return os.read(self.reading, 4096)


class Yard:
    """An installation with a nursery, and whatever was born there."""

    def __init__(self, folder: Path) -> None:
        self.installation: Installation = open_installation(folder)
        self.nursery = self.open_nursery()
        self._nurseries = [self.nursery]
        self._kept: list[Kept] = []
        self._lines: list[Lifeline] = []
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)

    def open_nursery(self) -> Nursery:
        """Start a nursery; the first is closed with the yard."""
        return Nursery(run=self.installation.run, births=self.installation.births)

    def bear(
        self,
        script: str,
        *,
        birth: BirthId | None = None,
        words: tuple[str, ...] | None = None,
        **options: Any,
    ) -> tuple[Kept, Lifeline]:
        """Have a Python script born under a keeper, or `words` as they are."""
        birth = new_birth() if birth is None else birth
        line = Lifeline()
        self._lines.append(line)
        program = (sys.executable, "-I", "-S", "-c", PRELUDE + script) if words is None else words
        command = mark_child(
            Command(*program, session=Session.NEW_SESSION),
            ChildKind.MCP,
            "kept",
            installation=self.installation.id,
            birth=birth,
        )
        try:
            kept = self.nursery.bear(
                command.to_launch([(self._null, 0), (line.writing, 1), (self._null, 2)]),
                birth=birth,
                installation=self.installation.id,
                kind=ChildKind.MCP,
                service=ServiceName("kept"),
                **options,
            )
        finally:
            os.close(line.writing)
            line.writing = -1
        self._kept.append(kept)
        return kept, line

    def adopt(self, kept: Kept) -> Kept:
        """Have a connection closed with the yard."""
        self._kept.append(kept)
        return kept

    def log(self) -> str:
        """Return what nursery and keepers had to complain about."""
        return (self.installation.run / "nursery.log").read_text()

    def close(self) -> None:
        """End what is left: keepers by force, then the nursery."""
        try:
            for kept in self._kept:
                if kept.ended is None and kept.fileno() != -1:
                    try:
                        kept.stop(asked_by="the end of a test", force=True)
                    except (WorkerLost, TimeoutError):
                        pass
                kept.close()
            if not self.nursery.close(10.0):
                nursery = pin(self.nursery.pid)
                if nursery is not None:
                    kill(nursery)
                    nursery.close()
                raise AssertionError("the nursery outlives its last keeper")
        finally:
            for line in self._lines:
                os.close(line.reading)
            os.close(self._null)


@contextmanager
def yard(folder: Path) -> Iterator[Yard]:
    """Open a yard, and close it."""
    found = Yard(folder)
    try:
        yield found
    finally:
        found.close()


def until(condition: Callable[[], bool], what: str, within_s: float = 10.0) -> None:
    """Wait for something that no descriptor tells: a file, a state in procfs."""
    import time

    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"never {what}"
        time.sleep(0.002)
