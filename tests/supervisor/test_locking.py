"""The installation's lock: real files, and a real holder in another process."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys

import pytest

from birthmark.children.installation import open_installation
from birthmark.errors import InstallationBroken, InstallationLocked
from birthmark.supervisor.locking import LOCK_FILE, InstallationLock, holder_pid, remove_stale_socket

HOLDER = """
import sys
from birthmark.children.installation import open_installation
from birthmark.supervisor.locking import InstallationLock
lock = InstallationLock.acquire(open_installation())
print("held", flush=True)
sys.stdin.read()
"""


def test_a_held_lock_names_its_holder_and_is_free_when_the_holder_is_killed() -> None:
    installation = open_installation()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InstallationLocked, match=f"pid {other.pid}") as raised:
            InstallationLock.acquire(installation)
        assert raised.value.pid == other.pid
        other.kill()
        other.wait(5)
        lock = InstallationLock.acquire(installation)
        assert holder_pid(installation) == os.getpid()
        lock.release()
        lock.release()


def test_a_lock_file_that_is_left_over_locks_nobody_out() -> None:
    installation = open_installation()
    (installation.locks / LOCK_FILE).write_text("1\n")
    InstallationLock.acquire(installation).release()


def test_a_lock_whose_file_was_removed_is_no_lock_for_the_next() -> None:
    installation = open_installation()
    first = InstallationLock.acquire(installation)
    (installation.locks / LOCK_FILE).unlink()
    second = InstallationLock.acquire(installation)
    try:
        # What counts is the file that has the name now: a third is refused.
        with pytest.raises(InstallationLocked):
            InstallationLock.acquire(installation)
    finally:
        first.release()
        second.release()


def test_the_lock_is_private_and_no_child_inherits_it() -> None:
    installation = open_installation()
    lock = InstallationLock.acquire(installation)
    try:
        assert stat.S_IMODE(lock.path.stat().st_mode) == 0o600
        assert lock._fd is not None
        assert not os.get_inheritable(lock._fd)
    finally:
        lock.release()


def test_a_lock_that_is_a_link_is_not_followed() -> None:
    installation = open_installation()
    target = installation.home / "elsewhere"
    target.write_text("precious")
    (installation.locks / LOCK_FILE).symlink_to(target)
    with pytest.raises(InstallationBroken, match="cannot be opened"):
        InstallationLock.acquire(installation)
    assert target.read_text() == "precious"


def test_a_socket_left_behind_is_removed_and_anything_else_is_named() -> None:
    path = open_installation().run / "control.sock"
    assert not remove_stale_socket(path)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert remove_stale_socket(path)
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(InstallationBroken, match="no socket"):
        remove_stale_socket(path)
    assert path.read_text() == "precious"
