"""Real children for the tests of launching, and host processes of their own for what a test process must not do to itself."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from birthmark.platforms import pure_launch
from birthmark.platforms.launch import Launch, Way

BOUND_S = 5.0

try:
    from birthmark.platforms import native_launch
except ImportError as err:
    native: Any = pytest.param(None, id="native", marks=pytest.mark.skip(reason=f"not built: {err}"))
else:
    native = pytest.param(native_launch.launch, id="native")

both_ways = pytest.mark.parametrize("way", [native, pytest.param(pure_launch.launch, id="pure")])


def name_of(way: Way) -> str:
    """Return the module that a host imports `launch` from."""
    return "pure_launch" if way is pure_launch.launch else "native_launch"


class Running:
    """A started child: its lifeline is the pipe at its number 1."""

    def __init__(self, pid: int, pidfd: int | None, stdin_fd: int, stdout_fd: int) -> None:
        self.pid, self.pidfd, self.stdin_fd, self.stdout_fd = pid, pidfd, stdin_fd, stdout_fd
        self.status: int | None = None

    def ask(self) -> None:
        """Prove that a `cat` lives: what goes in comes out."""
        os.write(self.stdin_fd, b"?")
        assert self._read() == b"?"

    def end_input(self) -> None:
        """Give it end-of-file."""
        if self.stdin_fd >= 0:
            os.close(self.stdin_fd)
        self.stdin_fd = -1

    def output(self) -> bytes:
        """Return all it writes, up to its end."""
        self.end_input()
        parts = []
        while part := self._read():
            parts.append(part)
        return b"".join(parts)

    def wait(self) -> int:
        """Return its exit code, or the signal that ended it, negative."""
        if self.status is None:
            if self.pidfd is not None:
                assert select.select([self.pidfd], [], [], BOUND_S)[0], "it does not end"
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def _read(self) -> bytes:
        assert select.select([self.stdout_fd], [], [], BOUND_S)[0], "it neither says anything nor ends"
        return os.read(self.stdout_fd, 1 << 20)


@contextmanager
def started(way: Way, *argv: bytes, **options: Any) -> Iterator[Running]:
    """Start `argv` between two pipes; `options` are `Launch`'s, `descriptors` come on top of 0, 1 and 2."""
    theirs_in, stdin_fd = os.pipe()
    stdout_fd, theirs_out = os.pipe()
    try:
        born = way(request(*argv, stdin_fd=theirs_in, stdout_fd=theirs_out, **options))
    except BaseException:
        for fd in (stdin_fd, stdout_fd):
            os.close(fd)
        raise
    finally:
        os.close(theirs_in)
        os.close(theirs_out)
    child = Running(*born, stdin_fd, stdout_fd)
    try:
        yield child
    finally:
        if child.status is None:
            os.kill(child.pid, signal.SIGKILL)  # not reaped yet: the number is its own
            child.wait()
        child.end_input()
        os.close(stdout_fd)
        if child.pidfd is not None:
            os.close(child.pidfd)


def request(*argv: bytes, stdin_fd: int = 0, stdout_fd: int = 1, **options: Any) -> Launch:
    """Return a launch of `argv` with an environment of one entry, unless `options` say otherwise."""
    asked = Launch(
        path=argv[0], argv=argv, env=(b"LC_ALL=C",), descriptors=((stdin_fd, 0), (stdout_fd, 1), (2, 2))
    )
    options["descriptors"] = options.get("whole", asked.descriptors + tuple(options.get("descriptors", ())))
    options.pop("whole", None)
    return replace(asked, **options)


def output_of(way: Way, *argv: bytes, **options: Any) -> bytes:
    """Run to the end, and return what it wrote; it must exit with 0."""
    with started(way, *argv, **options) as child:
        output = child.output()
        assert child.wait() == 0
    return output


def python(script: str) -> tuple[bytes, ...]:
    """Return the argv of a bare interpreter that runs `script`."""
    return (os.fsencode(sys.executable), b"-I", b"-S", b"-c", textwrap.dedent(script).encode())


PRELUDE = """
import ctypes, errno, os, random, select, signal, struct, sys, threading, time
from birthmark.platforms.launch import INFINITY, KEEP_HARD, Launch, LaunchFailed, Session, why_pure
from birthmark.platforms.{module} import launch

NULL = os.open(os.devnull, os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)

def start(*argv, out=NULL, into=NULL, **options):
    extra = tuple(options.pop("descriptors", ()))
    places = ((into, 0), (out, 1), (2, 2), *extra)
    return launch(Launch(path=argv[0], argv=argv, env=(b"LC_ALL=C",), descriptors=places, **options))

def run(*argv, **options):
    r, w = os.pipe()
    try:
        pid, pidfd = start(*argv, out=w, **options)
    finally:
        os.close(w)
    if pidfd is not None:
        os.close(pidfd)
    parts = []
    while part := os.read(r, 65536):
        parts.append(part)
    os.close(r)
    assert os.waitpid(pid, 0)[1] == 0
    return b"".join(parts)

def children():
    found = []
    for task in os.listdir("/proc/self/task"):
        found += map(int, open(f"/proc/self/task/{{task}}/children").read().split())
    return found

def become_ordinary():
    "Give up root for good. Another interpreter may be needed for what follows: ours may lie where root alone can go."
    import birthmark.platforms.linux, birthmark.platforms.posix, shutil, signal, resource
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    if not os.access(sys.executable, os.X_OK):
        sys.executable = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable

def forbid(*numbers, flags_of_clone=0, error=errno.ENOSYS):
    "Install a seccomp filter under which these system calls fail, and clone() with one of these flags."
    LOAD, EQUAL, ANY, RETURN = 0x20, 0x15, 0x45, 0x06
    rules = [(LOAD, 0, 0, 0)]
    for number in numbers:
        rules += [(EQUAL, 0, 1, number), (RETURN, 0, 0, 0x50000 | error)]
    if flags_of_clone:
        clone = {{"x86_64": 56, "aarch64": 220}}[os.uname().machine]
        rules += [(EQUAL, 0, 3, clone), (LOAD, 0, 0, 16), (ANY, 0, 1, flags_of_clone), (RETURN, 0, 0, 0x50000 | errno.EINVAL)]
    rules += [(RETURN, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = struct.pack("HL", len(rules), ctypes.addressof(code))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0) == 0, ctypes.get_errno()
"""


@contextmanager
def host(way: Way, script: str, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run `script` in a process of its own that can `start` and `run` programs on the same way."""
    source = PRELUDE.format(module=name_of(way)) + textwrap.dedent(script)
    options.setdefault("stdin", subprocess.PIPE)
    process = subprocess.Popen(
        [sys.executable, "-c", source, *arguments], stdout=subprocess.PIPE, start_new_session=True, **options
    )
    try:
        yield process
    finally:
        if process.returncode is None:  # not reaped: the number is its own
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdin is not None and process.stdin.closed:
            process.stdin = None
        process.communicate(timeout=BOUND_S)


def told_by_host(way: Way, script: str, *arguments: str, within_s: float = BOUND_S, **options: Any) -> str:
    """Run `script` in a process of its own, to a good end, and return what it printed."""
    with host(way, script, *arguments, **options) as process:
        output, _ = process.communicate(timeout=within_s)
        assert process.returncode == 0
    return output.decode()


def ends_within(fd: int, within_s: float = BOUND_S) -> bool:
    """Say whether end-of-file arrives on a lifeline. Owns nothing."""
    while select.select([fd], [], [], within_s)[0]:
        if not os.read(fd, 4096):
            return True
    return False


def lines(output: bytes | str) -> Sequence[str]:
    """Return a child's words, line by line."""
    return (output.decode() if isinstance(output, bytes) else output).splitlines()
