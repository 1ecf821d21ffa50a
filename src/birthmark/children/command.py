"""What to start, and how: a command before it has become a child."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from birthmark.core.markers import (
    BIRTH_ENV,
    PREFIX,
    TAG_RESOURCE,
    ChildKind,
    mark_entries,
    scrub,
    tag_of,
)
from birthmark.core.service import (
    BirthId,
    InstallationId,
    ServiceName,
    birth_id,
    installation_id,
    service_name,
)
from birthmark.errors import SpawnFailed
from birthmark.platforms.launch import INFINITY, Launch, Session

__all__ = ["Command", "Mark", "Session", "Stdio", "mark_child", "new_birth", "place_in_own_process_group"]

_DEFAULT_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_SIGNALS: Final = int(signal.NSIG)
_PREFIX: Final = PREFIX.encode()
_BIRTH_ENV: Final = BIRTH_ENV.encode()
KEEP_HARD: Final = -2
"""A hard limit of -2 leaves the hard value alone; only the soft one is set."""


class Stdio(Enum):
    """Where one of a child's three standard descriptors leads."""

    INHERIT = "inherit"
    NULL = "null"
    PIPE = "pipe"


class Mark:
    """The stamp a command will carry: who owns the child, and which birth it is."""

    __slots__ = ("birth", "installation", "kind", "parent", "service")

    def __init__(
        self,
        kind: ChildKind,
        service: ServiceName,
        installation: InstallationId,
        birth: BirthId | None,
        parent: BirthId | None,
    ) -> None:
        self.kind, self.service, self.installation = kind, service, installation
        self.birth, self.parent = birth, parent


class Command:
    """A program with its arguments and everything a child inherits or does not.

    Nothing is inherited but what is named: descriptors other than 0 to 2 are closed, all
    signals are at their defaults and unblocked, and no ``BIRTHMARK_*`` variable of ours is
    passed on.

    Args:
        program: A path, or a name looked up on the *child's* PATH.
        args: Its arguments, the program's name not included.
        env: The whole environment; None means ours.
        cwd: The working directory; None means ours. A relative program path is taken from here.
        stdin, stdout, stderr: See `Stdio`; an int is a descriptor of the caller's, which keeps it.
        pass_fds: Further descriptors: number in the child to descriptor of ours.
        umask: 0 to 0o777; None means ours.
        user, group, extra_groups: Names or ids; changing them needs the privilege.
        limits: Resource to (soft, hard), as in `resource.setrlimit`.
        session: Whether the child leads a new group, a new session, or neither.
        parent_death: The signal it gets when our process ends; None arms nothing.

    Raises:
        TypeError, ValueError: An argument no program can get: a NUL in text, an ``=`` in a name.
    """

    def __init__(
        self,
        program: str | os.PathLike[str],
        *args: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: Stdio | int = Stdio.NULL,
        stdout: Stdio | int = Stdio.NULL,
        stderr: Stdio | int = Stdio.NULL,
        pass_fds: Mapping[int, int] | None = None,
        umask: int | None = None,
        user: str | int | None = None,
        group: str | int | None = None,
        extra_groups: Sequence[str | int] | None = None,
        limits: Mapping[int, tuple[int, int]] | None = None,
        session: Session = Session.NEW_GROUP,
        parent_death: int | None = signal.SIGTERM,
    ) -> None:
        self.program = _text(program, "program")
        if not self.program:
            raise ValueError("the program's name is empty")
        self.args = tuple(_text(argument, "argument") for argument in args)
        self.env = None if env is None else {_name(k): _text(v, f"variable {k}") for k, v in env.items()}
        self.cwd = None if cwd is None else _text(cwd, "working directory")
        self.stdin, self.stdout, self.stderr = _stdio(stdin), _stdio(stdout), _stdio(stderr)
        self.pass_fds = dict(pass_fds or {})
        for target, source in self.pass_fds.items():
            if min(target, source) < 0 or target < 3:
                raise ValueError(f"descriptor {source} cannot become {target}: 3 and above can be passed")
        if umask is not None and not 0 <= umask <= 0o777:
            raise ValueError(f"umask {umask!r} is not within 0 to 0o777")
        if parent_death is not None and not 0 < parent_death < _SIGNALS:
            raise ValueError(f"{parent_death!r} is not a signal")
        if isinstance(extra_groups, str):
            raise TypeError("extra_groups is a sequence of groups, not one group's name")
        self.umask = umask
        self.user, self.group = _account(user, "user"), _account(group, "group")
        self.extra_groups = None if extra_groups is None else [_account(g, "group") for g in extra_groups]
        self.limits = {resource: _limit(pair) for resource, pair in (limits or {}).items()}
        self.session = _session(session)
        self.parent_death = parent_death
        self.mark: Mark | None = None

    def __repr__(self) -> str:
        return f"Command({' '.join((self.program, *self.args))!r})"

    def environment(self) -> dict[str, str]:
        """Return the environment the child gets, our mark first."""
        return {**self._mark_entries(), **scrub(dict(os.environ) if self.env is None else self.env)}

    def _mark_entries(self) -> dict[str, str]:
        mark = self.mark
        if mark is None:
            return {}
        return mark_entries(
            kind=mark.kind,
            service=mark.service,
            installation=mark.installation,
            birth=mark.birth,
            parent=mark.parent,
        )

    def _entries(self) -> tuple[bytes, ...]:
        """Return `environment` as the kernel takes it; our own is not decoded on the way."""
        rest = _own_entries() if self.env is None else _encoded(scrub(self.env))
        return (*_encoded(self._mark_entries()), *rest)

    def resolve(self) -> str:
        """Return the absolute path of the program.

        Raises:
            SpawnFailed: It is not on the child's PATH; the error carries the PATH.
        """
        if os.path.isabs(self.program):
            # Nothing is asked: a system call gives the GIL away, for tens of milliseconds in a busy host.
            return self.program
        if os.sep in self.program:
            return os.path.join(self._own_folder(), self.cwd or "", self.program)
        path = self._search_path()
        denied = False
        for folder in path.split(os.pathsep):
            candidate = os.path.join(self.cwd or "", folder, self.program)
            if os.path.isfile(candidate):
                if os.access(candidate, os.X_OK):
                    return (
                        candidate if os.path.isabs(candidate) else os.path.join(self._own_folder(), candidate)
                    )
                denied = True
        raise SpawnFailed(self.program, errno.EACCES if denied else errno.ENOENT, "search", path)

    def _own_folder(self) -> str:
        """Return our working directory, from which relative paths start."""
        try:
            return os.getcwd()
        except OSError as err:
            hint = "our own working directory is gone; give an absolute path"
            raise SpawnFailed(self.program, err.errno or errno.ENOENT, "search", hint=hint) from err

    def _search_path(self) -> str:
        source: Mapping[str, str] = os.environ if self.env is None else self.env
        return source.get("PATH", _DEFAULT_PATH)

    def to_launch(self, descriptors: Sequence[tuple[int, int]], path: str | None = None) -> Launch:
        """Return the command as the kernel takes it, with these (ours, child's) descriptors.

        Args:
            descriptors: All the child gets, 0 to 2 among them.
            path: What `resolve` returned; None asks it.
        """
        limits = [(resource, soft, hard) for resource, (soft, hard) in self.limits.items()]
        if self.mark is not None and self.mark.birth is not None:
            limits.append((TAG_RESOURCE, tag_of(self.mark.birth), KEEP_HARD))
        uid, gid, groups = self._credentials()
        return Launch(
            path=os.fsencode(self.resolve() if path is None else path),
            argv=tuple(os.fsencode(word) for word in (self.program, *self.args)),
            env=self._entries(),
            cwd=None if self.cwd is None else os.fsencode(self.cwd),
            descriptors=tuple(descriptors),
            parent_death=self.parent_death,
            session=self.session,
            umask=self.umask,
            uid=uid,
            gid=gid,
            groups=groups,
            limits=tuple(limits),
            distinct=True,
        )

    def _credentials(self) -> tuple[int | None, int | None, tuple[int, ...] | None]:
        uid = gid = None
        groups: tuple[int, ...] | None = None
        if self.user is None and self.group is None and self.extra_groups is None:
            return uid, gid, groups
        import pwd

        try:
            if self.user is not None:
                entry = (
                    pwd.getpwnam(self.user)
                    if isinstance(self.user, str)
                    else (pwd.getpwuid(self.user) if _known_uid(self.user) else None)
                )
                uid = entry.pw_uid if entry else int(self.user)
                if entry is not None:
                    # As login(1) does: the user's own groups, or root's would stay.
                    gid = entry.pw_gid
                    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
                else:
                    groups = ()
            if self.group is not None:
                gid = _gid(self.group)
            if self.extra_groups is not None:
                groups = tuple(_gid(group) for group in self.extra_groups if group is not None)
        except KeyError as err:
            raise SpawnFailed(self.program, errno.EINVAL, "credentials", hint=str(err).strip("\"'")) from err
        return uid, gid, groups


def _encoded(variables: Mapping[str, str]) -> list[bytes]:
    """Return variables as entries, encoded all at once."""
    if not variables:
        return []
    entries = os.fsencode("\0".join([f"{n}={v}" for n, v in variables.items()])).split(b"\0")
    if len(entries) != len(variables):
        raise ValueError("a variable holds a NUL")
    return entries


def _own_variables() -> Mapping[bytes, bytes]:
    """Return our variables as the kernel takes them."""
    if not os.supports_bytes_environ:
        return {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    # The mapping converts each name back and forth, which costs more than the spawn's fork; what it
    # wraps has them as they are.
    plain: Mapping[bytes, bytes] = getattr(os.environb, "_data", os.environb)
    return plain


_own: tuple[Mapping[bytes, bytes], list[bytes]] = ({}, [])


def _own_entries() -> list[bytes]:
    """Return our variables as entries, none of ours among them; made anew only when one has changed."""
    global _own
    variables = _own_variables()
    known, entries = _own
    if known != variables:
        # As of one instant: another thread may change them meanwhile.
        known = dict(variables)
        entries = [n + b"=" + v for n, v in known.items() if not n.startswith(_PREFIX)]
        _own = (known, entries)
    return entries


def unarmed_reason(path: str) -> str | None:
    """Say why the kernel drops the parent-death signal for this program, or None.

    Source: prctl(2), PR_SET_PDEATHSIG: cleared at the exec of a set-user-id or set-group-id
    program, or one with file capabilities.
    """
    try:
        mode = os.stat(path).st_mode
        if mode & 0o4000:
            return "the program is set-user-id"
        if mode & 0o2010 == 0o2010:
            return "the program is set-group-id"
        if hasattr(os, "getxattr"):
            os.getxattr(path, "security.capability")
            return "the program has file capabilities"
    except OSError:
        return None
    return None


def _known_uid(uid: int) -> bool:
    import pwd

    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _gid(group: str | int) -> int:
    import grp

    return grp.getgrnam(group).gr_gid if isinstance(group, str) else group


def _text(value: str | os.PathLike[str], what: str) -> str:
    if isinstance(value, os.PathLike):
        value = value.__fspath__()
    if not isinstance(value, str):
        raise TypeError(f"the {what} is {type(value).__name__}, not text")
    if "\0" in value:
        raise ValueError(f"the {what} {value!r} holds a NUL")
    return value


def _name(value: str) -> str:
    text = _text(value, "name of a variable")
    if not text or "=" in text:
        raise ValueError(f"{text!r} cannot name an environment variable")
    return text


def _account(value: str | int | None, what: str) -> str | int | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"the {what} is {type(value).__name__}, neither a name nor an id")
    # The kernel reads the last one as "leave it as it is": the child would keep our rights.
    if not 0 <= value < 2**32 - 1:
        raise ValueError(f"{value} is no {what} id: 0 to 2**32-2 are")
    return value


def _session(value: Session) -> Session:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"the session is {type(value).__name__}, not a Session")
    try:
        return Session(value)
    except ValueError:
        raise ValueError(f"{value} is no kind of session") from None


def _limit(pair: tuple[int, int]) -> tuple[int, int]:
    soft, hard = pair
    for value, least in ((soft, INFINITY), (hard, KEEP_HARD)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{value!r} is no limit: (soft, hard) numbers are")
        if not least <= value < 2**64:
            raise ValueError(f"{value} is no limit")
    return soft, hard


def _stdio(value: Stdio | int) -> Stdio | int:
    if isinstance(value, Stdio):
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is neither a Stdio nor a descriptor")
    if value < 0:
        raise ValueError(f"{value} is no descriptor")
    return value


_BIRTHS_AT_ONCE: Final = 256

_births: tuple[int, list[BirthId]] = (0, [])


def new_birth() -> BirthId:
    """Return a fresh birth id: 128 random bits."""
    global _births
    me = os.getpid()
    # Asking for randomness gives the GIL away, so it is asked for many at once. A fork asks anew: what its
    # parent holds is its parent's.
    if _births[0] != me:
        _births = (me, [])
    store = _births[1]
    try:
        return store.pop()
    except IndexError:
        digits = os.urandom(16 * _BIRTHS_AT_ONCE).hex()
        fresh = [BirthId(digits[at : at + 32]) for at in range(0, len(digits), 32)]
        store.extend(fresh[1:])
        return fresh[0]


def enclosing_birth() -> BirthId | None:
    """Return the birth inside which this process runs, or None."""
    named = _own_variables().get(_BIRTH_ENV)
    if named is None:
        return None
    try:
        return birth_id(named.decode("ascii", "replace"))
    except ValueError:
        return None


def mark_child(
    command: Command,
    kind: ChildKind,
    service: str,
    *,
    installation: InstallationId | None = None,
    birth: BirthId | None = None,
) -> Command:
    """Stamp a command, so that its child and all its descendants carry the mark and the tag.

    Whatever the command's own environment says about ``BIRTHMARK_*`` is dropped.

    Args:
        command: Changed in place, and returned.
        kind: What the child is to us.
        service: Its name; for the API server the reserved name.
        installation: None means this user's.
        birth: None makes a new one.

    Raises:
        TypeError, ValueError: No such kind, or a name no service may have.
        InstallationBroken: This user's state folder cannot be used.
    """
    if not isinstance(kind, ChildKind):
        raise TypeError(f"{kind!r} is no ChildKind")
    name = service_name(service) if kind is ChildKind.API else ServiceName(service)
    if installation is None:
        from birthmark.children.installation import open_installation

        installation = open_installation().id
    else:
        installation = installation_id(installation)
    if kind is ChildKind.API:
        birth = None
    else:
        birth = new_birth() if birth is None else birth_id(birth)
    command.mark = Mark(kind, name, installation, birth, enclosing_birth())
    return command


def place_in_own_process_group(command: Command) -> Command:
    """Have the child lead a new process group (no new session); the command is returned."""
    command.session = Session.NEW_GROUP
    return command
