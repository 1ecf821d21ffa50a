"""`doctor`: what it finds here, and what it says of hosts that can do less. Run inside the test's process."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from birthmark.children.installation import open_installation
from birthmark.interfaces.cli import doctor
from birthmark.platforms.contract import Capabilities
from tests.interfaces.births import house
from tests.interfaces.running import command

ALL = Capabilities(
    platform="linux",
    pidfd=True,
    pidfs_inode=True,
    group_signal=True,
    environ=True,
    tag=True,
    parent_death=True,
    subreaper=True,
    sock_diag=True,
    native_spawner=True,
)
FLAGS = [each.name for each in dataclasses.fields(Capabilities) if each.type in (bool, "bool")]


def test_a_working_host_is_not_broken() -> None:
    said = command("doctor")
    assert said.code == 0
    assert said.err == ""
    assert said.out.splitlines()[-1].startswith("0 broken, ")


def test_every_capability_of_the_platform_is_spoken_of() -> None:
    assert sorted(each.field for each in doctor._PROMISES) == sorted(FLAGS)


@pytest.mark.parametrize("flag", FLAGS)
def test_what_is_missing_is_named_with_what_to_do(flag: str) -> None:
    lacking = Capabilities(**{**dataclasses.asdict(ALL), flag: False})
    [found] = [each for each in doctor._promises(lacking) if each.state != doctor.OK]
    assert found.state == doctor.LIMITED
    assert found.todo


def test_nothing_is_limited_where_all_is_there() -> None:
    assert {each.state for each in doctor._promises(ALL)} == {doctor.OK}


def test_notes_of_the_platform_are_passed_on() -> None:
    noted = dataclasses.replace(ALL, notes=("it is Tuesday",))
    assert [each.words for each in doctor._promises(noted) if each.subject == "note"] == ["it is Tuesday"]


def test_looking_does_not_make_the_state_folder(birthmark_home: Path) -> None:
    said = command("doctor")
    assert f"{birthmark_home} is not there yet; the first use makes it" in said.out
    assert not birthmark_home.exists()


def test_a_folder_that_others_may_read_is_named_with_the_way_out(birthmark_home: Path) -> None:
    open_installation()
    birthmark_home.chmod(0o755)
    said = command("doctor")
    assert said.code == 0
    assert f"{birthmark_home} is open to others (mode 755)" in said.out
    assert f"→ chmod 700 {birthmark_home}" in said.out


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_a_folder_that_others_may_write_is_broken(birthmark_home: Path) -> None:
    open_installation()
    birthmark_home.chmod(0o777)
    said = command("doctor")
    assert said.code == 1
    assert "others may write to it" in said.out


def test_a_registry_that_cannot_be_read_is_broken(birthmark_home: Path) -> None:
    open_installation().registry_path.write_bytes(b"not a database" * 100)
    said = command("doctor", "--json")
    assert said.code == 1
    findings = said.json["findings"]
    assert isinstance(findings, list)
    broken = [each for each in findings if each["state"] == "broken"]
    assert [each["subject"] for each in broken] == ["state"]
    assert "it is no SQLite database" in broken[0]["words"]


def test_the_records_are_counted() -> None:
    with house() as home, home.birth("time"):
        assert "births that have not ended: 1" in command("doctor").out
