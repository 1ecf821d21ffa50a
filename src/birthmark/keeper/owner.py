"""The owner's end: whoever has children kept, a supervisor above all. Synchronous; every wait has a bound."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final

import birthmark
from birthmark.core.identity import Identity
from birthmark.core.markers import TAG_RESOURCE, ChildKind, tag_of
from birthmark.core.outcomes import ExitStatus
from birthmark.core.policies import DeathPolicy, StopPolicy
from birthmark.core.service import BirthId, InstallationId, ServiceName, birth_id
from birthmark.errors import ProcessGone, WorkerLost
from birthmark.keeper import protocol
from birthmark.keeper.order import pack, pack_death, pack_stop
from birthmark.keeper.papers import Papers
from birthmark.keeper.protocol import (
    Birth,
    Born,
    Dying,
    Ended,
    Exited,
    Hello,
    Lost,
    Message,
    NotBorn,
    Refused,
    Stop,
    Survived,
    Welcome,
)
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned
from birthmark.platforms.launch import KEEP_HARD, Launch, LaunchFailed, Session, launch
from birthmark.platforms.posix import peek, reap

assert sys.platform == "linux"

BORN_WITHIN_S: Final = 30.0
"""For the fork of a keeper and the exec of its child, on a machine on its knees or a slow file system."""

ANSWERS_WITHIN_S: Final = 5.0

_LOCK_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW

# Not `-m`: the nursery is to be of this very version, wherever it is installed, and without site's imports.
_SOURCE: Final = "import sys; sys.path.insert(0, sys.argv[1]); from birthmark.keeper.nursery import main; main(sys.argv[2:])"
# What decides whether an interpreter starts at all, and how a child is launched.
_PASSED_ON: Final = (b"LD_", b"GLIBC_TUNABLES", b"BIRTHMARK_NATIVE")


class Kept:
    """A child that a keeper stands by, and our connection to that keeper.

    Attributes:
        identity: Who the child is.
        keeper_identity: Who its keeper is.
        child: The child, pinned since its birth where the kernel has pidfds. It is the keeper's to reap.
        exited: How its leader ended; None while it lives, as far as we have read.
        ended: The keeper's last word; None before it.

    Closing the connection makes us vanish for the keeper: the death policy holds.
    """

    def __init__(self, connection: socket.socket, found: Born | Welcome, descriptors: list[int]) -> None:
        """Take over a connection, with what the keeper's first answer said and brought."""
        self._connection = connection
        self.identity = Identity.from_dict(found.identity)
        self.keeper_identity = Identity.from_dict(found.keeper)
        pidfd = descriptors.pop(0) if descriptors else None
        for fd in descriptors:
            os.close(fd)
        self.child = Pinned(self.identity.pid, pidfd, self.identity.start_ticks)
        self.proven = found.proven if isinstance(found, Born) else ""
        self.exited: Exited | None = None
        self.ended: Ended | None = None
        if isinstance(found, Welcome) and found.exited is not None:
            self.exited = Exited(*found.exited)

    @property
    def birth(self) -> BirthId:
        """The birth."""
        return birth_id(str(self.identity.birth))

    def fileno(self) -> int:
        """Return the descriptor that is readable when the keeper has something to say; ours."""
        return self._connection.fileno()

    def hear(self, timeout_s: float | None = 0.0) -> Message | None:
        """Return the keeper's next word, and remember ends; None when none came in time.

        Raises:
            WorkerLost: The keeper ended without its last word, or somebody of a higher epoch took over.
        """
        if not _readable(self._connection, timeout_s):
            return None
        try:
            found = protocol.receive(self._connection)
        except OSError:
            found = None
        if found is None:
            raise WorkerLost(f"the keeper of birth {self.identity.birth}")
        message, descriptors = found
        for fd in descriptors:
            os.close(fd)
        if isinstance(message, Exited):
            self.exited = message
        elif isinstance(message, Ended):
            self.ended = message
        return message

    def stop(
        self, *, asked_by: str, policy: StopPolicy | None = None, force: bool = False, timeout_s: float = 60.0
    ) -> Ended | Survived:
        """Have the whole set ended, and wait for the keeper's word about it.

        Returns:
            `Ended` when nothing is left; `Survived` when somebody is still there after KILL. The keeper then stays.

        Raises:
            WorkerLost: The keeper ended without its last word.
            TimeoutError: It has not said anything in time. It goes on all the same.
        """
        self.ask_to_stop(asked_by=asked_by, policy=policy, force=force)
        return self.wait_ended(timeout_s)

    def ask_to_stop(self, *, asked_by: str, policy: StopPolicy | None = None, force: bool = False) -> None:
        """Have the whole set ended; does not wait. Harmless when it is being ended already."""
        # A keeper that has gone says so when it is next heard.
        with suppress(OSError):
            protocol.send(
                self._connection, Stop(asked_by, None if policy is None else pack_stop(policy), force)
            )

    def set_death_policy(self, policy: DeathPolicy) -> None:
        """Say what shall happen when we vanish, from now on."""
        protocol.send(self._connection, Dying(pack_death(policy)))

    def wait_ended(self, timeout_s: float) -> Ended | Survived:
        """Wait for the keeper's word that the set is empty, or will not be.

        Raises:
            WorkerLost, TimeoutError: As `stop`.
        """
        deadline = time.monotonic() + timeout_s
        while self.ended is None:
            message = self.hear(max(0.0, deadline - time.monotonic()))
            if message is None:
                raise TimeoutError(
                    f"the keeper of birth {self.identity.birth} has not ended it in {timeout_s:g} s"
                )
            if isinstance(message, Survived):
                return message
        return self.ended

    def close(self) -> None:
        """Let go of the connection and of the child's pidfd."""
        self._connection.close()
        self.child.close()

    def __enter__(self) -> Kept:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(run: Path, birth: BirthId, *, epoch: int, control: bool = True) -> Kept:
    """Connect to a keeper of an earlier run, and take charge of its child with `control`.

    Nothing is proven by it but that our own user's keeper answers: prove the identity before you rely on it.

    Raises:
        ProcessGone: There is no such keeper any more (pid 0: its number is not known here).
        PermissionError: Somebody of a higher epoch controls; the message says so.
        WorkerLost: It ended without an answer, or gave none in time.
    """
    try:
        connection = protocol.connect(str(run), birth)
    except (FileNotFoundError, ConnectionRefusedError) as err:
        raise ProcessGone(0) from err
    try:
        protocol.send(connection, Hello(epoch, control))
        found = _first_word(connection, ANSWERS_WITHIN_S)
        if found is None:
            raise WorkerLost(f"the keeper of birth {birth}")
        message, descriptors = found
        if isinstance(message, Refused):
            raise PermissionError(message.why)
        if not isinstance(message, Welcome):
            raise WorkerLost(f"the keeper of birth {birth}")
        return Kept(connection, message, descriptors)
    except BaseException:
        connection.close()
        raise


class Nursery:
    """Our nursery: a child of ours that outlives us, as long as there are keepers.

    May be used from any thread.
    """

    def __init__(self, *, run: Path, births: Path) -> None:
        """Start it.

        Args:
            run: The folder of sockets, closed to others.
            births: The folder of papers.

        Raises:
            LaunchFailed: No interpreter could be started.
        """
        self._run, self._births = run, births
        self._lock = threading.Lock()
        self._channel, theirs = protocol.pair()
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        log = os.open(
            run / "nursery.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            python = os.fsencode(sys.executable)
            root = os.fsencode(Path(birthmark.__file__).parents[1])
            words = (b"-I", b"-S", b"-c", _SOURCE.encode(), root, b"3", str(os.getpid()).encode())
            pid, pidfd = launch(
                Launch(
                    path=python,
                    argv=(python, *words),
                    env=tuple(
                        name + b"=" + value
                        for name, value in os.environb.items()
                        if name.startswith(_PASSED_ON)
                    ),
                    descriptors=((null, 0), (null, 1), (log, 2), (theirs.fileno(), 3)),
                    parent_death=None,
                    session=Session.NEW_SESSION,
                )
            )
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()
            os.close(null)
            os.close(log)
        self.pinned = load().pin(pid) if pidfd is None else load().adopt_pidfd(pid, pidfd)

    @property
    def pid(self) -> int:
        """Its pid; it is our child, and unreaped until `close`."""
        return self.pinned.pid

    def fileno(self) -> int:
        """Return the descriptor that is readable when a keeper was lost, or the nursery is."""
        return self._channel.fileno()

    def is_alive(self) -> bool:
        """Say whether it has not ended."""
        return peek(self.pid) is None

    def bear(
        self,
        request: Launch,
        *,
        birth: BirthId,
        installation: InstallationId,
        kind: ChildKind,
        service: ServiceName,
        stop: StopPolicy | None = None,
        death: DeathPolicy | None = None,
        epoch: int = 0,
        by: str = "up",
        lock: Path | None = None,
        within_s: float = BORN_WITHIN_S,
    ) -> Kept:
        """Write the intent, have a keeper give birth to the child, and wait until its program runs.

        The request's mark is the caller's; its tag is set here, its parent death is SIGKILL by the keeper's end,
        and its descriptors stay the caller's.

        Args:
            lock: The service's lock file, made if it is not there. Held for as long as anything of the set is
                left, by keeper and nursery together; a second birth with it fails at the step `Step.LOCK`.

        Raises:
            LaunchFailed: It never ran, and nothing is left of it.
            WorkerLost: Nursery or keeper ended meanwhile. Whether it ran is not known: a living nursery records
                it, and otherwise a sweep for the birth has to tell.
            TimeoutError: The program does not run yet. Its keeper ends it when it does.
            FileExistsError: The birth has papers already.
            OSError: The intent cannot be written. Nothing was started.
        """
        packed, targets, descriptors = pack(request, limits=((TAG_RESOURCE, tag_of(birth), KEEP_HARD),))
        order = Birth(
            birth=birth,
            installation=installation,
            kind=kind.value,
            service=str(service),
            targets=targets,
            stop=pack_stop(StopPolicy() if stop is None else stop),
            death=pack_death(DeathPolicy() if death is None else death),
            epoch=epoch,
            run=str(self._run),
            births=str(self._births),
            lock="" if lock is None else str(lock),
        )
        papers = Papers(self._births, birth)
        papers.intend(
            installation=installation, kind=kind, service=service, program=os.fsdecode(request.path), by=by
        )
        try:
            ours = self._ask(order, packed, descriptors, lock, within_s)
        except BaseException as err:
            # It has gone nowhere, so nobody has to look for it.
            with suppress(OSError):
                papers.never_born(str(err))
            raise
        try:
            return _kept(ours, birth, within_s)
        except BaseException:
            # Too late, or we are wanted elsewhere. What nobody will hold must not outlive us, whatever its policy.
            with suppress(OSError):
                protocol.send(ours, Stop("whoever had it born, and went", force=True))
            ours.close()
            raise

    def _ask(
        self, order: Birth, packed: bytes, descriptors: list[int], lock: Path | None, within_s: float
    ) -> socket.socket:
        """Send an order; returns our end of the connection to its keeper-to-be.

        Raises:
            WorkerLost: The nursery is gone, and took nothing.
            TimeoutError: It takes nothing.
            OSError: The lock file cannot be opened, or we have no descriptor left.
        """
        with ExitStack() as ends:
            bulk = protocol.memory_file(packed)
            ends.callback(os.close, bulk)
            held = bulk
            if lock is not None:
                held = os.open(lock, _LOCK_FLAGS, 0o600)
                ends.callback(os.close, held)
            ours, theirs = protocol.pair()
            ends.enter_context(theirs)
            try:
                self._send(order, [theirs.fileno(), bulk, held, *descriptors], within_s)
            except BaseException:
                ours.close()
                raise
            return ours

    def _send(self, order: Birth, descriptors: list[int], within_s: float) -> None:
        with self._lock:
            # It takes orders faster than we can write them; a stopped one (SIGSTOP) must not hold us for ever.
            self._channel.settimeout(within_s)
            try:
                protocol.send(self._channel, order, descriptors)
            except TimeoutError:
                raise
            except OSError as err:
                raise WorkerLost("the nursery") from err
            finally:
                self._channel.settimeout(None)

    def lost(self, timeout_s: float | None = 0.0) -> Lost | None:
        """Return the next report about a lost keeper; None when none came in time.

        Raises:
            WorkerLost: The nursery itself is gone. Its keepers go on; start another for new births.
        """
        if not _readable(self._channel, timeout_s):
            return None
        try:
            found = protocol.receive(self._channel)
        except OSError:
            found = None
        if found is None:
            raise WorkerLost("the nursery")
        message, descriptors = found
        for fd in descriptors:
            os.close(fd)
        return message if isinstance(message, Lost) else None

    def close(self, timeout_s: float = 5.0) -> bool:
        """Hang up; it ends with its last keeper. Waits for that, and reaps it; False when it lives on.

        One that lives on is reaped by whoever becomes its parent when we end.
        """
        self._channel.close()
        fd = load().exit_fd(self.pinned)
        if fd is not None:
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            poller.poll(int(timeout_s * 1000))
        ended = reap(self.pid) is not None
        self.pinned.close()
        return ended


def exit_status_of(ended: Ended | Exited | Lost) -> ExitStatus:
    """Return how a leader ended, as a keeper or the nursery told it."""
    return ExitStatus(ended.code, ended.signal, ended.core_dumped)


def _kept(connection: socket.socket, birth: BirthId, within_s: float) -> Kept:
    """Wait for a keeper's first word about a birth; see `Nursery.bear`."""
    found = _first_word(connection, within_s)
    if found is None:
        raise WorkerLost(f"nursery or keeper of birth {birth}")
    message, beside = found
    if isinstance(message, NotBorn):
        raise LaunchFailed(message.errno, message.step)
    if not isinstance(message, Born):
        raise WorkerLost(f"nursery or keeper of birth {birth}")
    return Kept(connection, message, beside)


def _first_word(connection: socket.socket, within_s: float) -> tuple[Message, list[int]] | None:
    """Return the first message on a connection; None when the other end is gone.

    Raises:
        TimeoutError: There is none in time.
    """
    if not _readable(connection, within_s):
        raise TimeoutError(f"no keeper has answered within {within_s:g} s")
    try:
        return protocol.receive(connection)
    except OSError:
        return None


def _readable(connection: socket.socket, timeout_s: float | None) -> bool:
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else int(timeout_s * 1000)))
