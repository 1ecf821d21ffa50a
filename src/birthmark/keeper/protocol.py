"""What owner, nursery and keeper say to each other: one packet a message, JSON, with descriptors beside it.

The sockets are SOCK_SEQPACKET, so a message arrives whole or not at all. Each carries the version of its
sender; a reader takes the fields it knows, and a field that an older sender did not write has its default. A
body too large for a packet (an environment may be megabytes) travels in a memory file, as the first of the
descriptors.

    owner -> nursery    Birth, with the keeper's end of a controlling connection and the child's descriptors
    nursery -> owner    Lost
    keeper -> owner     Born or NotBorn, Exited, Stopping, Survived, Ended; Welcome, Superseded, Refused
    owner -> keeper     Hello, Stop, Dying
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import sys
from typing import Any, Final, NamedTuple, cast

assert sys.platform == "linux"  # no other kernel lets a process keep its descendants

VERSION: Final = 1

PACKET_BYTES: Final = 48 * 1024
"""A longer body goes into a memory file: a socket's buffer takes some 200 KiB, for all that is in flight."""

DESCRIPTORS: Final = 200
"""At most with one message; the kernel takes 253. Source: unix(7), SCM_RIGHTS."""

_RIGHTS_BYTES: Final = socket.CMSG_SPACE(DESCRIPTORS * array.array("i").itemsize)
_UCRED: Final = struct.Struct("3i")
_BODY_BYTES: Final = 64 * 1024 * 1024


class BadMessage(Exception):
    """What came is no message of ours: not from this protocol, or a field is missing or of another type."""


class Birth(NamedTuple):
    """Have a keeper forked that gives birth to one child.

    Its descriptors: the keeper's end of the controlling connection, a memory file with what the kernel takes
    (`order.pack`), the open lock file of the service (or anything, where `lock` is empty), then the child's, in
    the order of `targets`, their numbers in the child. The nursery reads none of it unless the keeper is lost:
    what it writes to between two forks, it no longer shares with keepers.
    """

    birth: str
    installation: str
    kind: str
    service: str
    targets: list[int]
    stop: dict[str, Any]  # JSON: numbers
    death: dict[str, Any]  # JSON: a text and a number
    epoch: int
    run: str
    births: str
    lock: str = ""
    """The path of the lock file; empty: the service has none."""


class Born(NamedTuple):
    """The child runs. Beside it: the child's pidfd, where the kernel has one."""

    identity: dict[str, Any]  # JSON: what `Identity.to_dict` says
    keeper: dict[str, Any]  # JSON: the same of the keeper
    proven: str = ""
    """The proof as it will be read by somebody who holds no pidfd: "same", or why it was not."""
    unwritten: str = ""
    """Why the identity is not among the papers; empty when it is."""


class NotBorn(NamedTuple):
    """The program never ran, and nothing is left of it."""

    errno: int
    step: str
    why: str


class Exited(NamedTuple):
    """The leader has exited. Its set may still have members."""

    code: int | None
    signal: int | None
    core_dumped: bool
    at: float


class Stopping(NamedTuple):
    """The set is being ended, because of `why`. Once, however many ask."""

    why: str


class Survived(NamedTuple):
    """The last rung has failed: somebody is still there. The keeper stays until they have gone."""

    receipt: dict[str, Any]  # JSON: what `Receipt.to_dict` says


class Ended(NamedTuple):
    """The set is empty, the exit record is on disk; the keeper goes."""

    code: int | None
    signal: int | None
    core_dumped: bool
    why: str
    receipt: dict[str, Any] | None = None  # JSON: what `Receipt.to_dict` says; None: nobody was signalled
    unwritten: str = ""
    """Why the record is not among the papers; empty when it is."""


class Lost(NamedTuple):
    """A keeper has ended without its set. What it left has been ended and recorded by the nursery."""

    birth: str
    keeper: int
    code: int | None
    signal: int | None
    core_dumped: bool
    survivors: list[int]


class Hello(NamedTuple):
    """Ask a keeper for its connection. The highest epoch controls; `control` false only looks."""

    epoch: int
    control: bool = True


class Welcome(NamedTuple):
    """The answer to `Hello`. Beside it: the child's pidfd, where the kernel has one."""

    identity: dict[str, Any]  # JSON: what `Identity.to_dict` says
    keeper: dict[str, Any]  # JSON: the same of the keeper
    epoch: int
    stopping: str = ""
    """Why the set is being ended; empty when it is not."""
    exited: list[Any] | None = None  # JSON: the fields of `Exited`; None while the leader lives


class Refused(NamedTuple):
    """The answer to what cannot be done."""

    why: str


class Superseded(NamedTuple):
    """A connection of a higher epoch controls from now on; this one is closed."""

    epoch: int


class Stop(NamedTuple):
    """End the set: the stop signal, its grace, KILL. A second one can only shorten the grace."""

    asked_by: str
    stop: dict[str, Any] | None = None  # JSON: numbers; None: as the birth said
    force: bool = False


class Dying(NamedTuple):
    """Have another death policy from now on."""

    death: dict[str, Any]  # JSON: a text and a number


Message = (
    Birth | Born | NotBorn | Exited | Stopping | Survived | Ended | Lost | Hello | Welcome | Refused
    | Superseded | Stop | Dying
)  # fmt: skip

_KINDS: Final[dict[str, type]] = {
    kind.__name__: kind
    for kind in (
        Birth, Born, NotBorn, Exited, Stopping, Survived, Ended, Lost, Hello, Welcome, Refused, Superseded, Stop, Dying,
    )
}  # fmt: skip


def encode(message: Message) -> bytes:
    """Return the body of a message."""
    fields: dict[str, object] = message._asdict()
    return json.dumps({"v": VERSION, "message": type(message).__name__, **fields}).encode("ascii")


def decode(body: bytes) -> Message:
    """Return the message of a body. Fields of a newer version are left out.

    Raises:
        BadMessage: It is none.
    """
    try:
        record = json.loads(body)
        kind = _KINDS[record.pop("message")]
        version = record.pop("v")
    except (ValueError, KeyError, AttributeError, TypeError) as err:
        raise BadMessage(f"no message: {body[:80]!r}") from err
    fields: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]  # all of them are NamedTuples
    try:
        message = kind(**{name: record[name] for name in fields if name in record})
    except TypeError as err:
        raise BadMessage(f"{kind.__name__} of version {version}: {err}") from err
    for name in fields:
        if not _fits(getattr(message, name), kind.__annotations__[name]):
            raise BadMessage(
                f"{kind.__name__}.{name} of version {version} is a {type(getattr(message, name)).__name__}"
            )
    return cast(Message, message)


def _fits(value: object, annotation: object) -> bool:
    """Say whether a value is of the annotated type, as deep as the outermost container."""
    # NamedTuple wraps the text of an annotation.
    wanted = str(getattr(annotation, "__forward_arg__", annotation))
    if value is None:
        return wanted.endswith("| None")
    name = wanted.split(" |")[0].split("[")[0]
    kinds: dict[str, type | tuple[type, ...]] = {
        "str": str, "int": int, "float": (int, float), "bool": bool, "dict": dict, "list": list,
    }  # fmt: skip
    # True is an int to isinstance, and never a pid or an epoch.
    return isinstance(value, kinds[name]) and (name == "bool" or not isinstance(value, bool))


def send(connection: socket.socket, message: Message, descriptors: list[int] | None = None) -> None:
    """Send one message. The descriptors are copied: they stay the caller's.

    Raises:
        BlockingIOError: The other end does not read, and the connection does not block. Nothing was sent.
        OSError: The other end is gone (EPIPE, ECONNRESET), or the descriptors are too many.
    """
    beside = list(descriptors or ())
    body = encode(message)
    if len(body) <= PACKET_BYTES:
        _send(connection, body, beside)
        return
    bulk = memory_file(body)
    try:
        _send(connection, b"", [bulk, *beside])
    finally:
        os.close(bulk)


def memory_file(content: bytes) -> int:
    """Return a descriptor of the caller's on a file that is in memory only. Source: memfd_create(2)."""
    fd = os.memfd_create("birthmark", os.MFD_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
    except BaseException:
        os.close(fd)
        raise
    return fd


def _send(connection: socket.socket, body: bytes, descriptors: list[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    # An empty packet could not be told from end-of-file.
    connection.sendmsg([body or b"+"], rights, socket.MSG_NOSIGNAL)


def receive(connection: socket.socket) -> tuple[Message, list[int]] | None:
    """Return the next message with its descriptors, which are the caller's and close on exec; None at end-of-file.

    Blocks as the connection does.

    Raises:
        BlockingIOError: There is none yet.
        BadMessage: Something else came; its descriptors have been closed.
        OSError: The connection broke.
    """
    found = receive_body(connection)
    if found is None:
        return None
    body, beside = found
    try:
        if body == b"+":
            if not beside:
                raise BadMessage("a message whose body is missing")
            bulk = beside.pop(0)
            try:
                body = read_whole(bulk)
            finally:
                os.close(bulk)
        return decode(body), beside
    except BaseException:
        for fd in beside:
            os.close(fd)
        raise


def receive_body(connection: socket.socket) -> tuple[bytes, list[int]] | None:
    """Return what `receive` would, undecoded; ``+`` for a body that is the first of its descriptors.

    Raises:
        BlockingIOError, BadMessage, OSError: As `receive`.
    """
    try:
        body, rights, flags, _ = connection.recvmsg(PACKET_BYTES, _RIGHTS_BYTES, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # The other end went with something of ours unread. That is told once, and before what it said last.
        body, rights, flags, _ = connection.recvmsg(PACKET_BYTES, _RIGHTS_BYTES, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    beside = list(descriptors)
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for fd in beside:
            os.close(fd)
        raise BadMessage("a message longer than any of ours, or more descriptors than we can have")
    return (body, beside) if body or beside else None


def read_whole(fd: int) -> bytes:
    """Return the content of a memory file, wherever its offset is.

    Raises:
        BadMessage: It is larger than anything of ours.
    """
    length = os.fstat(fd).st_size
    if length > _BODY_BYTES:
        raise BadMessage(f"a message of {length} bytes")
    parts = []
    at = 0
    while at < length and (part := os.pread(fd, 1 << 20, at)):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


# -- sockets -------------------------------------------------------------------


def name_of(birth: str) -> str:
    """Return the name of the socket of a birth's keeper in the run folder."""
    return f"k-{birth}"


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a connection that was never anywhere to be found. Both block."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def listen(run: str, birth: str) -> socket.socket:
    """Bind the keeper's socket, which does not block; whoever connects is to be asked for its uid.

    The folder may lie deeper than a socket address reaches (107 bytes): it is gone into by a descriptor.

    Raises:
        OSError: The name is taken, or the folder refuses.
    """
    listener = socket.socket(
        socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    )
    try:
        folder = os.open(run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listener.bind(f"/proc/self/fd/{folder}/{name_of(birth)}")
        finally:
            os.close(folder)
        listener.listen(16)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(run: str, birth: str) -> socket.socket:
    """Connect to a keeper; the connection blocks.

    Raises:
        FileNotFoundError, ConnectionRefusedError: There is no such keeper any more.
        PermissionError: It is another user's.
        OSError: Anything else, such as no descriptor left.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        folder = os.open(run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            connection.connect(f"/proc/self/fd/{folder}/{name_of(birth)}")
        finally:
            os.close(folder)
        if not trusted(connection):
            raise PermissionError(f"the keeper of {birth} belongs to uid {peer(connection)[1]}")
    except BaseException:
        connection.close()
        raise
    return connection


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return pid and uid of the process that made the other end. Source: unix(7), SO_PEERCRED."""
    pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid


def trusted(connection: socket.socket) -> bool:
    """Say whether the other end is our own user, or root."""
    return peer(connection)[1] in (os.geteuid(), 0)
