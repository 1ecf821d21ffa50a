"""Start one program: what is asked, and the two ways to do it.

`native_launch` is a native thread that forks without copying memory and without running Python between
fork and exec. `pure_launch` starts a bare interpreter that becomes the program; it needs no compiler and
is slower. Both keep the same promises and pass the same tests. Nothing is resolved here: the caller has
searched the PATH, opened the descriptors and written the environment.
"""

from __future__ import annotations

import os
import sys
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Final, Protocol

from birthmark.core.records import dataclass

KEEP_HARD: Final = -2
"""As the hard value of a limit: leave it alone, set the soft one, and go on if that cannot be done."""

INFINITY: Final = -1
"""As a value of a limit: none."""

REAP_WITHIN_S: Final = 2.0
"""How long we stand by a child that was sent SIGKILL, before a thread goes on waiting for us."""


class Session(IntEnum):
    """Where in the kernel's job control the child starts."""

    INHERIT = 0
    NEW_GROUP = 1
    NEW_SESSION = 2


class Step(StrEnum):
    """What had been tried when a launch failed, in the order in which it is done."""

    SPAWN = "spawn"
    """No process came to be: limits of the host, memory, threads, descriptors."""
    LOCK = "lock"
    """Another copy of the service holds its lock. Only where a keeper was asked for one."""
    SESSION = "session"
    DESCRIPTORS = "descriptors"
    LIMITS = "limits"
    CREDENTIALS = "credentials"
    CWD = "cwd"
    PARENT = "parent"
    """Parent death could not be armed, or the parent was gone already."""
    EXEC = "exec"


class LaunchFailed(Exception):
    """The program never ran, and no process is left of it; `errno` says why, `step` at what."""

    def __init__(self, errno: int, step: str) -> None:
        super().__init__(errno, step)
        self.errno, self.step = errno, Step(step)

    def __str__(self) -> str:
        return f"{self.step}: {os.strerror(self.errno)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One program to start, as the kernel takes it. None means: as in the parent.

    Raises:
        ValueError: It cannot be asked of a kernel: a NUL, an entry without a name, a descriptor named
            twice, or one of 0, 1 and 2 missing.
    """

    path: bytes
    """The executable file, absolute."""
    argv: tuple[bytes, ...]
    """With argv[0], which is not empty."""
    env: tuple[bytes, ...]
    """`NAME=value`, in the order the child shall see them; no name twice."""
    cwd: bytes | None = None
    """Entered with the child's credentials."""
    descriptors: tuple[tuple[int, int], ...] = ()
    """(ours, its number in the child); 0, 1 and 2 among the latter. Everything else is closed."""
    parent_death: int | None = 15
    """The signal the child gets when this process ends, however it ends; None: not armed."""
    session: Session = Session.INHERIT
    umask: int | None = None
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None
    limits: tuple[tuple[int, int, int], ...] = ()
    """(resource, soft, hard); see `KEEP_HARD` and `INFINITY`."""
    distinct: bool = False
    """The caller made `env` from a mapping: every entry has a name, and none stands twice. It is not looked at again."""

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise ValueError("argv[0] is missing or empty")
        if not self.path.startswith(b"/"):
            raise ValueError(f"not an absolute path: {self.path!r}")
        texts = (self.path, self.cwd or b"", *self.argv, *self.env)
        if b"\0" in b"".join(texts):
            culprit = next(text for text in texts if b"\0" in text)
            raise ValueError(f"a NUL in {culprit!r}")
        if not self.distinct:
            self._require_distinct()
        targets = [theirs for _, theirs in self.descriptors]
        if len(set(targets)) != len(targets) or not {0, 1, 2}.issubset(targets) or min(targets) < 0:
            raise ValueError(f"not 0, 1, 2 and others, each once: {targets}")

    def _require_distinct(self) -> None:
        # All entries at once; which of them is wrong is asked only when one is.
        names = {entry.partition(b"=")[0] for entry in self.env if b"=" in entry}
        if len(names) != len(self.env) or b"" in names:
            raise ValueError(f"not an environment entry with a name of its own: {_nameless(self.env)!r}")


def _nameless(env: tuple[bytes, ...]) -> bytes:
    """Return the first entry that has no name, or the name of one before it."""
    names: set[bytes] = set()
    for entry in env:
        name, equals, _ = entry.partition(b"=")
        if not name or not equals or name in names:
            return entry
        names.add(name)
    raise AssertionError(env)


Born = tuple[int, int | None]
"""The pid of our unreaped child and a pidfd that the caller owns; None where the kernel has no pidfd."""


class Way(Protocol):
    """One implementation of `launch`."""

    def __call__(self, request: Launch) -> Born: ...


def launch(request: Launch) -> Born:
    """Start the program; return once its exec has succeeded.

    The child is ours to reap and outlives the calling thread. With `parent_death` it gets that signal
    when this process ends, from its first instruction on. No signal mask, ignored signal or undeclared
    descriptor of ours reaches it. An exception from a signal handler while we wait leaves no child.
    May be called from any thread, several at once, and after os.fork().

    Returns:
        The pid, and a pidfd opened before the number could be given away.

    Raises:
        LaunchFailed: It never ran; nothing is left of it.
    """
    return _way()[0](request)


def why_pure() -> str | None:
    """Return why launches take the slower, pure path; None when they take the native one."""
    return _way()[1]


@lru_cache(maxsize=1)
def _way() -> tuple[Way, str | None]:
    """Choose the path, once: BIRTHMARK_NATIVE=0 in our environment turns the native one off."""
    if sys.platform == "win32":
        from birthmark.errors import Unsupported

        raise Unsupported("starting a program", "Windows")
    if sys.platform != "linux":
        reason = "the native spawner is for Linux only"
    elif os.environ.get("BIRTHMARK_NATIVE") == "0":
        reason = "turned off by BIRTHMARK_NATIVE=0"
    else:
        try:
            from birthmark.platforms import native_launch
        except ImportError as err:
            reason = f"the native spawner is not built for this interpreter: {err}"
        else:
            return native_launch.launch, None
    from birthmark.platforms import pure_launch

    return pure_launch.launch, reason


def end_unclaimed(pid: int, pidfd: int | None) -> None:
    """End and reap a child of ours that was reported to nobody. Owns the descriptor.

    Waits for at most `REAP_WITHIN_S`: a process that SIGKILL cannot reach yet (in a system call on a dead
    file system) is left to a thread.
    """
    if sys.platform != "win32":  # where nothing is launched this way
        import signal

        # Late: what it does in every fork of a process that has it loaded costs half a megabyte there.
        import threading

        from birthmark.core.outcomes import Basis, Warrant
        from birthmark.errors import SupervisionError
        from birthmark.platforms import load
        from birthmark.platforms.contract import Pinned
        from birthmark.platforms.posix import deliver

        ticks = load().start_ticks_of(pid) if pidfd is None else 0
        with Pinned(pid, pidfd, ticks or 0) as pinned:
            try:
                deliver(
                    pinned, signal.SIGKILL, Warrant(basis=Basis.CHILD, asked_by="a launch nobody waits for")
                )
            except SupervisionError:
                # Whoever may not be signalled (it took other credentials) got end-of-file or a parent check
                # instead, or is ended by parent death; it is reaped all the same.
                pass
            waiter = threading.Thread(target=reap, args=(pid,), name="subprocess-reaper", daemon=True)
            waiter.start()
            waiter.join(REAP_WITHIN_S)


def reap(pid: int) -> None:
    """Wait for the end of a child of ours and give its number back."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass  # somebody's SIGCHLD is ignored, or their waitpid(-1) was faster
