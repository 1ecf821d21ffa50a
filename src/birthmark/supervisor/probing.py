"""Ready is told, never guessed: by living on, by a line, by a listener of its own, by an answer."""

from __future__ import annotations

from enum import Enum
from typing import Final
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from birthmark.children.ports import PortAnswer, PortState
from birthmark.config.model import ReadyKind
from birthmark.supervisor.house import House
from birthmark.supervisor.leases import held_by, look_at
from birthmark.supervisor.running import Running

FIRST_LOOK_S: Final = 0.02
SLOWEST_LOOK_S: Final = 0.5
"""Between these two the gap between looks doubles while a service starts."""


class Answer(Enum):
    """What one probe of a starting service gave."""

    READY = "ready"
    NOT_YET = "not_yet"
    STRANGER = "stranger"
    """Somebody else answers on its port."""


class NotReady(Exception):
    """It did not become ready; `stranger` when that is because somebody else has its port."""

    def __init__(self, why: str, *, stranger: bool = False) -> None:
        super().__init__(why)
        self.why, self.stranger = why, stranger


async def wait_ready(house: House, running: Running) -> str:
    """Wait until the service is ready, and return how that was told.

    Ends by itself at the start deadline; an exit is somebody else's to notice, and cancels this.

    Raises:
        NotReady: The deadline passed, or a stranger holds its port.
    """
    ready = running.spec.ready
    if ready.kind is ReadyKind.PROCESS:
        await anyio.sleep(ready.alive_s)
        return f"alive for {ready.alive_s:g} s"
    last = "it has not been asked yet"
    gap_s = FIRST_LOOK_S
    with anyio.move_on_after(ready.deadline_s):
        while True:
            # No event tells of a listener, so it is looked for; each look costs a fraction of a millisecond.
            answer, last = await _ask(house, running)
            if answer is Answer.READY:
                return last
            if answer is Answer.STRANGER:
                raise NotReady(last, stranger=True)
            await anyio.sleep(gap_s)
            gap_s = min(gap_s * 2, SLOWEST_LOOK_S)
    raise NotReady(f"not ready within {ready.deadline_s:g} s: {last}")


async def _ask(house: House, running: Running) -> tuple[Answer, str]:
    match running.spec.ready.kind:
        case ReadyKind.LOG:
            if running.watch is not None and running.watch.seen:
                return Answer.READY, "its log says so"
            return Answer.NOT_YET, f"no line matches {running.spec.ready.pattern!r} yet"
        case ReadyKind.TCP:
            return await _own_listener(house, running)
        case _:
            told, words = await _own_listener(house, running)
            if told is not Answer.READY:
                return told, words
            return await _http(running)


async def _own_listener(house: House, running: Running) -> tuple[Answer, str]:
    """Ask whether its port is held by its own set: a listener that answers proves nothing about whose it is."""
    port = running.spec.port
    if port is None:
        return Answer.NOT_YET, "it has no port to be asked on"
    return await anyio.to_thread.run_sync(_judge_port, house, running, port)


def _judge_port(house: House, running: Running, port: int) -> tuple[Answer, str]:
    answer: PortAnswer = look_at(port, [running.child.pid])
    if answer.state is PortState.NOBODY:
        return Answer.NOT_YET, str(answer)
    if answer.state is PortState.HELD and not answer.unseen:
        if not running.strangers(answer):
            return Answer.READY, f"it listens on port {port}"
        # A holder may have come and gone while it was looked at: only one that is still there counts.
        again = look_at(port, [running.child.pid])
        if running.strangers(again):
            return Answer.STRANGER, str(held_by(house, again))
        return Answer.NOT_YET, str(again)
    return Answer.NOT_YET, f"port {port} answers, and who holds it cannot be seen ({answer})"


def _address(running: Running, port: int) -> str:
    """Return an address on which a listener of the port answers from here."""
    for listener in look_at(port, [running.child.pid]).listeners:
        if listener.address not in ("0.0.0.0", "::"):
            return listener.address
        return "127.0.0.1" if listener.family != "IPv6" else "::1"
    return "127.0.0.1"


async def _http(running: Running) -> tuple[Answer, str]:
    """Ask for one page. Any answer below 500 is one: a server that wants a token, or another method, is up."""
    ready, port = running.spec.ready, running.spec.port
    assert port is not None
    url = urlsplit(running.spec.url or "")
    path = ready.path or url.path or "/"
    # Asked where it listens, not where its url points: that may be a proxy's, or a name of another host.
    host = await anyio.to_thread.run_sync(_address, running, port)
    request = f"GET {path} HTTP/1.1\r\nHost: {url.hostname or host}:{port}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    try:
        with anyio.fail_after(ready.timeout_s):
            async with await anyio.connect_tcp(host, port) as stream:
                await stream.send(request.encode("ascii", "backslashreplace"))
                head = b""
                while b"\r\n" not in head and len(head) < 4096:
                    head += await stream.receive(4096)
    except TimeoutError:
        return Answer.NOT_YET, f"no answer to GET {path} within {ready.timeout_s:g} s"
    except (OSError, anyio.EndOfStream, anyio.BrokenResourceError) as err:
        return Answer.NOT_YET, f"GET {path}: {err or type(err).__name__}"
    words = head.split(b"\r\n", 1)[0].decode("ascii", "replace").split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
        return Answer.NOT_YET, f"what answers on port {port} does not speak HTTP"
    told = f"GET {path} answers {words[1]}"
    return (Answer.READY if int(words[1]) < 500 else Answer.NOT_YET), told
