"""Who listens on a TCP port: the kernel's list of listening sockets, and the descriptors behind them.

A listener is a listening socket. A socket that is bound and does not listen is none, nor is a
connection of a client, nor UDP. Whether a process has it open is a second question.
"""

from __future__ import annotations

import _socket  # half the import time of `socket`, and all that is needed here
import errno
import os
import struct
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

from birthmark.errors import LookFailed, ProcessGone, errno_words

__all__ = [
    "Listener",
    "OpenListener",
    "link_of",
    "listeners",
    "listeners_of",
    "lives_elsewhere",
    "open_as_standard",
    "open_in_threads",
    "open_listeners",
]

# include/uapi/linux: netlink.h, sock_diag.h, inet_diag.h, and net/tcp_states.h.
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST_DUMP: Final = 0x301
_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_NLMSG_OVERRUN: Final = 4
_INET_DIAG_SKV6ONLY: Final = 11
_TCP_LISTEN: Final = 10

_REQUEST: Final = struct.Struct("=IHHII BBxxI")
_HEADER: Final = struct.Struct("=IHHII")
_MESSAGE_BYTES: Final = 72
# A dump comes in pieces of at most 32 KiB; a socket whose piece does not fit would lose the rest.
_RECEIVE_BYTES: Final = 64 * 1024

_STANDARD: Final = frozenset({"0", "1", "2"})
_FAMILIES: Final = ((_socket.AF_INET, "IPv4", 4), (_socket.AF_INET6, "IPv6", 16))


class Listener(NamedTuple):
    """A listening TCP socket.

    `inode` names the socket, in every network namespace of this host. `uid` is the user who made it,
    not always the one who has it open: a server may have given up its rights since. `v6only` is None
    for IPv4, and where the kernel was asked through a table that does not say.
    """

    family: str
    address: str
    port: int
    inode: int
    uid: int
    v6only: bool | None = None

    def __str__(self) -> str:
        address = f"[{self.address}]" if self.family == "IPv6" else self.address
        return f"{address}:{self.port}"


class OpenListener(NamedTuple):
    """A listener, and under which descriptor a process has it open."""

    fd: int
    listener: Listener


def listeners(port: int) -> list[Listener]:
    """Return every listener on `port` in our network namespace, on any address, whoever has it open.

    The kernel does the filtering, so the cost (a tenth of a millisecond) does not grow with what else is open.

    Raises:
        LookFailed: Neither netlink nor ``/proc/net/tcp`` would answer. It never means that nobody listens.

    Platform: Linux.
    Source: sock_diag(7).
    """
    try:
        return _by_sock_diag(port)
    except LookFailed as refused:
        # gVisor and some seccomp filters have no sock_diag; a kernel may lack the module. The table costs
        # 10 ms each time, since the kernel walks its whole hash table for it.
        try:
            return _by_table(port, "/proc/thread-self/net")
        except LookFailed as err:
            raise LookFailed(f"port {port}", f"{refused.cause}; {err.cause}") from err


def listeners_of(pid: int, port: int) -> list[Listener]:
    """Return every listener on `port` in the network namespace of process `pid`. Asks for no right over it.

    It reads the process's own table, for 10 ms: entering its namespace would need root, and a thread for it.

    Raises:
        ProcessGone: It has exited, or is hidden: it has no network we could look at.
        LookFailed: Its table cannot be read.

    Platform: Linux.
    Source: proc_pid_net(5).
    """
    try:
        return _by_table(port, f"/proc/{pid}/net")
    except LookFailed as err:
        if isinstance(err.__cause__, (FileNotFoundError, ProcessLookupError)):
            raise ProcessGone(pid) from err
        raise


def lives_elsewhere(pid: int) -> bool | None:
    """Say whether `pid` lives in another network namespace than this thread.

    Returns:
        None when it cannot be told: another user's process, or one that has exited.
    """
    try:
        # Threads may differ: /proc/self is the main one.
        return os.stat(f"/proc/{pid}/ns/net").st_ino != os.stat("/proc/thread-self/ns/net").st_ino
    except OSError:
        return None


def link_of(inode: int) -> str:
    """Return what the link of a descriptor to that socket reads."""
    return f"socket:[{inode}]"


def open_listeners(
    pid: int, wanted: Mapping[str, Listener], *, fd: int | None = None, standard: bool = True
) -> list[OpenListener] | None:
    """Return which of the `wanted` listeners (by `link_of`) process `pid` has open.

    Args:
        pid: The process to look at.
        wanted: The listeners, by the text of their links.
        fd: A descriptor that was one of them when last seen. If it still is, and it is the only one
            wanted, nothing else is read.
        standard: Look at descriptors 0, 1 and 2 as well. Only a server started by inetd has its listener
            there, and for a small process they are most of the work; see `open_as_standard`.

    Returns:
        None when the kernel does not let us look, at an exited process of our own neither. Empty when it
        has none, or is gone.

    Platform: Linux.
    """
    folder = f"/proc/{pid}/fd/"
    if fd is not None and len(wanted) == 1:
        found = _first_try(folder, fd, wanted)
        if found is not None:
            return [found]
    return _scan(folder, wanted, standard)


def open_as_standard(pid: int, wanted: Mapping[str, Listener]) -> list[OpenListener]:
    """Return what `open_listeners` leaves out without `standard`. Empty also where we may not look."""
    folder = f"/proc/{pid}/fd/"
    return [found for fd in range(3) if (found := _first_try(folder, fd, wanted))]


def open_in_threads(pid: int, wanted: Mapping[str, Listener]) -> list[OpenListener]:
    """Return what `open_listeners` misses: a process whose main thread has ended shows no descriptors itself.

    Its other threads go on, and have what it had. Empty at once for a process that shows any descriptor.
    """
    try:
        if os.listdir(f"/proc/{pid}/fd"):
            return []
    except PermissionError:
        # A main thread that has ended has no memory left, and so belongs to root; its threads still do not.
        pass
    except OSError:
        return []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    for thread in threads:
        if thread == str(pid):
            continue
        found = _scan(f"/proc/{pid}/task/{thread}/fd/", wanted)
        if found is None or found:
            return found or []
    return []


def _first_try(folder: str, fd: int, wanted: Mapping[str, Listener]) -> OpenListener | None:
    try:
        listener = wanted.get(os.readlink(f"{folder}{fd}"))
    except OSError:
        return None
    return None if listener is None else OpenListener(fd, listener)


def _scan(folder: str, wanted: Mapping[str, Listener], standard: bool = True) -> list[OpenListener] | None:
    readlink = os.readlink
    found: list[OpenListener] = []
    try:
        names = os.listdir(folder)
    except PermissionError:
        return None
    except OSError:
        return found
    for name in names:
        if not standard and name in _STANDARD:
            continue
        try:
            link = readlink(folder + name)
        except PermissionError:
            return None
        except OSError:
            # Closed since the folder was listed.
            continue
        if link in wanted:
            found.append(OpenListener(int(name), wanted[link]))
    return found


def _by_sock_diag(port: int) -> list[Listener]:
    if sys.platform != "linux":
        raise LookFailed(f"port {port}", f"there is no sock_diag on {sys.platform}")
    found: list[Listener] = []
    try:
        netlink = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
    except OSError as err:
        raise LookFailed(f"port {port}", f"netlink: {errno_words(err.errno)}") from err
    try:
        # One after the other: a socket takes a second dump only when the first is through.
        for family, word, width in _FAMILIES:
            _dump(netlink, port, family, word, width, found)
    except OSError as err:
        raise LookFailed(f"port {port}", f"sock_diag: {errno_words(err.errno)}") from err
    finally:
        netlink.close()
    return found


def _dump(
    netlink: _socket.socket, port: int, family: int, word: str, width: int, found: list[Listener]
) -> None:
    """Ask for the listeners of one family, and append them to `found`."""
    length = _REQUEST.size + 48
    request = _REQUEST.pack(
        length,
        _SOCK_DIAG_BY_FAMILY,
        _NLM_F_REQUEST_DUMP,
        family,
        0,
        family,
        _socket.IPPROTO_TCP,
        1 << _TCP_LISTEN,
    )
    # Of the 48 bytes that name a socket only the source port is set, so only it is compared.
    netlink.send(request + port.to_bytes(2, "big") + bytes(46))
    while True:
        data = netlink.recv(_RECEIVE_BYTES)
        at = 0
        while at + _HEADER.size <= len(data):
            size, kind, _, sequence, _ = _HEADER.unpack_from(data, at)
            body, end = at + _HEADER.size, at + size
            if size < _HEADER.size or end > len(data) or sequence != family:
                raise LookFailed(f"port {port}", "sock_diag: an answer we cannot read")
            if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                code = int.from_bytes(data[body : body + 4], sys.byteorder, signed=True)
                if code < 0 or kind == _NLMSG_ERROR:
                    raise OSError(-code, os.strerror(-code))
                return
            if kind == _NLMSG_OVERRUN:
                raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
            if kind == _SOCK_DIAG_BY_FAMILY and size >= _HEADER.size + _MESSAGE_BYTES:
                listener = _read_message(data[body:end], word, width)
                if listener.port == port:
                    found.append(listener)
            at += (size + 3) & ~3


def _read_message(message: bytes, word: str, width: int) -> Listener:
    """Read a ``struct inet_diag_msg`` and the attributes behind it."""
    uid, inode = struct.unpack_from("=II", message, 64)
    v6only: bool | None = None
    at = _MESSAGE_BYTES
    while width == 16 and at + 5 <= len(message):
        size, kind = struct.unpack_from("=HH", message, at)
        if kind == _INET_DIAG_SKV6ONLY:
            v6only = bool(message[at + 4])
        if size < 4:
            break
        at += (size + 3) & ~3
    family = _socket.AF_INET if width == 4 else _socket.AF_INET6
    address = _socket.inet_ntop(family, message[8 : 8 + width])
    return Listener(word, address, int.from_bytes(message[4:6], "big"), inode, uid, v6only)


def _by_table(port: int, folder: str) -> list[Listener]:
    """Read ``tcp`` and ``tcp6`` in a folder of procfs. Source: proc_pid_net(5)."""
    found: list[Listener] = []
    for family, word, _ in _FAMILIES:
        path = f"{folder}/tcp" if word == "IPv4" else f"{folder}/tcp6"
        try:
            with open(path, "rb") as file:
                lines = file.read().splitlines()[1:]
        except FileNotFoundError as err:
            # Without IPv6 there is no tcp6, and no such listener. Without tcp there is no table at all.
            if word == "IPv6" and os.path.exists(f"{folder}/tcp"):
                continue
            raise LookFailed(f"port {port}", f"{path}: {errno_words(err.errno)}") from err
        except OSError as err:
            raise LookFailed(f"port {port}", f"{path}: {errno_words(err.errno)}") from err
        for line in lines:
            fields = line.split()
            if len(fields) < 10 or int(fields[3], 16) != _TCP_LISTEN:
                continue
            address, _, number = fields[1].partition(b":")
            if int(number, 16) == port:
                packed = _from_words(address)
                text = _socket.inet_ntop(family, packed)
                found.append(Listener(word, text, port, int(fields[9]), int(fields[7])))
    return found


def _from_words(text: bytes) -> bytes:
    """Turn the table's 32-bit words, printed as native numbers, into an address in network order."""
    words = (int(text[at : at + 8], 16) for at in range(0, len(text), 8))
    return b"".join(word.to_bytes(4, sys.byteorder) for word in words)
