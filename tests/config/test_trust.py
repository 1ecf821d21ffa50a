"""A project's file starts nothing before somebody has looked at it. Real folders; no process is started."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest

from birthmark.config import trust
from birthmark.config.trust import commands_of, fingerprint, grant_trust, needs_trust, require_trust
from birthmark.errors import ConfigError, InstallationBroken, NotTrusted
from tests.config.loading import load, write

TEXT = '[mcp.x]\ncommand = "x"\nargs = ["--key", "${TOKEN:-a b}"]\n[mcp.r]\nurl = "http://h/"\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with its own configuration folder, and nothing else in it."""
    home = tmp_path / "home"
    monkeypatch.setattr(trust, "user_config_folder", lambda: home / ".config/birthmark")
    return home


@pytest.fixture
def project(home: Path) -> Path:
    """A folder under version control in the home."""
    (home / "project/.git").mkdir(parents=True)
    return home / "project"


def test_a_file_in_a_project_needs_trust_however_deep(home: Path, project: Path) -> None:
    assert needs_trust(project / ".mcp.json", home=home)
    assert needs_trust(project / "a/b/birthmark.toml", home=home)


@pytest.mark.parametrize("name", [".git", ".hg", ".svn", ".jj"])
def test_every_kind_of_version_control_makes_a_project(home: Path, name: str) -> None:
    write(home / "p" / name, "a worktree has a file there")
    assert needs_trust(home / "p/birthmark.toml", home=home)


def test_a_file_outside_of_projects_does_not_need_it(home: Path, project: Path) -> None:
    assert not needs_trust(home / ".claude.json", home=home)
    assert not needs_trust(home / "notes/birthmark.toml", home=home)
    assert not needs_trust(home.parent / "elsewhere/birthmark.toml", home=home)


def test_ones_own_configuration_does_not_need_it_under_version_control_either(home: Path) -> None:
    (home / ".git").mkdir(parents=True)
    (home / ".config/birthmark/.git").mkdir(parents=True)
    assert not needs_trust(home / ".mcp.json", home=home)
    assert not needs_trust(home / ".config/birthmark/birthmark.toml", home=home)


def test_a_link_into_a_project_and_a_link_out_of_one_both_need_it(home: Path, project: Path) -> None:
    inside = write(project / "a.toml", TEXT)
    outside = write(home / "b.toml", TEXT)
    (home / "to-project.toml").symlink_to(inside)
    (project / "to-outside.toml").symlink_to(outside)
    assert needs_trust(home / "to-project.toml", home=home)
    assert needs_trust(project / "to-outside.toml", home=home)


def test_an_untrusted_file_is_refused_with_its_commands_unexpanded(
    home: Path, project: Path, tmp_path: Path
) -> None:
    file = write(project / "birthmark.toml", TEXT)
    config = load(file, {"TOKEN": "hunter2"})
    with pytest.raises(NotTrusted) as caught:
        require_trust(config, tmp_path / "state", home=home)
    assert caught.value.source == str(file)
    assert caught.value.commands == ("x: x --key '${TOKEN:-a b}'",)


def test_a_trusted_file_is_trusted_until_it_changes(home: Path, project: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    file = write(project / "birthmark.toml", TEXT)
    config = load(file)
    assert [source.path for source in grant_trust(config, state, home=home)] == [file]
    require_trust(config, state, home=home)
    require_trust(load(file), state, home=home)
    write(file, TEXT + "# changed\n")
    require_trust(config, state, home=home)  # what was read before is still what was looked at
    with pytest.raises(NotTrusted):
        require_trust(load(file), state, home=home)


def test_an_imported_file_of_a_project_needs_trust_of_its_own(
    home: Path, project: Path, tmp_path: Path
) -> None:
    write(project / ".mcp.json", '{"mcpServers": {"x": {"command": "x"}}}')
    file = write(home / "birthmark.toml", f'import = ["{project}/.mcp.json"]\n')
    with pytest.raises(NotTrusted) as caught:
        require_trust(load(file), tmp_path / "state", home=home)
    assert caught.value.source == str(file)


def test_the_store_is_for_its_owner_only_and_keeps_what_it_has(
    home: Path, project: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    configs = [load(write(project / name, TEXT)) for name in ("a.toml", "b.toml")]
    for config in configs:
        grant_trust(config, state, home=home)
    for config in configs:
        require_trust(config, state, home=home)
    assert stat.S_IMODE((state / "trusted.json").stat().st_mode) == 0o600
    assert [path.name for path in state.iterdir()] == ["trusted.json"]


def test_nothing_is_written_where_nothing_needs_trust(home: Path, tmp_path: Path) -> None:
    config = load(write(home / "birthmark.toml", TEXT))
    require_trust(config, tmp_path / "state", home=home)
    assert grant_trust(config, tmp_path / "state", home=home) == []
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"files": 1}', b"\xff", b"[" * 100_000])
def test_a_store_that_is_not_ours_trusts_nothing_and_is_named(
    home: Path, project: Path, tmp_path: Path, content: bytes
) -> None:
    config = load(write(project / "birthmark.toml", TEXT))
    (tmp_path / "trusted.json").write_bytes(content)
    with pytest.raises(
        InstallationBroken, match="not what was written here; remove it and trust the files anew"
    ):
        require_trust(config, tmp_path, home=home)


def test_a_command_cannot_hide_itself_from_its_reader(tmp_path: Path) -> None:
    text = r"""[mcp.x]
        command = "sh"
        args = ["-c", "evil\r\u001b[2Kgood\n\u202e"]
    """
    (line,) = commands_of(load(write(tmp_path / "a.toml", text)))
    assert line == r"x: sh -c 'evil\r\x1b[2Kgood\n\u202e'"


def test_a_fingerprint_is_the_hash_of_the_bytes(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", TEXT)
    assert fingerprint(file) == hashlib.sha256(TEXT.encode()).hexdigest() == load(file).sources[0].sha256
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        fingerprint(tmp_path / "gone")
