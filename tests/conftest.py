"""What every test gets: a state folder of its own, no inherited mark, and a look at what it left open."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

MARK_PREFIX: Final = "BIRTHMARK_"
LINUX: Final = sys.platform == "linux"

# Nothing here is about time, examples are not carried from run to run, and CI sees the same ones each time.
settings.register_profile(
    "birthmark",
    deadline=None,
    database=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    print_blob=True,
)
settings.load_profile("birthmark")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run an async test under both event loops."""
    name: str = request.param
    return name


@pytest.fixture
def as_root() -> None:
    """Skip the test, with the reason, unless we have root's rights over other users."""
    if why := not_root():
        pytest.skip(why)


@cache
def not_root() -> str:
    """Return why we are not root; empty if we are, and other users exist for us."""
    if sys.platform == "win32" or os.geteuid() != 0:
        return "needs root"
    if LINUX:
        # In a user namespace of one, uid 0 is only our own user under another name.
        mapped = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
        if mapped < 65536:
            return f"needs root over other users; this user namespace has {mapped}"
    return ""


@cache
def no_namespaces() -> str:
    """Return why a test cannot make namespaces of its own; empty if it can."""
    if not LINUX:
        return "namespaces are Linux's"
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user, "--pid", "--net", "--mount", "--fork", "--mount-proc", "true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except FileNotFoundError:
        return "unshare is missing (Debian package util-linux)"
    return "" if done.returncode == 0 else f"may not make namespaces: {done.stderr.strip()}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Turn the markers `root` and `namespaces` into a skip with a reason."""
    for marker, ask in (("root", not_root), ("namespaces", no_namespaces)):
        if item.get_closest_marker(marker) and (why := ask()):
            pytest.skip(why)


# -- what a test may not leave -------------------------------------------------


@pytest.fixture(autouse=True)
def no_descriptor_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test if a descriptor is open after it that was not open before.

    `@pytest.mark.keeps_descriptors` excuses a test that starts something which lives as long as the process.
    """
    before = descriptors()
    yield
    if descriptors().items() <= before.items():
        return
    gc.collect()  # what nobody holds any more is not a leak, only not yet collected
    left = {fd: what for fd, what in descriptors().items() if before.get(fd) != what}
    if left and not request.node.get_closest_marker("keeps_descriptors"):
        pytest.fail(f"descriptors left open: {left}", pytrace=False)


def descriptors() -> dict[int, str]:
    """Return our open descriptors and what each is; empty where the system does not list them."""
    found: dict[int, str] = {}
    if not LINUX:
        return found
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the one that listed
            continue
    return found


def children() -> list[int]:
    """Return the pids of this process's children, unreaped ones included; empty where there is no /proc."""
    found: list[int] = []
    if LINUX:
        for task in os.listdir("/proc/self/task"):
            try:
                found += map(int, Path(f"/proc/self/task/{task}/children").read_text().split())
            except OSError:  # the thread has ended; its children are another thread's now
                continue
    return found


first_seen: Final[dict[int, str]] = {}
"""Which test had just ended when a child was first seen alive."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid: str) -> None:
    for pid in children():
        first_seen.setdefault(pid, nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if a child of this process is left, zombies included."""
    left = [f"{describe(pid)}, first seen after {first_seen.get(pid, 'the last test')}" for pid in children()]
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.section("processes left by the tests", red=True)
            for line in left:
                reporter.line(line, red=True)


def describe(pid: int) -> str:
    """Return a line about a process, for a person."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return f"{pid} (just gone)"
    return f"{pid} {line or f'[{name}]'} ({state})"


# -- what a test starts from ---------------------------------------------------

numbers: Final = itertools.count()


@pytest.fixture(autouse=True)
def birthmark_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test an installation of its own and none of the mark this process may carry.

    The folder's name is short, and it is not under `tmp_path`: a socket's path may have 107 bytes, and tests have
    long names. It does not exist yet, as on a new machine.
    """
    for name in [name for name in os.environ if name.startswith(MARK_PREFIX)]:
        monkeypatch.delenv(name)
    home = tmp_path_factory.getbasetemp() / f"h{next(numbers)}"
    monkeypatch.setenv("BIRTHMARK_HOME", str(home))
    return home
