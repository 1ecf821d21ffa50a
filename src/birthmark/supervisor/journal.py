"""A service's log: timestamped lines, appended, rotated by size, pruned by age and total."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

from birthmark.config.model import LogPolicy
from birthmark.core.service import ServiceName

LINE_BYTES: Final = 64 * 1024
"""A line longer than this is cut, so that a child that never ends a line costs no memory."""

_NAME_BYTES: Final = 200
NOTICE: Final = "birthmark"
"""The stream of lines that we write ourselves, beside ``stdout`` and ``stderr``."""


def log_path(logs: Path, service: ServiceName | str) -> Path:
    """Return the file of a service's newest log lines; ``.1`` to ``.N`` behind it are older.

    The name is percent-encoded. One too long for a file system is cut, and told apart by a hash.
    """
    name = quote(service, safe=" ")
    if len(name) > _NAME_BYTES:
        digest = hashlib.sha256(service.encode()).hexdigest()[:16]
        name = f"{name[:_NAME_BYTES].rsplit('%', 1)[0]}~{digest}"
    # A name of dots alone, or one that begins with one, would be hidden or the folder itself.
    if name.startswith("."):
        name = "%2E" + name[1:]
    return logs / f"{name}.log"


class Journal:
    """Appends to one service's log. May be written from any thread; lines stay whole.

    A full disk or a file that cannot be written loses lines, counted in `lost_lines`, and never
    holds up the child.
    """

    def __init__(
        self, path: Path, policy: LogPolicy, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.path = path
        self.lost_lines = 0
        self._policy = policy
        self._now = now
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._size = 0

    def write(self, stream: str, lines: list[bytes]) -> None:
        """Append lines (without their ends) with a timestamp and the stream's name."""
        if not lines:
            return
        stamp = self._now().astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        head = f"{stamp} {stream} ".encode()
        block = b"".join(head + line + b"\n" for line in lines)
        with self._lock:
            try:
                self._append(block)
            except OSError:
                self.lost_lines += len(lines)

    def notice(self, text: str) -> None:
        """Append a line of our own."""
        self.write(NOTICE, [text.encode("utf-8", "backslashreplace")])

    def close(self) -> None:
        """Close the file; a later line opens it again. Closing twice is harmless."""
        with self._lock:
            self._close()

    def _append(self, block: bytes) -> None:
        if self._fd is None:
            self._open()
        if self._size and self._size + len(block) > self._policy.file_bytes:
            self._rotate()
        assert self._fd is not None
        left = memoryview(block)
        while left:
            written = os.write(self._fd, left)
            self._size += written
            left = left[written:]

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        self._fd = os.open(self.path, flags, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _rotate(self) -> None:
        self._close()
        for number in range(self._policy.files - 1, 0, -1):
            newer = self._older(number - 1)
            if newer.exists():
                newer.replace(self._older(number))
        if self._policy.files == 1:
            self.path.unlink(missing_ok=True)
        self._prune()
        self._open()

    def _prune(self) -> None:
        """Remove the oldest files beyond the policy's age and total."""
        total = 0
        for number in range(1, self._policy.files):
            file = self._older(number)
            try:
                found = file.stat()
            except FileNotFoundError:
                continue
            total += found.st_size
            too_old = time.time() - found.st_mtime > self._policy.age_s
            if too_old or total + self._policy.file_bytes > self._policy.total_bytes:
                file.unlink(missing_ok=True)

    def _older(self, number: int) -> Path:
        return self.path if number == 0 else self.path.with_name(f"{self.path.name}.{number}")


class LineSink:
    """Cuts one stream into lines for a journal. Fed by one thread."""

    def __init__(
        self, journal: Journal, stream: str, *, watch: Callable[[bytes], object] | None = None
    ) -> None:
        """Make a sink; `watch` sees each line before it is written, on the feeding thread."""
        self._journal, self._stream, self._watch = journal, stream, watch
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take bytes in."""
        *lines, rest = (self._rest + data).split(b"\n")
        while len(rest) > LINE_BYTES:
            lines.append(rest[:LINE_BYTES])
            rest = rest[LINE_BYTES:]
        self._rest = rest
        self._give([line.removesuffix(b"\r") for line in lines])

    def end(self) -> None:
        """Give out what has no line's end."""
        rest, self._rest = self._rest, b""
        if rest:
            self._give([rest])

    def _give(self, lines: list[bytes]) -> None:
        if self._watch is not None:
            for line in lines:
                self._watch(line)
        self._journal.write(self._stream, lines)


class CountSink:
    """Counts a stream's bytes and forgets them."""

    def __init__(self) -> None:
        self.total_bytes = 0

    def feed(self, data: bytes) -> None:
        """Take bytes in."""
        self.total_bytes += len(data)

    def end(self) -> None:
        """Nothing is left over when nothing was kept."""
