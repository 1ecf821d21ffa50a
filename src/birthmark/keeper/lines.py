"""A keeper's connections: who controls it, who looks on, and that none of them can hold it up."""

from __future__ import annotations

import os
import select
import socket
from typing import Final

from birthmark.errors import LookFailed, ProcessGone
from birthmark.keeper import protocol
from birthmark.keeper.protocol import BadMessage, Message, Refused, Superseded
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned

AT_MOST: Final = 16
"""Connections at a time, beside the controlling one; the oldest gives way."""

_HANG_UP: Final = select.POLLHUP | select.POLLERR


class Line:
    """One connection. It never blocks: what the other end has no room for is dropped, and counted."""

    def __init__(self, connection: socket.socket, *, epoch: int | None = None) -> None:
        """Take over a connection; `epoch` for one that controls from the start."""
        connection.setblocking(False)
        self.connection = connection
        self.epoch = epoch
        self.missed = 0
        # The process at the other end, whose death is the end also where a fork of it still holds the socket.
        self.holder = _holder(connection)

    def tell(self, message: Message, descriptors: list[int] | None = None) -> bool:
        """Send a message; False when it was not taken."""
        try:
            protocol.send(self.connection, message, descriptors)
        except OSError:
            # It does not read, or is gone; the latter, its hang-up tells.
            self.missed += 1
            return False
        return True

    def close(self) -> None:
        """Let go of it."""
        self.connection.close()
        if self.holder is not None:
            self.holder.close()


class Lines:
    """All connections of one keeper, on its poller."""

    def __init__(
        self, poller: select.poll, listener: socket.socket, first: socket.socket, epoch: int
    ) -> None:
        """Begin with the connection of whoever ordered the birth, which controls."""
        self.epoch = epoch
        """The highest that ever controlled; nobody below it will."""
        self.controller: Line | None = None
        self._poller = poller
        self._listener = listener
        self._by_fd: dict[int, Line] = {}
        poller.register(listener, select.POLLIN)
        line = Line(first, epoch=epoch)
        if line.holder is None and _was_seen(first):
            # It died before we could take hold of it.
            line.close()
        else:
            self._add(line)
            self.controller = line

    def __contains__(self, fd: int) -> bool:
        return fd in self._by_fd

    @property
    def listener_fd(self) -> int:
        """The descriptor on which a newcomer is announced."""
        return self._listener.fileno()

    def accept(self) -> None:
        """Take in whoever has connected, if it is one of us."""
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it has gone again, or we have no descriptor left
        if not protocol.trusted(connection):
            connection.close()
            return
        self._add(Line(connection))
        others = [line for line in self._by_fd.values() if line is not self.controller]
        if len(others) > AT_MOST:
            self.drop(others[0])

    def hear(self, fd: int, what: int) -> tuple[Line, list[Message], bool]:
        """Read what has come on one of our descriptors.

        Returns:
            Whose line it is, what it says, and whether it has ended; then it is the caller's to drop it, once
            all it said has been answered, since its last words are still those of whoever controls.
        """
        line = self._by_fd[fd]
        heard: list[Message] = []
        # The death of its process ends a line also where a fork of it still holds the socket.
        over = bool(what & _HANG_UP) or (line.holder is not None and fd == line.holder.fd)
        while True:
            try:
                found = protocol.receive(line.connection)
            except BlockingIOError:
                return line, heard, over
            except BadMessage as err:
                line.tell(Refused(str(err)))
                return line, heard, True
            except OSError:
                found = None
            if found is None:
                return line, heard, True
            message, descriptors = found
            for each in descriptors:
                os.close(each)  # nothing we understand brings any
            heard.append(message)
            if len(heard) == AT_MOST and not over:
                return line, heard, False  # the rest in its turn

    def take_control(self, line: Line, epoch: int) -> str:
        """Let a line control; returns why not, empty when it does."""
        if epoch < self.epoch:
            return f"epoch {epoch} is over; {self.epoch} has been seen"
        if self.controller is not None and self.controller is not line:
            if epoch == self.epoch:
                return f"another connection of epoch {epoch} controls"
            self.controller.tell(Superseded(epoch))
            self.drop(self.controller)
        self.epoch = line.epoch = epoch
        self.controller = line
        return ""

    def tell(self, message: Message, descriptors: list[int] | None = None) -> bool:
        """Tell everybody; True when whoever controls has been told."""
        told = False
        for line in {id(line): line for line in self._by_fd.values()}.values():
            # Who has not said yet what it wants gets nothing but an answer.
            if line.epoch is not None and line.tell(message, descriptors):
                told = told or line is self.controller
        return told

    def close(self) -> None:
        """Let go of all of them."""
        for line in list(self._by_fd.values()):
            self.drop(line)
        self._listener.close()

    def _add(self, line: Line) -> None:
        self._by_fd[line.connection.fileno()] = line
        self._poller.register(line.connection, select.POLLIN)
        if line.holder is not None and line.holder.fd is not None:
            self._by_fd[line.holder.fd] = line
            self._poller.register(line.holder.fd, select.POLLIN)

    def drop(self, line: Line) -> None:
        """Close a line. Dropping twice is harmless."""
        for fd in [fd for fd, found in self._by_fd.items() if found is line]:
            del self._by_fd[fd]
            self._poller.unregister(fd)
        line.close()
        if line is self.controller:
            self.controller = None


def _was_seen(connection: socket.socket) -> bool:
    """Say whether the other end's process is in our pid namespace."""
    return protocol.peer(connection)[0] != 0


def _holder(connection: socket.socket) -> Pinned | None:
    """Take hold of the process at the other end; None when it is gone, or not to be seen from here.

    A number given away in between would belong to a stranger, whose end would then count. It takes a death
    and a full turn of the pids within the microseconds since the connection was made.
    """
    pid = protocol.peer(connection)[0]
    if pid == 0:
        return None
    try:
        return load().pin(pid)
    except (ProcessGone, LookFailed):
        return None
