"""Which file is read. Real folders; no process is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from birthmark.config import find
from birthmark.config.find import find_config, user_config_folder
from birthmark.errors import ConfigError
from tests.config.loading import write

ENVIRON = {"BIRTHMARK_CONFIG": "named.toml"}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the configuration folder of whoever runs the tests out of them."""
    monkeypatch.setattr(find, "user_config_folder", lambda: tmp_path / "own")
    return tmp_path / "own"


def test_a_file_that_is_given_comes_first(tmp_path: Path) -> None:
    write(tmp_path / "birthmark.toml", "")
    assert find_config([Path("a.json"), Path("/b.toml")], ENVIRON, tmp_path) == [
        tmp_path / "a.json",
        Path("/b.toml"),
    ]


def test_then_the_variable_which_may_name_several(tmp_path: Path) -> None:
    write(tmp_path / "birthmark.toml", "")
    assert find_config(None, ENVIRON, tmp_path) == [tmp_path / "named.toml"]
    assert find_config([], {"BIRTHMARK_CONFIG": "/a:b"}, tmp_path) == [Path("/a"), tmp_path / "b"]


def test_then_the_nearest_file_upwards(tmp_path: Path, own_folder: Path) -> None:
    write(own_folder / "birthmark.toml", "")
    write(tmp_path / "birthmark.toml", "")
    inner = write(tmp_path / "a/b/birthmark.toml", "")
    (tmp_path / "a/b/c/d").mkdir(parents=True)
    assert find_config(None, {}, tmp_path / "a/b/c/d") == [inner]
    assert find_config(None, {"BIRTHMARK_CONFIG": ""}, tmp_path / "a") == [tmp_path / "birthmark.toml"]


def test_then_the_users_own(tmp_path: Path, own_folder: Path) -> None:
    own = write(own_folder / "birthmark.toml", "")
    assert find_config(None, {}, tmp_path) == [own]


def test_a_hosts_file_nearby_is_offered_and_not_used(tmp_path: Path) -> None:
    write(tmp_path / ".mcp.json", '{"mcpServers": {}}')
    with pytest.raises(ConfigError) as caught:
        find_config(None, {}, tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: no birthmark.toml here, in a folder above, or in {tmp_path}/own. "
        f"{tmp_path}/.mcp.json lies here: to use it, say `birthmark up -f .mcp.json`"
    )


def test_without_anything_the_way_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_config(None, {}, tmp_path)
    assert caught.value.hint == f"Name a file with -f, or write {tmp_path}/own/birthmark.toml"


def test_a_user_without_a_home_folder_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(ConfigError, match="no home folder.*Set HOME"):
        user_config_folder()
