"""`birthmark run -- COMMAND`: one command of which nothing outlives its client.

One process, between the client and the command. It is the command's parent and a subreaper, so that whatever
the command starts stays below it. It leaves the command in the process group it is in itself, and gives it
the client's own descriptors: what the client sends, to a process or to a group, arrives as it would without
us, and no byte passes through here.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from typing import TYPE_CHECKING, Final

from birthmark.core.markers import PREFIX, TAG_RESOURCE, mark_entries, tag_of
from birthmark.core.outcomes import ExitStatus
from birthmark.core.service import BirthId, InstallationId, ServiceName, birth_id, installation_id
from birthmark.errors import InstallationBroken, LookFailed, ProcessGone, SupervisionError, errno_words
from birthmark.keeper.client import ClientGone, hold_client
from birthmark.keeper.options import USAGE, BadUsage, HelpAsked, Request, parse
from birthmark.keeper.papers import Papers, crowded
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned
from birthmark.platforms.launch import KEEP_HARD, Launch, LaunchFailed, Session, Step, launch

if TYPE_CHECKING:
    from pathlib import Path

    from birthmark.core.identity import Identity

USAGE_WRONG: Final = 2
OURS: Final = 125
CANNOT_EXECUTE: Final = 126
NOT_FOUND: Final = 127

SAID_WITHIN_S: Final = 1
"""How long a message waits for a full pipe, or for a terminal that ^S has stopped."""

_BIRTH: Final = PREFIX + "BIRTH="
_DEFAULT_PATH: Final = b"/usr/local/bin:/usr/bin:/bin"


def main(words: list[str]) -> int:
    """Run what the words after ``birthmark run`` say; returns the exit code if that never came to run.

    To be called in a process of its own: signals, descriptors and children of this process are taken over, and
    once the command has run, the process ends here with the command's code.
    """
    try:
        request = parse(words)
    except HelpAsked:
        from birthmark.keeper.options import HELP

        sys.stdout.write(HELP)
        return 0
    except BadUsage as err:
        say(f"{err}\nUsage: {USAGE}\nTry: birthmark run --help")
        return USAGE_WRONG
    if sys.platform != "linux":
        say("it needs Linux, whose kernel lets a process keep its descendants")
        return OURS
    try:
        code = _run(request)
    except _NotStarted as err:
        say(str(err))
        return err.code
    except (SupervisionError, OSError) as err:
        say(f"{err}")
        return OURS
    # Nothing is left to flush or to wait for, and the client waits for us.
    os._exit(code)


def say(text: str) -> None:
    """Write one message for people to stderr; a reader that is gone or does not read does not matter."""
    message = f"birthmark run: {text}\n".encode("utf-8", "backslashreplace")
    poller = select.poll()
    poller.register(2, select.POLLOUT)
    try:
        for at in range(0, len(message), select.PIPE_BUF):
            # A pipe that says it takes something takes that much at once.
            if not poller.poll(SAID_WITHIN_S * 1000):
                return
            os.write(2, message[at : at + select.PIPE_BUF])
    except OSError:
        pass


class _NotStarted(Exception):
    """The command never ran; `code` is our exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def _run(request: Request) -> int:
    from birthmark.keeper.standing import Standing
    from birthmark.keeper.witness import Witness
    from birthmark.platforms import inheritance
    from birthmark.platforms.inbox import Inbox
    from birthmark.platforms.linux import become_subreaper

    ignored = inheritance.ignored_signals()
    given = inheritance.descriptors()
    _fill_standard_streams(given)
    environ = inheritance.environ_entries()
    # From here on a signal waits until somebody reads it. What we were told to ignore stays ignored.
    inbox = Inbox(Standing.listens_to(ignored))
    try:
        client = hold_client()
    except ClientGone:
        raise _NotStarted(OURS, "the client died while we were starting; nothing was started") from None
    if not become_subreaper():
        raise _NotStarted(OURS, "the kernel does not let us keep descendants (prctl PR_SET_CHILD_SUBREAPER)")
    # Asked before anything runs: where we cannot look, we could not end what it starts either.
    load().children_of(os.getpid())
    path = _find(request.command[0], environ)
    service = request.name or _derived_name(request)
    installation, births = _installation()
    birth = birth_id(os.urandom(16).hex())
    papers = _Records(Papers(births, birth) if births else None)
    papers.intend(installation, request, service, path)
    # Before the command, which may be signalled as soon as it is there.
    witness = Witness()
    leader = _launch(
        request, path, _marked(environ, request, installation, service, birth), birth, given, ignored, papers
    )
    early = inbox.take()
    papers.born(leader, installation, birth, request, service)
    _let_go_of(given, keep_stdin=request.kind.value == "mcp")
    standing = Standing(request, leader, client, inbox, witness, outlives_client=1 in ignored, early=early)
    status, survivors = standing.stand()
    papers.ended(status, standing.why, survivors)
    if request.verbose:
        for line in standing.report():
            say(line)
    if survivors:
        listed = ", ".join(map(str, survivors))
        say(f"{service}: still there after SIGKILL: {listed} {standing.refusals()}".rstrip())
    papers.prune()
    return status.shell_code() if status.known else OURS


# -- before the command --------------------------------------------------------


def _derived_name(request: Request) -> ServiceName:
    from birthmark.keeper.naming import service_name_for

    return service_name_for(request.command)


def _installation() -> tuple[InstallationId, Path | None]:
    """Return whose birth this is and where its papers go.

    A state folder that cannot be used costs the papers, and what a later sweep could find; never the start.
    """
    from birthmark.children.installation import open_installation

    try:
        found = open_installation()
        return found.id, found.births
    except (InstallationBroken, OSError) as err:
        say(f"warning: {err}. The command runs all the same, under an installation id that nobody else knows")
        return installation_id(os.urandom(16).hex()), None


def _find(program: str, environ: list[bytes]) -> bytes:
    """Return the absolute path of the program, looked for as a shell does on the PATH we were given.

    Raises:
        _NotStarted: There is none (127), or none that can be executed (126).
    """
    name = os.fsencode(program)
    if b"/" in name:
        path = name if name.startswith(b"/") else os.path.join(_here(), name)
        _check(path, program)
        return path
    searched = next((entry[5:] for entry in environ if entry.startswith(b"PATH=")), _DEFAULT_PATH)
    refused: bytes | None = None
    for folder in searched.split(b":"):
        # An empty entry means the working directory; POSIX, "Other Environment Variables".
        if not folder.startswith(b"/"):
            try:
                folder = os.path.join(_here(), folder)
            except _NotStarted:
                continue  # it is gone, and so is whatever was in it
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            refused = refused or path
    if refused is not None:
        _check(refused, program)
    raise _NotStarted(
        NOT_FOUND, f"{program}: not found; searched PATH={searched.decode('utf-8', 'backslashreplace')}"
    )


def _check(path: bytes, program: str) -> None:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as err:
        raise _NotStarted(NOT_FOUND, f"{program}: {errno_words(err.errno)}") from err
    except OSError as err:
        raise _NotStarted(CANNOT_EXECUTE, f"{program}: {errno_words(err.errno)}") from err
    if os.path.isdir(path):
        raise _NotStarted(CANNOT_EXECUTE, f"{program}: it is a directory, not a program")
    if not os.access(path, os.X_OK):
        raise _NotStarted(CANNOT_EXECUTE, f"{program}: it may not be executed; say: chmod +x on it")


def _here() -> bytes:
    try:
        return os.getcwdb()
    except OSError as err:
        raise _NotStarted(OURS, f"the working directory is gone: {errno_words(err.errno)}") from err


def _marked(
    environ: list[bytes], request: Request, installation: InstallationId, service: ServiceName, birth: BirthId
) -> tuple[bytes, ...]:
    """Return the client's environment with our mark in front and no other mark in it."""
    enclosing = next((e[len(_BIRTH) :] for e in environ if e.startswith(_BIRTH.encode())), None)
    parent: BirthId | None = None
    if enclosing is not None:
        try:
            parent = birth_id(enclosing.decode("ascii", "replace"))
        except ValueError:
            parent = None  # not one of ours: it is scrubbed like any other
    marks = mark_entries(
        kind=request.kind, service=service, installation=installation, birth=birth, parent=parent
    )
    prefix = PREFIX.encode()
    return (
        *(f"{name}={value}".encode("utf-8", "surrogateescape") for name, value in marks.items()),
        *(entry for entry in environ if not entry.startswith(prefix)),
    )


def _launch(
    request: Request,
    path: bytes,
    environ: tuple[bytes, ...],
    birth: BirthId,
    given: list[int],
    ignored: frozenset[int],
    papers: _Records,
) -> Pinned:
    argv = tuple(os.fsencode(word) for word in request.command)
    descriptors = tuple((fd, fd) for fd in sorted({0, 1, 2, *given}))
    if ignored:
        from birthmark.platforms.ignoring import starts_ignoring

        path, argv = starts_ignoring(ignored, path, argv)
    try:
        pid, pidfd = _launched(path, argv, environ, birth, descriptors)
    except LaunchFailed as err:
        papers.never_born(str(err))
        papers.prune()
        if err.step is not Step.EXEC:
            raise _NotStarted(
                OURS, f"{request.command[0]}: could not be started: {err.step}: {errno_words(err.errno)}"
            ) from err
        code = NOT_FOUND if err.errno == errno.ENOENT else CANNOT_EXECUTE
        hint = "; does the interpreter in its first line exist?" if err.errno == errno.ENOENT else ""
        raise _NotStarted(code, f"{request.command[0]}: {errno_words(err.errno)}{hint}") from err
    if pidfd is None:
        return load().pin(pid)
    return load().adopt_pidfd(pid, pidfd)


def _launched(
    path: bytes,
    argv: tuple[bytes, ...],
    environ: tuple[bytes, ...],
    birth: BirthId,
    descriptors: tuple[tuple[int, int], ...],
) -> tuple[int, int | None]:
    import signal

    request = Launch(
        path=path,
        argv=argv,
        env=environ,
        descriptors=descriptors,
        # Whatever becomes of us, the command itself does not outlive us.
        parent_death=signal.SIGKILL,
        session=Session.INHERIT,
        limits=((TAG_RESOURCE, tag_of(birth), KEEP_HARD),),
    )
    try:
        return launch(request)
    except LaunchFailed as err:
        if err.step is not Step.EXEC or err.errno != errno.ENOEXEC:
            raise
    # A script without a first line that names its interpreter: execvp(3) gives it to the shell, and so do we.
    return launch(
        Launch(
            path=b"/bin/sh",
            argv=(b"/bin/sh", path, *argv[1:]),
            env=environ,
            descriptors=descriptors,
            parent_death=signal.SIGKILL,
            session=Session.INHERIT,
            limits=request.limits,
        )
    )


def _fill_standard_streams(given: list[int]) -> None:
    """Put /dev/null where the client closed one of the three, or the next thing we open would be taken for it."""
    for fd in {0, 1, 2}.difference(given):
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        if null != fd:
            os.dup2(null, fd, inheritable=False)
            os.close(null)


def _let_go_of(given: list[int], *, keep_stdin: bool) -> None:
    """Keep no copy of the client's streams: it would hold back the end-of-file that means *it has ended*.

    stdin is kept where its hang-up is waited for, stderr for what we may have to say.
    """
    for fd in given:
        if fd > 2:
            os.close(fd)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 1, inheritable=False)
    if not keep_stdin:
        os.dup2(null, 0, inheritable=False)
    os.close(null)


def _ourselves() -> Identity | None:
    """Return who we are; None where we cannot look at ourselves, and then our number has to do."""
    try:
        with load().pin(os.getpid()) as pinned:
            seen = load().observe(pinned, environ=False)
    except (LookFailed, ProcessGone):
        return None
    return None if seen is None else seen.identity()


class _Records:
    """The papers, as far as the disk takes them: a refusal costs one line, never the start."""

    def __init__(self, papers: Papers | None) -> None:
        self._papers = papers

    def intend(
        self, installation: InstallationId, request: Request, service: ServiceName, path: bytes
    ) -> None:
        if self._papers is None:
            return
        try:
            self._papers.intend(
                installation=installation,
                kind=request.kind,
                service=service,
                program=os.fsdecode(path),
                by="run",
                front=_ourselves(),
            )
        except OSError as err:
            self._give_up(err)

    def never_born(self, why: str) -> None:
        if self._papers is not None:
            try:
                self._papers.never_born(why)
            except OSError as err:
                self._give_up(err)

    def born(
        self,
        leader: Pinned,
        installation: InstallationId,
        birth: BirthId,
        request: Request,
        service: ServiceName,
    ) -> None:
        if self._papers is None:
            return
        try:
            sighting = load().observe(leader, environ=False)
            if sighting is not None:
                self._papers.born(
                    sighting.identity(
                        birth=birth, installation=installation, kind=request.kind, service=service
                    )
                )
        except (OSError, LookFailed) as err:
            self._give_up(err)

    def ended(self, status: ExitStatus, why: str, survivors: list[int]) -> None:
        if self._papers is not None:
            try:
                self._papers.ended(status, why=why, survivors=survivors)
            except OSError as err:
                self._give_up(err)

    def prune(self) -> None:
        """Take old papers away when there are many. The client waits for us: bounded, and never an error."""
        if self._papers is None:
            return
        try:
            births = self._papers.folder.parent
            if crowded(births):
                from birthmark.keeper.pruning import prune

                prune(births)
        except (OSError, LookFailed):
            pass  # the next one does it

    def _give_up(self, err: OSError | LookFailed) -> None:
        self._papers = None
        say(f"warning: this birth cannot be written down ({err}); the command runs all the same")
