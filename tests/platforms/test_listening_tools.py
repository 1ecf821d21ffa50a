"""lsof and psutil as a way out: real ones, and scripts that stand for an lsof in trouble."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from birthmark.errors import LookFailed
from birthmark.platforms import listening_tools as room
from birthmark.platforms.listening_tools import pids_by_lsof, pids_by_psutil, provably_free
from tests.platforms.listening import free_port, listening, need_ipv6, port_of

Lsof = Callable[[str], None]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="lsof is POSIX's")


@pytest.fixture
def lsof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lsof:
    """Put a shell script in lsof's place."""

    def put(script: str) -> None:
        path = tmp_path / "lsof"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return put


@pytest.mark.skipif(shutil.which("lsof") is None, reason="lsof is not installed")
def test_lsof_names_the_listener_and_no_client() -> None:
    with listening() as server:
        assert pids_by_lsof(port_of(server)) == [os.getpid()]
    assert pids_by_lsof(free_port()) == []


def test_pids_are_ascending_and_unique(lsof: Lsof) -> None:
    lsof("printf '30\\n2\\n30\\n'")
    assert pids_by_lsof(80) == [2, 30]


def test_only_listeners_of_that_port_are_asked_for(lsof: Lsof) -> None:
    lsof('[ "$*" = "-w -nP -t -iTCP:80 -sTCP:LISTEN" ] && echo 7')
    assert pids_by_lsof(80) == [7]


def test_silence_means_nobody_only_if_lsof_could_see(lsof: Lsof, monkeypatch: pytest.MonkeyPatch) -> None:
    lsof("exit 1")
    with listening() as server:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        assert pids_by_lsof(port_of(server)) == []
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(LookFailed, match="not free"):
            pids_by_lsof(port_of(server))
    assert pids_by_lsof(free_port()) == []


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("echo 7; exit 1", "ended with 1: 7"),
        ("echo broken >&2; exit 2", "ended with 2: broken"),
        ("echo no pid", "ended with 0: no pid"),
        ("printf '\\377'; exit 1", "ended with 1"),
    ],
)
def test_an_lsof_that_fails_is_never_nobody(script: str, cause: str, lsof: Lsof) -> None:
    lsof(script)
    with pytest.raises(LookFailed, match=cause):
        pids_by_lsof(80)


def test_an_lsof_that_hangs_is_given_up(lsof: Lsof) -> None:
    lsof("exec sleep 60")
    with pytest.raises(LookFailed, match=r"did not answer within 0\.2 s"):
        pids_by_lsof(80, timeout_s=0.2)


def test_a_missing_lsof_is_could_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(LookFailed, match="lsof is not installed"):
        pids_by_lsof(80)


def test_an_lsof_that_cannot_run_is_could_not_look(lsof: Lsof, tmp_path: Path) -> None:
    lsof("exit 0")
    (tmp_path / "lsof").write_bytes(b"\x7fELF is not a program")
    with pytest.raises(LookFailed, match="Exec format error"):
        pids_by_lsof(80)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere psutil wants root for this")
def test_psutil_names_the_listener_and_nobody_on_a_free_port() -> None:
    with listening() as server:
        assert pids_by_psutil(port_of(server)) == [os.getpid()]
    assert pids_by_psutil(free_port()) == []


def test_a_missing_psutil_is_could_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(LookFailed, match="psutil is not installed"):
        pids_by_psutil(80)


def test_a_free_port_can_be_proved_and_stays_free() -> None:
    port = free_port()
    assert provably_free(port)
    assert provably_free(port)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "127.0.0.2"])
def test_a_listener_on_any_address_makes_it_not_free(address: str) -> None:
    with listening(address) as server:
        assert not provably_free(port_of(server))


@pytest.mark.parametrize("address", ["::1", "::"])
def test_a_listener_on_any_ipv6_address_makes_it_not_free(address: str) -> None:
    need_ipv6()
    with listening(address) as server:
        assert not provably_free(port_of(server))


def test_each_platform_asks_its_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "pids_by_lsof", lambda port: [port])
    monkeypatch.setattr(room, "pids_by_psutil", lambda port: [-port])
    assert room.pids_by_tool(80) == [80]
    monkeypatch.setattr(sys, "platform", "win32")
    assert room.pids_by_tool(80) == [-80]
