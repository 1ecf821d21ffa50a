"""Signals the client had us ignore (``nohup``, a background job of a script) stay ignored in the command."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Final

# A launch gives every signal its default. This stands in between for one exec and puts back what was ignored;
# environment and arguments pass through as bytes.
_SOURCE: Final = """\
import errno, os, signal, sys
numbers, path, *argv = map(os.fsencode, sys.argv[1:])
for number in numbers.split(b","):
    signal.signal(int(number), signal.SIG_IGN)
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
with open("/proc/self/environ", "rb") as file:
    entries = [entry.partition(b"=") for entry in file.read().split(b"\\0") if entry]
environ = {name: value for name, _, value in entries}
try:
    try:
        os.execve(path, argv, environ)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        os.execve(b"/bin/sh", [b"/bin/sh", path, *argv[1:]], environ)
except OSError as error:
    os.write(2, b"birthmark run: " + path + b": " + os.strerror(error.errno).encode() + b"\\n")
    os._exit(127 if isinstance(error, FileNotFoundError) else 126)
"""


def starts_ignoring(
    signals: Iterable[int], path: bytes, argv: tuple[bytes, ...]
) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the program and arguments that run `path` with these signals ignored.

    Platform: Linux.
    """
    python = os.fsencode(sys.executable)
    numbers = ",".join(map(str, sorted(signals))).encode()
    return python, (python, b"-I", b"-S", b"-c", _SOURCE.encode(), numbers, path, *argv)
