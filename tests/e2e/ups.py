"""A real `birthmark up` as a process of its own, with little real servers under it."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from birthmark.errors import ProcessGone
from birthmark.platforms import load

WITHIN_S = 20.0
"""How long an `up` may take for anything: two interpreters start, on a machine that runs tests beside it."""

WEB = """
import http.server, json, os, signal, sys

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"pid": os.getpid()}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, form, *values):
        print(form % values, flush=True)

print("web begins", file=sys.stderr, flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Page).serve_forever()
"""

STDIO = """
import sys
for line in sys.stdin:
    sys.stdout.write(line)
    sys.stdout.flush()
"""

DEAF = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    print("worker", os.getpid(), flush=True)
else:
    os.wait()
    print("leader", os.getpid(), flush=True)
while True:
    signal.pause()
"""


def free_port() -> int:
    """Return a port that nobody listened on a moment ago."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def write_services(folder: Path, services: Mapping[str, Mapping[str, object]]) -> Path:
    """Write a birthmark.toml; a service's `script` becomes a Python program, its `args` what that gets."""
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    for name, said in services.items():
        values = dict(said)
        table = values.pop("kind", "mcp")
        if "script" in values:
            script = folder / f"{len(lines)}.py"
            script.write_text(str(values.pop("script")))
            values["command"] = sys.executable
            args = values.pop("args", ())
            assert isinstance(args, list | tuple)
            values["args"] = [str(script), *args]
        lines.append(f"[{table}.{json.dumps(name)}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    file = folder / "birthmark.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


class Up:
    """A running `birthmark up --json`. `lines` are the words it said, `objects` what it told programs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.objects: list[dict[str, object]] = []
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        assert process.stdout is not None
        assert process.stderr is not None
        self._threads = [
            threading.Thread(target=self._read, args=(process.stderr, self.lines.append)),
            threading.Thread(target=self._read, args=(process.stdout, self._object)),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: IO[str], keep: object) -> None:
        assert callable(keep)
        for line in stream:
            keep(line.rstrip("\n"))
            self._news.put(None)
        self._news.put(None)

    def _object(self, line: str) -> None:
        self.objects.append(json.loads(line))

    def wait_line(self, words: str) -> str:
        """Wait until it has said a line with `words` in it, and return the line."""
        while True:
            for line in list(self.lines):
                if words in line:
                    return line
            if self.process.poll() is not None and not any(thread.is_alive() for thread in self._threads):
                raise AssertionError(f"up has ended without saying {words!r}: {self.lines}")
            try:
                self._news.get(timeout=WITHIN_S)
            except queue.Empty:
                raise AssertionError(f"up does not say {words!r}: {self.lines}") from None

    def signal(self, number: int) -> None:
        """Send it a signal: it is our child, and not reaped yet."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end; returns its exit code, minus the signal if one ended it."""
        code = self.process.wait(WITHIN_S)
        for thread in self._threads:
            thread.join(WITHIN_S)
        assert "Traceback" not in self.words, self.words
        assert "Warning" not in self.words, self.words
        return code

    @property
    def words(self) -> str:
        """All it said to people."""
        return "\n".join(self.lines)

    @property
    def receipts(self) -> list[dict[str, object]]:
        """The receipts of its end."""
        receipts = self.objects[-1]["receipts"]
        assert isinstance(receipts, list)
        return receipts


@contextmanager
def up(
    *words: str,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    under: Sequence[str] = (),
) -> Iterator[Up]:
    """Run `birthmark up --json WORDS` until the block ends; warnings are errors in it. `under` stands before it."""
    program = [*under, sys.executable, "-X", "dev", "-W", "error", "-m", "birthmark", "up", "--json", *words]
    process = subprocess.Popen(
        program,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **(environ or {})},
        start_new_session=True,
    )
    running = Up(process)
    try:
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
        for thread in running._threads:
            thread.join(WITHIN_S)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def wait_gone(pids: Sequence[int]) -> None:
    """Wait until none of them is there any more, or only as a zombie of somebody else's."""
    import select

    platform = load()
    for pid in pids:
        try:
            pinned = platform.pin(pid)
        except ProcessGone:
            continue
        with pinned:
            if pinned.fd is not None:
                assert select.select([pinned.fd], [], [], WITHIN_S)[0], f"process {pid} is still there"
