"""`birthmark demo` as a user runs it: real servers from a package registry, real signals, nothing left."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from birthmark.interfaces.demo import play
from birthmark.interfaces.demo.installing import Installed
from birthmark.interfaces.demo.telling import Teller

INSTALLS_WITHIN_S: Final = 300
"""The first demo downloads some 60 MB."""
PLAYS_WITHIN_S: Final = 120
"""Three servers start twice, on a machine that runs other tests beside them."""

real = [pytest.mark.real_server, pytest.mark.slow, pytest.mark.timeout(INSTALLS_WITHIN_S + 60)]
linux = pytest.mark.skipif(sys.platform != "linux", reason="what is left is looked for in Linux's /proc")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's cache folder, empty until the first demo has filled it."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the demo's own folder is made; its path is in the environment of everything the demo starts."""
    place = tmp_path / "place"
    place.mkdir()
    return place


def environ(cache: Path, place: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": str(cache), "TMPDIR": str(place), **more}


@contextmanager
def demo(*options: str, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "birthmark", "demo", *options],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()  # which stops all that it started
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=PLAYS_WITHIN_S)
                process.kill()


def whole_demo(*options: str, env: dict[str, str]) -> tuple[int, str, str]:
    """Run a demo to its end; return its exit code and what it printed and said."""
    with demo(*options, env=env) as process:
        printed, said = process.communicate(timeout=INSTALLS_WITHIN_S)
    return process.returncode, printed, said


def alive_from(place: Path) -> dict[int, str]:
    """Return the processes, zombies not, whose environment or command line holds that path."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            if os.fsencode(place) in (entry / "environ").read_bytes() + command:
                found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    found.pop(os.getpid(), None)
    return found


def read_until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if words in line:
            return
    raise AssertionError(f"the demo ended without saying {words!r}:\n{''.join(said)}")


class TestOnRealServers:
    pytestmark = real

    @linux
    def test_the_first_demo_installs_and_shows_everything(
        self, cache: Path, place: Path, birthmark_home: Path
    ) -> None:
        code, printed, said = whole_demo("--json", env=environ(cache, place))
        assert code == 0, said
        told = json.loads(printed)
        assert told["ok"] is True, said
        assert [each["title"] for each in told["chapters"]] == [
            "Two MCP servers from PyPI, and an A2A agent",
            "A configuration",
            "Up",
            "Whose are they?",
            "Do they answer?",
            "The supervisor is killed",
            "The next supervisor, on the same ports",
            "Down",
        ]
        assert {each["name"]: each["observed"] for each in told["services"]} == {
            "fetch": "ready",
            "time": "ready",
            "clock": "ready",
        }
        # uvx, the proxy, its uvx and the server; uvx and a server; the agent
        assert len(told["processes"]) == 7
        assert '"timezone": "UTC"' in told["answers"]["time"]
        assert "You said: What time is it?" in told["answers"]["clock"]
        members = [member for receipt in told["receipts"] for member in receipt["members"]]
        assert len(members) == 7
        assert all(member["end"] is not None for member in members)
        assert "installing mcp-proxy" in said
        assert list(place.iterdir()) == []
        assert alive_from(place) == {}
        assert not birthmark_home.exists(), "the user's own installation was touched"

    @linux
    def test_the_second_demo_needs_no_registry(self, cache: Path, place: Path) -> None:
        nowhere = environ(cache, place, HTTPS_PROXY="http://127.0.0.1:9")
        code, printed, said = whole_demo("--offline", env=nowhere)
        assert code == 0, printed + said
        assert "installing" not in printed
        assert "nothing is left: all 7 processes went with it" in printed
        assert "new processes answer on ports" in printed
        assert list(place.iterdir()) == []
        assert alive_from(place) == {}

    @linux
    @pytest.mark.parametrize(
        ("words", "number", "code"),
        [
            ("birthmark up", signal.SIGINT, 130),
            ("birthmark explain", signal.SIGTERM, 143),
            ("kill -KILL", signal.SIGINT, 130),
            ("The next supervisor", signal.SIGTERM, 143),
            ("birthmark down", signal.SIGINT, 130),
        ],
    )
    def test_told_to_stop_it_leaves_nothing(
        self, cache: Path, place: Path, words: str, number: int, code: int
    ) -> None:
        with demo(env=environ(cache, place)) as process:
            read_until(process, words)
            process.send_signal(number)
            process.communicate(timeout=PLAYS_WITHIN_S)
        assert process.returncode == code
        assert alive_from(place) == {}
        assert list(place.iterdir()) == []

    @linux
    @pytest.mark.parametrize("words", ["clock is ready", "birthmark down"])
    def test_killed_it_takes_its_supervisor_along(self, cache: Path, place: Path, words: str) -> None:
        with demo(env=environ(cache, place)) as process:
            read_until(process, words)
            process.kill()
            process.communicate(timeout=PLAYS_WITHIN_S)
            fds = []
            for pid in alive_from(place):
                with contextlib.suppress(ProcessLookupError):
                    fds.append(os.pidfd_open(pid))
        poller = select.poll()
        for fd in fds:
            poller.register(fd, select.POLLIN)
        left = set(fds)
        while left and (ended := poller.poll(30_000)):
            for fd, _ in ended:
                poller.unregister(fd)
                left.discard(fd)
                os.close(fd)
        assert left == set(), alive_from(place)
        assert alive_from(place) == {}

    def test_what_outlives_the_killed_supervisor_is_shown_and_the_next_one_ends_it(
        self, cache: Path, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        monkeypatch.setattr("tempfile.tempdir", str(place))
        # Looked at once, at the very moment of the kill: they are all still on their way out.
        monkeypatch.setattr(play, "GONE_WITHIN_S", 0.0)
        teller = Teller(as_json=False)
        done = play.show(teller, offline=True, keep=False)
        said = capsys.readouterr().out
        assert done, said
        assert "are left for the next supervisor" in said
        assert "new processes answer on ports" in said
        assert teller.facts["left_by_kill"]


def test_offline_with_nothing_installed_it_names_what_is_missing(tmp_path: Path, place: Path) -> None:
    code, printed, said = whole_demo("--offline", "--json", env=environ(tmp_path / "empty", place))
    assert code == 1
    told = json.loads(printed)
    assert told["ok"] is False
    for name in ("mcp-proxy", "mcp-server-time", "mcp-server-fetch", "a2a-sdk"):
        assert name in told["reason"]
    assert "with the package registry in reach" in said
    assert list(place.iterdir()) == []
    assert not (tmp_path / "empty").exists()


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path: Path, place: Path) -> None:
    (tmp_path / "file").touch()
    code, _, said = whole_demo("--json", env=environ(tmp_path / "file", place))
    assert code == 1
    assert f"the servers cannot be kept in {tmp_path / 'file'}" in said
    assert "XDG_CACHE_HOME" in said


def stand_in(ready: Callable[[Path], Installed], monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """Have the demo play with other servers than those from the registry."""
    monkeypatch.setattr("tempfile.tempdir", str(place))
    monkeypatch.setattr(play, "ensure_installed", lambda say, offline: ready(place))


@linux
def test_a_server_that_cannot_start_fails_the_demo_with_its_reason_and_nothing_is_left(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = tmp_path / "nowhere"

    def missing(_: Path) -> Installed:
        return Installed(nowhere, nowhere / "uvx", nowhere / "python", {"UV_OFFLINE": "1"})

    stand_in(missing, monkeypatch, place)
    teller = Teller(as_json=False)
    assert play.show(teller, offline=False, keep=False) is False
    said = capsys.readouterr().out
    assert " is blocked: " in said
    assert "nowhere" in said
    assert teller.to_dict()["ok"] is False
    assert list(place.iterdir()) == []
    assert alive_from(place) == {}


@linux
def test_kept_the_folder_holds_what_was_written_and_said(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(_: Path) -> Installed:
        return Installed(tmp_path, tmp_path / "uvx", tmp_path / "python", {})

    stand_in(missing, monkeypatch, place)
    teller = Teller(as_json=True)
    assert play.show(teller, offline=False, keep=True) is False
    (kept,) = place.iterdir()
    assert teller.facts["folder"] == str(kept)
    found = {path.name for path in kept.iterdir()}
    assert {".mcp.json", "birthmark.toml", "clock_agent.py", "home", "up.log"} <= found
    assert "configuration:" in (kept / "up.log").read_text()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "birthmark up -f" in captured.err
