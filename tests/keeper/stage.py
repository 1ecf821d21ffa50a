"""An owner in a process of its own, which can be killed, and a payload that leaves a daemon behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import birthmark
from birthmark.children.command import new_birth
from birthmark.children.installation import Installation, open_installation
from birthmark.core.outcomes import Basis, ExitStatus, Warrant
from birthmark.core.service import BirthId
from birthmark.errors import LookFailed, ProcessGone, SupervisionError
from birthmark.platforms import load
from birthmark.platforms.contract import Pinned

WITHIN_S: Final = 20.0
"""How long anything may take: two interpreters start, on a machine that runs other tests beside it."""

GRACE_S: Final = 0.3
"""The grace of the payload, which a daemon deaf to TERM always uses up."""

PAYLOAD: Final = """\
echo started >> "$0"
(trap '' TERM HUP INT; setsid sleep 1000 &)
trap 'exit 7' TERM
while :; do sleep 1000 & wait $!; done
"""
"""A shell script: a leader that ends with code 7 when asked to, a worker in its group, and, in a session of its
own and double-forked, a daemon that only KILL ends. All of them hold the lifeline, descriptor 3."""

_OWNER: Final = """\
import sys
sys.path.insert(0, sys.argv[1])
import json, os, time
from pathlib import Path
from birthmark.children.command import Command, Session, mark_child
from birthmark.core.markers import ChildKind
from birthmark.core.policies import DeathPolicy, StopPolicy
from birthmark.core.service import ServiceName, birth_id, installation_id
from birthmark.errors import WorkerLost
from birthmark.keeper.owner import Nursery
from birthmark.platforms.launch import LaunchFailed

def tell(**words):
    os.write(1, json.dumps(words).encode() + b"\\n")

order = json.loads(sys.stdin.buffer.readline())
if order["no_pidfds"]:
    sys.path.append(order["no_pidfds"])
    from tests.seccomp import forbid_pidfds
    forbid_pidfds()
birth, installation = birth_id(order["birth"]), installation_id(order["installation"])
nursery = Nursery(run=Path(order["run"]), births=Path(order["births"]))
null = os.open(os.devnull, os.O_RDWR)
if order["warm"]:
    first = nursery.bear(
        Command("/bin/true", env={}).to_launch([(null, 0), (null, 1), (null, 2)]), birth=birth_id(order["warm"]),
        installation=installation, kind=ChildKind.MCP, service=ServiceName("warm"))
    first.wait_ended(order["within_s"])
    while os.path.exists(f"/proc/{first.keeper_identity.pid}"):
        time.sleep(0.001)
    first.close()
tell(nursery=nursery.pid)
sys.stdin.buffer.readline()
command = mark_child(
    Command("/bin/sh", "-c", order["script"], order["started"], env={"PATH": os.environ.get("PATH", os.defpath)},
            session=Session.NEW_SESSION),
    ChildKind.MCP, "staged", installation=installation, birth=birth)
launch = command.to_launch([(null, 0), (null, 1), (null, 2), (order["lifeline"], 3)])
kept = None
try:
    kept = nursery.bear(
        launch, birth=birth, installation=installation, kind=ChildKind.MCP, service=ServiceName("staged"),
        stop=StopPolicy(term_grace_s=order["grace_s"], settle_s=5.0),
        death=DeathPolicy(**order["death"]), epoch=order["epoch"])
    os.close(order["lifeline"])
    fork = os.fork() if order["fork"] else 0
    if order["fork"] and not fork:
        sys.stdin.buffer.readline()
        os._exit(0)
    tell(born=kept.identity.to_dict(), keeper=kept.keeper_identity.pid, proven=kept.proven, fork=fork)
except LaunchFailed as err:
    os.close(order["lifeline"])
    tell(not_born=str(err))
except WorkerLost as err:
    os.close(order["lifeline"])
    tell(unknown=str(err))
if sys.stdin.buffer.readline():
    try:
        if kept is None:
            raise WorkerLost("nobody")
        ended = kept.stop(asked_by="the test", timeout_s=order["within_s"])
        tell(ended=ended._asdict())
    except WorkerLost as err:
        try:
            lost = nursery.lost(order["within_s"] if kept is not None else 1.0)
            tell(lost=None if lost is None else lost._asdict())
        except WorkerLost:
            tell(sweep=True)
"""


def pin(pid: int) -> Pinned | None:
    """Take hold of a process, or return None when it is gone."""
    try:
        return load().pin(pid)
    except (ProcessGone, LookFailed):
        return None


def kill(pinned: Pinned) -> None:
    """End a process the test started, itself or by somebody it started."""
    try:
        load().deliver(pinned, signal.SIGKILL, Warrant(basis=Basis.CALLER, asked_by="a test"))
    except SupervisionError:
        pass  # it was faster


def wait_gone(pinned: Pinned, what: str, within_s: float = WITHIN_S) -> None:
    """Wait until a process has exited, reaped or not."""
    fd = load().exit_fd(pinned)
    assert fd is not None
    assert select.select([fd], [], [], within_s)[0], f"the {what} ({pinned.pid}) is still there"


@dataclass
class Stage:
    """One owner with one birth to come."""

    installation: Installation
    birth: BirthId
    process: subprocess.Popen[bytes]
    started: Path
    lifeline: int
    owner: Pinned
    nursery: Pinned
    _lines: bytes = b""
    _held: list[Pinned] = field(default_factory=list)

    def say(self, line: str = "") -> None:
        """Have the owner take its next step."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it was killed

    def hear(self, within_s: float = WITHIN_S) -> dict[str, Any] | None:
        """Return the owner's next line; None when it has ended."""
        assert self.process.stdout is not None
        found, self._lines = _line(self.process.stdout, self._lines, within_s)
        return found

    def keeper(self) -> Pinned | None:
        """Return the keeper, as soon as there is one."""
        for pid in load().children_of(self.nursery.pid):
            return self.hold(pid)
        return None

    def child_of(self, keeper: Pinned) -> Pinned | None:
        """Return the child of a keeper, as soon as there is one."""
        for pid in load().children_of(keeper.pid):
            if load().group_of(pid) == pid:
                return self.hold(pid)
        return None

    def hold(self, pid: int) -> Pinned | None:
        """Pin a process until the stage is cleared."""
        pinned = pin(pid)
        if pinned is not None:
            self._held.append(pinned)
        return pinned

    def starts(self) -> int:
        """Return how often the payload has begun."""
        return len(self.started.read_text().splitlines()) if self.started.exists() else 0

    def paper(self, name: str) -> dict[str, Any] | None:
        """Return one paper of the birth; None when it is not there."""
        try:
            found: dict[str, Any] = json.loads(
                (self.installation.births / self.birth / f"{name}.json").read_text()
            )
        except FileNotFoundError:
            return None
        return found

    def exit(self) -> ExitStatus | None:
        """Return how the birth ended, as its record says; None without one."""
        paper = self.paper("exit")
        return None if paper is None else ExitStatus(**paper["exit"])

    def is_gone(self) -> bool:
        """Say whether nobody holds the lifeline."""
        return bool(select.select([self.lifeline], [], [], 0)[0]) and not os.read(self.lifeline, 1)

    def wait_all_gone(self, within_s: float = WITHIN_S) -> None:
        """Wait until nobody holds the lifeline: not the payload, none of its processes, nobody on the way to it."""
        deadline = time.monotonic() + within_s
        while True:
            left = max(0.0, deadline - time.monotonic())
            assert select.select([self.lifeline], [], [], left)[0], "somebody of the set is still there"
            if not os.read(self.lifeline, 4096):
                return


def _line(source: IO[bytes], had: bytes, within_s: float) -> tuple[dict[str, Any] | None, bytes]:
    deadline = time.monotonic() + within_s
    while b"\n" not in had:
        left = max(0.0, deadline - time.monotonic())
        assert select.select([source], [], [], left)[0], "the owner says nothing"
        part = os.read(source.fileno(), 65536)
        if not part:
            return None, b""
        had += part
    line, _, rest = had.partition(b"\n")
    return json.loads(line), rest


@contextmanager
def stage(
    folder: Path,
    *,
    script: str = PAYLOAD,
    grace_s: float = GRACE_S,
    outlive: bool = False,
    for_s: float | None = None,
    epoch: int = 1,
    fork_first: bool = False,
    no_pidfds: bool = False,
    warm: bool = False,
) -> Iterator[Stage]:
    """Start an owner and its nursery; each `say()` is one step: the birth, then the stop.

    With `warm` another child has been born and has ended before, so that the birth takes what births take, and not
    the start of a nursery beside it.

    Whatever is left at the end is ended: the keeper by the loss of its owner, everybody else by KILL.
    """
    installation = open_installation(folder / "home")
    birth = new_birth()
    ours, theirs = os.pipe()
    root = str(Path(birthmark.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _OWNER, root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[theirs],
        start_new_session=True,
    )
    os.close(theirs)
    assert process.stdin is not None
    assert process.stdout is not None
    owner = load().pin(process.pid)
    found: Stage | None = None
    try:
        order = {
            "birth": birth, "installation": installation.id, "script": script, "grace_s": grace_s,
            "run": str(installation.run), "births": str(installation.births), "lifeline": theirs,
            "death": {"outlive": outlive, "for_s": for_s}, "epoch": epoch, "within_s": WITHIN_S,
            "warm": new_birth() if warm else "", "fork": fork_first,
            "no_pidfds": str(Path(__file__).parents[2]) if no_pidfds else "",
            "started": str(folder / f"started-{birth}"),
        }  # fmt: skip
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        word, rest = _line(process.stdout, b"", WITHIN_S)
        assert word is not None, "the owner did not start its nursery"
        nursery = load().pin(word["nursery"])
        found = Stage(installation, birth, process, folder / f"started-{birth}", ours, owner, nursery, rest)
        yield found
    finally:
        kill(owner)
        process.wait(WITHIN_S)
        owner.close()
        process.stdin.close()
        process.stdout.close()
        if found is not None:
            keeper = None if load().exited(found.nursery) else found.keeper()
            for pinned in (*found._held, *([keeper] if keeper else ())):
                kill(pinned)
            # With its owner and its keepers gone it ends by itself, and ends what they left.
            try:
                wait_gone(found.nursery, "nursery")
            finally:
                for carrier in _carriers(found):
                    kill(carrier)
                    carrier.close()
                kill(found.nursery)
                for pinned in {id(each): each for each in found._held}.values():
                    pinned.close()
                found.nursery.close()
        os.close(ours)


def _carriers(found: Stage) -> list[Pinned]:
    from birthmark.children.proving import sweep

    return [pinned for pinned, _ in sweep([found.birth], found.installation.id)]
