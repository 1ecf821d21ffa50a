"""The installation's id and folder: real files."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from birthmark import InstallationBroken, open_installation
from birthmark.children.installation import state_home


def test_the_id_is_made_once_and_kept(tmp_path: Path) -> None:
    first = open_installation(tmp_path / "home")
    again = open_installation(tmp_path / "home")
    assert first.id == again.id
    assert first.new_because == "first use"
    assert again.new_because is None


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    home = open_installation(tmp_path / "home").home
    assert stat.S_IMODE((home / "installation").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    for folder in ("births", "run", "locks", "logs"):
        assert stat.S_IMODE(getattr(open_installation(home), folder).stat().st_mode) == 0o700


def test_ten_first_uses_at_once_agree_on_one_id(tmp_path: Path) -> None:
    code = """
import pathlib, sys
from birthmark import open_installation
sys.stdin.read()
print(open_installation(pathlib.Path(sys.argv[1])).id)
"""
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "home")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(10)
    ]
    ids = {starter.communicate(timeout=30)[0] for starter in starters}
    assert len(ids) == 1


def test_a_copied_folder_gets_an_id_of_its_own(tmp_path: Path) -> None:
    first = open_installation(tmp_path / "home")
    shutil.copytree(tmp_path / "home", tmp_path / "copy")
    copy = open_installation(tmp_path / "copy")
    assert copy.id != first.id
    assert copy.new_because == f"the folder was copied from that of {first.id}"
    assert open_installation(tmp_path / "home").id == first.id


@pytest.mark.parametrize(
    "text", [b"", b"\0" * 60, b"{", b"[]", b'{"id": 7}', b'{"id": "xyz", "device": 1, "inode": 2}']
)
def test_an_id_that_cannot_be_decoded_is_named_and_not_guessed(tmp_path: Path, text: bytes) -> None:
    home = open_installation(tmp_path / "home").home
    (home / "installation").write_bytes(text)
    with pytest.raises(InstallationBroken, match=r"installation: .*cannot be decoded"):
        open_installation(home)
    assert (home / "installation").read_bytes() == text


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o777)
    with pytest.raises(InstallationBroken, match="others may write"):
        open_installation(home)


def test_a_folder_of_another_user_is_refused(as_root: None, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    os.chown(home, 65534, 65534)
    with pytest.raises(InstallationBroken, match="belongs to uid 65534"):
        open_installation(home)


def test_a_place_where_no_folder_can_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InstallationBroken, match="cannot be made"):
        open_installation(tmp_path / "file" / "home")


def test_the_home_can_be_chosen_and_must_be_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIRTHMARK_HOME", str(tmp_path / "chosen"))
    assert state_home() == tmp_path / "chosen"
    monkeypatch.setenv("BIRTHMARK_HOME", "relative")
    with pytest.raises(InstallationBroken, match="absolute"):
        state_home()
    monkeypatch.delenv("BIRTHMARK_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert state_home() == tmp_path / "state" / "birthmark"


def test_the_file_holds_where_it_was_made(tmp_path: Path) -> None:
    installation = open_installation(tmp_path / "home")
    record = json.loads((installation.home / "installation").read_text())
    place = installation.home.stat()
    assert record == {"id": installation.id, "device": place.st_dev, "inode": place.st_ino}


def test_without_a_home_folder_nothing_is_made_in_the_working_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As in a container that runs under a number nobody gave a name.
    for name in ("BIRTHMARK_HOME", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(InstallationBroken, match="no home folder"):
        state_home()


def test_an_id_the_disk_takes_only_half_of_is_an_error_and_the_next_use_makes_one(tmp_path: Path) -> None:
    code = "import pathlib, sys, birthmark; birthmark.open_installation(pathlib.Path(sys.argv[1]))"
    words = [sys.executable, "-c", code, str(tmp_path)]
    full = subprocess.run(["prlimit", "--fsize=20:20", *words], capture_output=True, timeout=20, check=False)
    assert b"cannot be written" in full.stderr
    assert open_installation(tmp_path).new_because == "first use"
