"""The audit's way into the registry: queued by whoever signals, written by a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from birthmark.core.outcomes import SignalRecord
from birthmark.errors import RegistryError
from birthmark.platforms.contract import add_audit_sink
from birthmark.registry.contract import Registry

_BATCH: Final = 500
_JOIN_S: Final = 10.0

Line = tuple[datetime, Mapping[str, object]]


class AuditTrail:
    """Writes every signal sent or refused in this process down, and what else is given to it.

    Signalling never waits for the database. What cannot be written is counted in `lost`, and
    `say` is told once. Close it last: only then are all lines on disk.
    """

    def __init__(self, registry: Registry, *, say: Callable[[str], None]) -> None:
        self.lost = 0
        self._registry = registry
        self._say = say
        self._queue: queue.SimpleQueue[Line | threading.Event | None] = queue.SimpleQueue()
        self._remove = add_audit_sink(self._on_signal)
        self._thread = threading.Thread(target=self._run, name="birthmark-audit", daemon=True)
        self._thread.start()

    def note(self, entry: Mapping[str, object]) -> None:
        """Append a line of our own: a decision, with its reason. Returns at once."""
        self._queue.put((datetime.now(UTC), entry))

    def flush(self, timeout_s: float = _JOIN_S) -> bool:
        """Wait until everything given so far has been written (or was lost); False when it took too long."""
        done = threading.Event()
        self._queue.put(done)
        return done.wait(timeout_s)

    def close(self) -> None:
        """Write what is left and end the thread. Closing twice is harmless."""
        self._remove()
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(_JOIN_S)

    def _on_signal(self, record: SignalRecord) -> None:
        self.note(record.to_dict())

    def _run(self) -> None:
        closing = False
        while not closing:
            lines: list[Line] = []
            flushed: list[threading.Event] = []
            item = self._queue.get()
            while True:
                if item is None:
                    closing = True
                elif isinstance(item, threading.Event):
                    flushed.append(item)
                else:
                    lines.append(item)
                if closing or len(lines) >= _BATCH:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            self._write(lines)
            for event in flushed:
                event.set()

    def _write(self, lines: list[Line]) -> None:
        if not lines:
            return
        try:
            self._registry.append_audit(lines)
        except RegistryError as err:
            if self.lost == 0:
                self._say(f"the audit cannot be written: {err}")
            self.lost += len(lines)
