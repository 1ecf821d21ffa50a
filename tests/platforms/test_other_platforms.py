"""macOS, Windows and the rest, as far as Linux can stand in: they import here, and their pure parts run.

What a Mac or Windows answers is given as bytes and stubs. Nothing here says that the systems behave so.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Final

import psutil
import pytest

from birthmark.core.identity import (
    EnvironState,
    HostFacts,
    Reason,
    Verdict,
)
from birthmark.core.judging import judge
from birthmark.core.lineage import Born, descendants
from birthmark.core.markers import ChildKind, entry, mark_entries
from birthmark.core.outcomes import Basis, Delivery, Warrant
from birthmark.core.service import ServiceName, birth_id, installation_id
from birthmark.errors import LookFailed, NotSignalable, ProcessGone, SignalFailed, Unsupported
from birthmark.platforms import darwin, unsupported, winapi, windows
from birthmark.platforms.contract import Pinned, ProcessControl
from tests.namespaces import ROOT

BIRTH: Final = birth_id("0123456789abcdef" * 2)
OURS: Final = installation_id("aa" * 16)
MARKS: Final = mark_entries(kind=ChildKind.MCP, service=ServiceName("time"), installation=OURS, birth=BIRTH)
BLOCK: Final = b"".join(entry(name, value) + b"\0" for name, value in MARKS.items())
CALLER: Final = Warrant(basis=Basis.CALLER, asked_by="a test")


def promised() -> set[str]:
    return {name for name, value in vars(ProcessControl).items() if callable(value) and name[0] != "_"}


@pytest.mark.parametrize("module", [darwin, windows, unsupported])
def test_a_platform_module_keeps_every_promise_by_name(module: ModuleType) -> None:
    assert promised() - set(module.__all__) == set()
    assert {name for name in module.__all__ if not hasattr(module, name)} == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "modules"),
    [
        ("darwin", ["darwin", "posix", "windows", "unsupported"]),
        ("win32", ["windows", "winapi", "unsupported"]),
    ],
)
def test_a_platform_module_is_typed_on_its_own_system(system: str, modules: list[str]) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--platform", system, "--cache-dir", os.devnull]
    command += [f"src/birthmark/platforms/{name}.py" for name in modules]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stdout


# The rest: it fails closed.


@pytest.mark.parametrize(
    "call",
    [
        unsupported.facts,
        unsupported.all_pids,
        lambda: unsupported.pin(1),
        lambda: unsupported.observe(Pinned(1, None, 0)),
        lambda: unsupported.exited(Pinned(1, None, 0)),
        lambda: unsupported.start_ticks_of(1),
        lambda: unsupported.parent_of(1),
        lambda: unsupported.children_of(1),
        lambda: unsupported.group_members(1),
        lambda: unsupported.reap(1),
        lambda: unsupported.deliver(Pinned(2, None, 0), 0, CALLER),
        lambda: unsupported.adopt_pidfd(1, 1),
    ],
)
def test_an_unknown_system_identifies_and_signals_nothing(call: Callable[[], object]) -> None:
    with pytest.raises(Unsupported, match=sys.platform):
        call()


def test_an_unknown_system_says_no_where_no_is_an_answer() -> None:
    assert unsupported.own_environ() is None
    assert unsupported.glance(1) == (None, b"")
    assert not unsupported.is_zombie(1)
    assert not unsupported.is_our_child(1)
    assert not unsupported.become_subreaper()
    assert unsupported.capabilities().notes
    with pytest.raises(ValueError, match="0"):
        unsupported.pin(0)


# macOS.


def bsdinfo(
    pid: int, *, ppid: int = 1, status: int = 2, start: tuple[int, int] = (1_700_000_000, 250_000)
) -> bytes:
    words = [0, status, 0, pid, ppid, 501, 20, 501, 20, 501, 20, 0]
    return struct.pack("=12I16s32s6I2Q", *words, b"srv", b"srv", 3, pid, 0, 0, 0, 0, *start)


def procargs(environ: bytes) -> bytes:
    return struct.pack("=i", 1) + b"/bin/srv\0\0\0\0srv\0" + environ + b"\0ptr_munge=7\0"


class Mac:
    """What libproc and sysctl say about each pid; a missing one is gone."""

    def __init__(self) -> None:
        self.info: dict[int, bytes] = {}
        self.args: dict[int, bytes | None] = {}

    def bsdinfo(self, pid: int) -> darwin.BsdInfo | None:
        raw = self.info.get(pid)
        if raw == b"":
            raise LookFailed(f"process {pid}", "Operation not permitted")
        return None if raw is None else darwin.parse_bsdinfo(raw)


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Mac:
    world = Mac()
    monkeypatch.setattr(darwin, "_bsdinfo", world.bsdinfo)
    monkeypatch.setattr(darwin, "_procargs2", lambda pid: world.args.get(pid))
    monkeypatch.setattr(darwin, "_facts", HostFacts("mac", "boot", 0))
    monkeypatch.setattr(darwin, "session_of", lambda pid: pid)
    return world


def test_libprocs_answer_is_read_field_by_field() -> None:
    assert len(bsdinfo(77)) == 136
    assert darwin.parse_bsdinfo(bsdinfo(77, ppid=5, status=5)) == darwin.BsdInfo(
        status=5, pid=77, ppid=5, pgid=77, start_us=1_700_000_000_250_000
    )
    assert darwin.parse_bsdinfo(bsdinfo(77)[:-1]) is None
    assert darwin.parse_bsdinfo(b"") is None


@pytest.mark.parametrize(
    "blob", [None, b"", procargs(b""), procargs(b"\0"), procargs(b"junk\0"), b"\xff" * 3]
)
def test_an_environment_that_macos_withholds_is_unknown_never_unmarked(blob: bytes | None) -> None:
    assert darwin.environ_state(blob) == (EnvironState.UNSUPPORTED, b"")


def test_a_readable_environment_is_the_block_without_the_loaders_strings() -> None:
    assert darwin.environ_state(procargs(BLOCK)) == (EnvironState.READABLE, BLOCK)


def pinned_on_mac(mac: Mac, environ: bytes | None) -> Pinned:
    mac.info[77], mac.args[77] = bsdinfo(77), None if environ is None else procargs(environ)
    return Pinned(77, None, 1_700_000_000_250_000)


def test_a_marked_process_on_macos_is_the_same_by_its_mark(mac: Mac) -> None:
    seen = darwin.observe(pinned_on_mac(mac, BLOCK))
    assert seen is not None
    assert (seen.start_ticks, seen.inode, seen.tag, seen.pgid) == (1_700_000_000_250_000, None, None, 77)
    identity = seen.identity(birth=BIRTH, installation=OURS, kind=ChildKind.MCP, service=ServiceName("time"))
    assert judge(identity, seen).reason is Reason.MARK_OF_THIS_BIRTH


def test_a_start_one_microsecond_off_is_another_process(mac: Mac) -> None:
    pinned = pinned_on_mac(mac, BLOCK)
    mac.info[77] = bsdinfo(77, start=(1_700_000_000, 250_001))
    assert darwin.observe(pinned) is None
    assert darwin.exited(pinned)
    assert darwin.start_ticks_of(77) == 1_700_000_000_250_001


def test_a_zombie_on_macos_has_exited(mac: Mac) -> None:
    pinned = pinned_on_mac(mac, None)
    mac.info[77] = bsdinfo(77, status=5)
    seen = darwin.observe(pinned)
    assert seen is not None
    assert (seen.exited, seen.state) == (True, "Z")
    assert darwin.exited(pinned)
    assert darwin.is_zombie(77)


def test_what_libproc_denies_could_not_be_looked_at_and_is_not_gone(mac: Mac) -> None:
    mac.info[1] = b""
    with pytest.raises(LookFailed):
        darwin.start_ticks_of(1)
    with pytest.raises(LookFailed):
        darwin.observe(Pinned(1, None, 5))
    assert not darwin.is_zombie(1)


@pytest.mark.parametrize("pid", [0, -1, 2**31])
def test_no_number_outside_the_range_is_pinned_on_macos(pid: int) -> None:
    with pytest.raises(ValueError, match=str(pid)):
        darwin.pin(pid)


def test_the_glance_and_our_own_block_come_from_the_same_place(mac: Mac) -> None:
    mac.args[os.getpid()] = mac.args[77] = procargs(BLOCK)
    assert darwin.glance(77) == (None, BLOCK)
    assert darwin.own_environ() == BLOCK
    mac.args[os.getpid()] = procargs(b"")
    assert darwin.own_environ() is None


class Stub:
    """A psutil.Process that answers as macOS makes it: refusing, gone, a zombie, or with nothing."""

    answer: object = None

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def ask(self) -> object:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def ppid(self) -> object:
        return self.ask()

    def cmdline(self) -> object:
        return self.ask()

    def environ(self) -> object:
        return self.ask()

    def name(self) -> str:
        return "srv"


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> type[Stub]:
    class Answering(Stub):
        pass

    monkeypatch.setattr(psutil, "Process", Answering)
    return Answering


@pytest.mark.parametrize("module", [darwin, windows])
def test_a_refused_look_is_not_an_absence(module: ModuleType, stub: type[Stub]) -> None:
    stub.answer = psutil.AccessDenied(77)
    with pytest.raises(LookFailed):
        module.parent_of(77)
    assert module.command_line(77) == ""


@pytest.mark.parametrize("module", [darwin, windows])
def test_what_psutil_does_not_find_is_gone(module: ModuleType, stub: type[Stub]) -> None:
    stub.answer = psutil.NoSuchProcess(77)
    assert module.parent_of(77) is None
    stub.answer = []
    assert module.command_line(77) == "[srv]"
    stub.answer = ["a b", "\n"]
    assert module.command_line(77) == r"a b \x0a"


def test_a_zombies_command_line_is_unknown(stub: type[Stub]) -> None:
    stub.answer = psutil.ZombieProcess(77)
    assert darwin.command_line(77) == ""


# Windows.


class Kernel32:
    """A kernel32 whose processes are rows: pid to creation time. Handles are pid + 1000 * generation."""

    def __init__(self) -> None:
        self.born: dict[int, int] = {}
        self.denied: set[int] = set()
        self.handles: dict[int, tuple[int, int]] = {}
        self.ended: list[int] = []
        self.jobs: dict[int, list[int]] = {}
        self.error = 0

    def OpenProcess(self, rights: int, inherit: bool, pid: int) -> int:
        if pid in self.denied:
            self.error = winapi.ERROR_ACCESS_DENIED
            return 0
        if pid not in self.born:
            self.error = winapi.ERROR_INVALID_PARAMETER
            return 0
        handle = 1000 + len(self.handles)
        self.handles[handle] = (pid, self.born[pid])
        return handle

    def CloseHandle(self, handle: int) -> int:
        if handle not in self.jobs:
            del self.handles[handle]
        return 1

    def GetProcessTimes(self, handle: int, created: object, *rest: object) -> int:
        ctypes.cast(created, ctypes.POINTER(ctypes.c_uint64))[0] = self.handles[handle][1]  # type: ignore[arg-type]
        return 1

    def WaitForSingleObject(self, handle: int, timeout: int) -> int:
        pid, born = self.handles[handle]
        return 258 if self.born.get(pid) == born else winapi.WAIT_OBJECT_0

    def TerminateProcess(self, handle: ctypes.c_void_p, code: object) -> int:
        pid, born = self.handles[handle.value or 0]
        assert self.born.get(pid) == born, "a handle of something else was used"
        self.ended.append(pid)
        del self.born[pid]
        return 1

    def CreateJobObjectW(self, security: object, name: object) -> int:
        job = 5000 + len(self.jobs)
        self.jobs[job] = []
        return job

    def SetInformationJobObject(self, job: int, what: int, limits: object, size: int) -> int:
        return 1

    def AssignProcessToJobObject(self, job: int, handle: int) -> int:
        self.jobs[job].append(self.handles[handle][0])
        return 1

    def TerminateJobObject(self, job: ctypes.c_void_p, code: object) -> int:
        self.ended += self.jobs[job.value or 0]
        return 1


class Windows:
    """A small Windows: a kernel32 and psutil's table of parents."""

    def __init__(self) -> None:
        self.kernel = Kernel32()
        self.parents: dict[int, int] = {}
        self.environ: dict[int, dict[str, str]] = {}
        self.between: Callable[[], None] = lambda: None

    def add(self, pid: int, ppid: int, born: int) -> None:
        self.kernel.born[pid] = born
        self.parents[pid] = ppid

    def process(self, pid: int) -> object:
        world = self

        class Process:
            def ppid(self) -> int:
                if pid not in world.parents:
                    raise psutil.NoSuchProcess(pid)
                return world.parents[pid]

            def environ(self) -> dict[str, str]:
                return world.environ[pid]

        return Process()


@pytest.fixture
def win(monkeypatch: pytest.MonkeyPatch) -> Iterator[Windows]:
    def never(*arguments: object) -> None:
        raise AssertionError(
            f"os.kill{arguments} was reached: on Windows, signal 0 is a Ctrl-C to the console"
        )

    world = Windows()
    monkeypatch.setattr(os, "kill", never)
    monkeypatch.setattr(winapi, "kernel32", lambda: world.kernel)
    monkeypatch.setattr(winapi, "last_error", lambda: world.kernel.error)
    monkeypatch.setattr(psutil, "Process", world.process)
    monkeypatch.setattr(psutil, "pids", lambda: sorted({0, *world.kernel.born}))
    monkeypatch.setattr(windows, "facts", lambda: HostFacts("pc", "42", 0))
    monkeypatch.setattr(windows, "_jobs", {})
    world.add(500, 4, 10)
    world.add(os.getpid(), 500, 20)
    yield world
    assert world.kernel.handles == {}, "a handle was left open"


def test_a_process_is_pinned_by_a_handle_and_its_creation_time(win: Windows) -> None:
    win.add(77, os.getpid(), 100)
    with windows.pin(77) as held:
        assert held.start_ticks == windows.start_ticks_of(77) == 100
        assert not windows.exited(held)
        del win.kernel.born[77]
        assert windows.exited(held)
        assert windows.observe(held) is None
    assert windows.start_ticks_of(77) is None
    with pytest.raises(ProcessGone):
        windows.pin(77)


def test_a_process_we_may_not_open_could_not_be_looked_at_and_is_not_gone(win: Windows) -> None:
    win.add(77, 4, 100)
    win.kernel.denied.add(77)
    with pytest.raises(LookFailed):
        windows.pin(77)
    assert 77 in windows.all_pids()
    assert 0 not in windows.all_pids()


def test_a_marked_process_on_windows_is_the_same_and_an_empty_environment_is_unknown(win: Windows) -> None:
    win.add(77, os.getpid(), 100)
    win.environ[77] = dict(MARKS)
    with windows.pin(77) as held:
        seen = windows.observe(held)
        assert seen is not None
        identity = seen.identity(
            birth=BIRTH, installation=OURS, kind=ChildKind.MCP, service=ServiceName("time")
        )
        assert judge(identity, seen).reason is Reason.MARK_OF_THIS_BIRTH
        win.environ[77] = {}
        again = windows.observe(held)
        assert again is not None
        assert judge(identity, again).verdict is Verdict.UNKNOWN


def test_whatever_asks_to_leave_ends_the_held_process(win: Windows) -> None:
    win.add(77, os.getpid(), 100)
    win.add(78, 77, 101)
    with windows.pin(77) as held:
        assert windows.deliver(held, 0, CALLER) is Delivery.SENT
        assert windows.deliver(held, 15, CALLER) is Delivery.SENT
        assert win.kernel.ended == [77]
        assert windows.deliver(held, 15, CALLER) is Delivery.GONE
        assert windows.deliver(held, 0, CALLER) is Delivery.GONE


def test_a_recycled_number_is_never_ended_through_an_old_handle(win: Windows) -> None:
    win.add(77, os.getpid(), 100)
    with windows.pin(77) as held:
        win.add(77, 4, 200)
        assert windows.deliver(held, 9, CALLER) is Delivery.GONE
    assert win.kernel.ended == []


def test_a_signal_that_windows_does_not_have_is_an_error(win: Windows) -> None:
    win.add(77, os.getpid(), 100)
    with windows.pin(77) as held, pytest.raises(SignalFailed):
        windows.deliver(held, 30, CALLER)


def test_a_job_is_ended_as_a_whole(win: Windows) -> None:
    win.add(77, os.getpid(), 100)
    with windows.pin(77) as held:
        assert windows.hold_in_job(held)
        assert windows.deliver(held, 9, CALLER, group=True) is Delivery.SENT
        assert win.kernel.ended == [77]


def test_neither_ourselves_nor_ancestors_nor_the_system_are_ended(win: Windows) -> None:
    win.add(4, 0, 1)
    for pid in (os.getpid(), 500, 4):
        with windows.pin(pid) as held, pytest.raises(NotSignalable):
            windows.deliver(held, 9, CALLER)
    assert win.kernel.ended == []


def test_a_younger_process_with_our_parents_number_is_no_ancestor(win: Windows) -> None:
    win.add(500, 4, 30)  # our parent ended; its number was given away after our birth
    with windows.pin(500) as held:
        assert windows.deliver(held, 9, CALLER) is Delivery.SENT


def test_a_child_of_ours_is_younger_than_we_are(win: Windows) -> None:
    win.add(77, os.getpid(), 100)
    win.add(78, os.getpid(), 5)
    assert windows.is_our_child(77)
    assert not windows.is_our_child(78)
    assert windows.children_of(os.getpid()) == [77]
    assert not windows.is_our_child(0)


def test_descendants_of_a_cycle_end() -> None:
    table = [Born(1, 2, 5), Born(2, 1, 5), Born(3, 3, 5)]
    assert descendants(table[0], table) == [table[1]]
    assert descendants(table[2], table) == []
