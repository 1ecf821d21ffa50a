"""A file is replaced whole or not at all, and what there was is kept. Real files."""

from __future__ import annotations

import os
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from birthmark.config import replacing
from birthmark.config.replacing import replace_content
from birthmark.errors import NotReplaced

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes and links")


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "mcp.json"
    file.write_bytes(b"old")
    file.chmod(0o640)
    return file


def test_the_backup_has_the_old_content_and_the_mode(file: Path) -> None:
    backup = replace_content(file, b"old", b"new", at=NOON)
    assert backup == file.with_name("mcp.json.birthmark-backup-20261129T120000Z")
    assert (file.read_bytes(), backup.read_bytes()) == (b"new", b"old")
    assert [stat.S_IMODE(each.stat().st_mode) for each in (file, backup)] == [0o640, 0o640]
    assert names(file.parent) == ["mcp.json", backup.name]


def test_a_backup_is_never_written_over(file: Path) -> None:
    first = replace_content(file, b"old", b"new", at=NOON)
    second = replace_content(file, b"new", b"newer", at=NOON)
    assert (first.read_bytes(), second.read_bytes(), file.read_bytes()) == (b"old", b"new", b"newer")
    assert second.name == f"{first.name}-1"


def test_a_link_where_the_backup_would_go_is_not_followed(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (tmp_path / "mcp.json.birthmark-backup-20261129T120000Z").symlink_to(other)
    backup = replace_content(file, b"old", b"new", at=NOON)
    assert backup.name.endswith("-1")
    assert not other.exists()


def test_a_link_stays_one_and_the_backup_lies_beside_its_target(file: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    link = tmp_path / "home" / ".claude.json"
    link.symlink_to(file)
    backup = replace_content(link, b"old", b"new")
    assert link.is_symlink()
    assert link.read_bytes() == file.read_bytes() == b"new"
    assert backup.parent == tmp_path
    assert names(link.parent) == [".claude.json"]


def test_a_file_that_was_changed_meanwhile_is_left_as_it_is(file: Path) -> None:
    file.write_bytes(b"somebody else's")
    with pytest.raises(NotReplaced, match="it was changed meanwhile"):
        replace_content(file, b"old", b"new")
    assert file.read_bytes() == b"somebody else's"
    assert names(file.parent) == ["mcp.json"]


def test_a_change_between_the_backup_and_the_rename_is_seen(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change_first(*args: object, **more: object) -> None:
        write_new(*args, **more)  # type: ignore[arg-type]
        file.write_bytes(b"somebody else's")

    write_new = replacing._write_new
    monkeypatch.setattr(replacing, "_write_new", change_first)
    with pytest.raises(NotReplaced, match="it was changed meanwhile"):
        replace_content(file, b"old", b"new")
    assert file.read_bytes() == b"somebody else's"
    assert names(file.parent) == ["mcp.json"]


def test_a_file_with_a_second_name_is_left_as_it_is(file: Path, tmp_path: Path) -> None:
    os.link(file, tmp_path / "second")
    with pytest.raises(NotReplaced, match="a hard link"):
        replace_content(file, b"old", b"new")
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["mcp.json", "second"]


def test_a_rename_that_fails_leaves_the_file_and_nothing_else(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(NotReplaced) as caught:
        replace_content(file, b"old", b"new")
    assert str(caught.value) == f"{file}: it cannot be replaced: No space left on device; nothing was changed"
    assert file.read_bytes() == b"old"
    assert names(file.parent) == ["mcp.json"]


def test_a_file_that_is_gone_is_no_defect(tmp_path: Path) -> None:
    with pytest.raises(NotReplaced, match="it cannot be replaced: No such file"):
        replace_content(tmp_path / "gone", b"old", b"new")


@pytest.mark.root
def test_owner_and_group_stay(file: Path) -> None:
    os.chown(file, 65534, 65534)
    backup = replace_content(file, b"old", b"new")
    assert [(each.stat().st_uid, each.stat().st_gid) for each in (file, backup)] == [(65534, 65534)] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="extended attributes as Linux has them")
def test_what_the_file_system_keeps_beside_the_content_stays(file: Path) -> None:
    if sys.platform == "linux":
        try:
            os.setxattr(file, "user.note", b"mine")
        except OSError as err:
            pytest.skip(f"no extended attributes here: {err}")
        replace_content(file, b"old", b"new")
        assert os.getxattr(file, "user.note") == b"mine"
