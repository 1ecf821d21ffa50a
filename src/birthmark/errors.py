"""What can go wrong, as a family.

SupervisionError
├── ProcessGone              it has ended
├── IdentityMismatch         somebody else has that pid, or we could not prove it is not so
├── NotPermitted             it exists, and we may not touch it
├── NotSignalable            it is never signalled: pid 0, ourselves, an ancestor, our own group
├── SignalFailed             the kernel refused a signal for a reason we have no word for
├── SpawnFailed              it never ran; carries the errno and the step
├── SpawnerClosed            the spawner was asked after its end
├── ChildrenAlive            a spawner was closed without a word about its living children
├── StopTimedOut             survivors after the last rung
├── LookFailed               could not look; never to be read as *nobody*
├── Unsupported              this platform has no such thing
├── WorkerLost               a worker that had to answer is gone
├── PortHeld                 a stranger holds the listener; carries the holders
├── GaveUp                   restart intensity exceeded; carries the last exits
├── ConfigError              a configuration that cannot be used: file, line, key, way out
├── NotTrusted               a project's file starts nothing before it is trusted
├── NotConfirmed             nobody said yes to a change of a file
├── NotReplaced              a file could not be given its new content, and is as it was
├── InstallationLocked       another supervisor runs this installation
├── InstallationBroken       the state folder or its id cannot be used
├── SupervisorUnreachable    no supervisor answers on the socket
├── UnknownService           no service has that name
└── RegistryError ── RegistryUnavailable, RecordConflict, RecordUndecodable

Evidence is attributes, and the message is rendered from them; the arguments are the constructor's, so that each can be pickled.
"""

from __future__ import annotations

import errno as errno_names
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from birthmark.core.identity import Proof
    from birthmark.core.outcomes import Receipt


class SupervisionError(Exception):
    """Everything birthmark raises for a reason outside the caller's code."""

    def _render(self) -> str:
        return super().__str__()

    def __str__(self) -> str:
        return self._render()


def errno_words(number: int | None) -> str:
    """Return an errno as a person reads it: its text and its name."""
    if number is None:
        return "no reason given"
    name = errno_names.errorcode.get(number, str(number))
    return f"{os.strerror(number)} [{name}]"


class ProcessGone(SupervisionError):
    """Nothing lives under that pid any more. Its neighbour `IdentityMismatch`: somebody else does."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.pid = pid

    def _render(self) -> str:
        return f"process {self.pid} is gone"


class IdentityMismatch(SupervisionError):
    """The live process is not, or not provably, the one recorded; `proof` says why."""

    def __init__(self, proof: Proof) -> None:
        super().__init__(proof)
        self.proof = proof

    def _render(self) -> str:
        return f"process {self.proof.pid} is not proven to be the one recorded: {self.proof}"


class NotPermitted(SupervisionError):
    """The process exists, and the kernel does not let us do that to it."""

    def __init__(self, pid: int, operation: str, errno: int | None = None) -> None:
        super().__init__(pid, operation, errno)
        self.pid, self.operation, self.errno = pid, operation, errno

    def _render(self) -> str:
        return f"not permitted to {self.operation} process {self.pid}: {errno_words(self.errno)}"


class NotSignalable(SupervisionError):
    """That process is never signalled, whoever asks; `reason` says which rule holds."""

    def __init__(self, pid: int, reason: str) -> None:
        super().__init__(pid, reason)
        self.pid, self.reason = pid, reason

    def _render(self) -> str:
        return f"process {self.pid} is never signalled: {self.reason}"


class SignalFailed(SupervisionError):
    """A signal could not be sent, for an errno that is neither *gone* nor *not permitted*."""

    def __init__(self, pid: int, signal: str, errno: int) -> None:
        super().__init__(pid, signal, errno)
        self.pid, self.signal, self.errno = pid, signal, errno

    def _render(self) -> str:
        return f"could not send {self.signal} to process {self.pid}: {errno_words(self.errno)}"


class SpawnFailed(SupervisionError):
    """The program never ran.

    `step` names what failed ("exec", "cwd", "credentials", …), `errno` why, and `searched`
    the PATH that was searched, when it was a search that failed.
    """

    def __init__(
        self, program: str, errno: int | None, step: str, searched: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(program, errno, step, searched, hint)
        self.program, self.errno, self.step, self.searched, self.hint = program, errno, step, searched, hint

    def _render(self) -> str:
        text = f"could not start {self.program!r}: {self.step}: {errno_words(self.errno)}"
        if self.searched is not None:
            text += f"; searched PATH={self.searched}"
        return f"{text}; {self.hint}" if self.hint else text


class SpawnerClosed(SupervisionError):
    """The spawner was closed, or its process forked; make a new one."""

    def _render(self) -> str:
        return "the spawner is closed and starts nothing any more"


class ChildrenAlive(SupervisionError):
    """A spawner was closed while children live, without a word about what becomes of them."""

    def __init__(self, pids: Sequence[int]) -> None:
        super().__init__(pids)
        self.pids = tuple(pids)

    def _render(self) -> str:
        listed = ", ".join(map(str, self.pids))
        return f'children still live ({listed}): say close(children="stop") or close(children="leave")'


class StopTimedOut(SupervisionError):
    """Something still lives after the last rung; `survivors` are its pids, `tried` what was sent."""

    def __init__(
        self, pid: int, survivors: Sequence[int], tried: str, receipt: Receipt | None = None
    ) -> None:
        super().__init__(pid, survivors, tried, receipt)
        self.pid, self.survivors, self.tried, self.receipt = pid, tuple(survivors), tried, receipt

    def _render(self) -> str:
        listed = ", ".join(map(str, self.survivors))
        return f"process {self.pid}: still alive after {self.tried}: {listed}"


class LookFailed(SupervisionError):
    """We could not look. It never means that nobody is there."""

    def __init__(self, subject: str, cause: str) -> None:
        super().__init__(subject, cause)
        self.subject, self.cause = subject, cause

    def _render(self) -> str:
        return f"could not look at {self.subject}: {self.cause}"


class Unsupported(SupervisionError):
    """This platform has no such thing."""

    def __init__(self, operation: str, platform: str) -> None:
        super().__init__(operation, platform)
        self.operation, self.platform = operation, platform

    def _render(self) -> str:
        return f"{self.operation} is not supported on {self.platform}"


class WorkerLost(SupervisionError):
    """The thread or process that had to answer is gone."""

    def __init__(self, worker: str) -> None:
        super().__init__(worker)
        self.worker = worker

    def _render(self) -> str:
        return f"{self.worker} ended without an answer"


class PortHeld(SupervisionError):
    """Somebody who is not provably ours listens on the port. `holders` are their words, one each."""

    def __init__(self, port: int, holders: Sequence[str]) -> None:
        super().__init__(port, holders)
        self.port, self.holders = port, tuple(holders)

    def _render(self) -> str:
        listed = "; ".join(self.holders) or "a process we may not see"
        return f"port {self.port} is held by {listed}. It was left alone: end it yourself, or choose another port"


class GaveUp(SupervisionError):
    """More restarts than the policy allows; `exits` are the last ones, oldest first."""

    def __init__(self, service: str, restarts: int, within_s: float, exits: Sequence[str]) -> None:
        super().__init__(service, restarts, within_s, exits)
        self.service, self.restarts, self.within_s, self.exits = service, restarts, within_s, tuple(exits)

    def _render(self) -> str:
        listed = "; ".join(self.exits) or "none recorded"
        return f"{self.service}: gave up after {self.restarts} restarts in {self.within_s:g} s; last exits: {listed}"


class ConfigError(SupervisionError):
    """A configuration that cannot be used.

    `source` is the file (or what else it came from), `line` counts from 1 (None: not known),
    `key` is the path to the value as a person writes it, `hint` the way out.
    """

    def __init__(
        self,
        source: str,
        problem: str,
        line: int | None = None,
        key: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(source, problem, line, key, hint)
        self.source, self.problem, self.line, self.key, self.hint = source, problem, line, key, hint

    def _render(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        what = f"{self.key}: {self.problem}" if self.key else self.problem
        return f"{where}: {what}" + (f". {self.hint}" if self.hint else "")


class NotTrusted(SupervisionError):
    """A project's file starts nothing before somebody has looked at it."""

    def __init__(self, source: str, commands: Sequence[str]) -> None:
        super().__init__(source, commands)
        self.source, self.commands = source, tuple(commands)

    def _render(self) -> str:
        listed = "".join(f"\n    {command}" for command in self.commands)
        return (
            f"{self.source} lies in a project and is not trusted yet; it would start:{listed}\n"
            f"Read it, then say: birthmark up -f {self.source} --trust"
        )


class NotConfirmed(SupervisionError):
    """A file is changed only when somebody says yes; `reason` says why nobody did, or why yes has to be said aloud."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def _render(self) -> str:
        return f"{self.path}: {self.reason}; nothing was changed"


class NotReplaced(SupervisionError):
    """A file could not be given its new content, and is as it was; `problem` says why."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def _render(self) -> str:
        return f"{self.path}: {self.problem}; nothing was changed"


class InstallationLocked(SupervisionError):
    """Another supervisor runs this installation."""

    def __init__(self, home: str, pid: int | None) -> None:
        super().__init__(home, pid)
        self.home, self.pid = home, pid

    def _render(self) -> str:
        who = "another supervisor" if self.pid is None else f"the supervisor with pid {self.pid}"
        return (
            f"{who} already runs the installation in {self.home}; "
            "use `birthmark ps`, or give this one a folder of its own with BIRTHMARK_HOME"
        )


class InstallationBroken(SupervisionError):
    """The state folder, or the id in it, cannot be used."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def _render(self) -> str:
        return f"{self.path}: {self.problem}"


class SupervisorUnreachable(SupervisionError):
    """No supervisor answers on the socket; `problem` says what was tried."""

    def __init__(self, socket_path: str, problem: str) -> None:
        super().__init__(socket_path, problem)
        self.socket_path, self.problem = socket_path, problem

    def _render(self) -> str:
        return f"no supervisor answers on {self.socket_path}: {self.problem}. Start one with `birthmark up`"


class UnknownService(SupervisionError):
    """No service has that name; `known` are those there are."""

    def __init__(self, service: str, known: Sequence[str]) -> None:
        super().__init__(service, known)
        self.service, self.known = service, tuple(known)

    def _render(self) -> str:
        listed = ", ".join(self.known) or "none"
        return f"no service is called {str(self.service)!r}; there are: {listed}"


class RegistryError(SupervisionError):
    """What we wrote down cannot be read or written."""


class RegistryUnavailable(RegistryError):
    """The registry cannot be opened, read or written now: locked, full, read-only, corrupt."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def _render(self) -> str:
        return f"the registry {self.path} cannot be used: {self.problem}"


class RecordConflict(RegistryError):
    """Somebody else wrote that record first, or holds a newer epoch."""

    def __init__(self, record: str, problem: str) -> None:
        super().__init__(record, problem)
        self.record, self.problem = record, problem

    def _render(self) -> str:
        return f"{self.record}: {self.problem}"


class RecordUndecodable(RegistryError):
    """A record that cannot be decoded. It is named, never skipped."""

    def __init__(self, record: str, problem: str) -> None:
        super().__init__(record, problem)
        self.record, self.problem = record, problem

    def _render(self) -> str:
        return f"{self.record} cannot be decoded: {self.problem}"
