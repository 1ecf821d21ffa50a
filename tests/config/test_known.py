"""Which file each host keeps where. Values, and empty files in a folder of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from birthmark.config.known import KNOWN, known_files
from tests.config.loading import write

LINUX = [
    (".config/Claude/claude_desktop_config.json", "Claude Desktop"),
    (".claude.json", "Claude Code"),
    (".cursor/mcp.json", "Cursor"),
    (".config/Code/User/mcp.json", "VS Code"),
    (".copilot/mcp-config.json", "Copilot CLI"),
    (".gemini/settings.json", "Gemini CLI"),
    (".codex/config.toml", "Codex"),
    (".codeium/windsurf/mcp_config.json", "Windsurf"),
    (".config/zed/settings.json", "Zed"),
    (
        ".config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        "Cline",
    ),
    (
        ".config/VSCodium/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
        "Roo",
    ),
    (".config/opencode/opencode.json", "opencode"),
    (".config/opencode/opencode.jsonc", "opencode"),
    (".config/goose/config.yaml", "Goose"),
    (".config/mcp/mcp.json", "home-manager"),
]
MACOS = [
    ("Library/Application Support/Claude/claude_desktop_config.json", "Claude Desktop"),
    ("Library/Application Support/Code/User/mcp.json", "VS Code"),
    (".config/zed/settings.json", "Zed"),
]
WINDOWS = [
    ("AppData/Roaming/Claude/claude_desktop_config.json", "Claude Desktop"),
    ("AppData/Roaming/Code - Insiders/User/mcp.json", "VS Code"),
    ("AppData/Roaming/Zed/settings.json", "Zed"),
]


@pytest.mark.parametrize(
    ("platform", "expected"), [("linux", LINUX), ("darwin", MACOS), ("win32", WINDOWS), ("freebsd14", LINUX)]
)
def test_each_platform_keeps_them_in_its_own_places(
    tmp_path: Path, platform: str, expected: list[tuple[str, str]]
) -> None:
    for place, _ in (*LINUX, *MACOS, *WINDOWS):
        write(tmp_path / place, "")
    found = {
        (path.relative_to(tmp_path).as_posix(), host) for host, path in known_files(platform, {}, tmp_path)
    }
    assert set(expected) <= found
    if platform == "linux":
        assert found == set(LINUX)


def test_files_that_are_not_there_are_not_named(tmp_path: Path) -> None:
    assert list(known_files("linux", {}, tmp_path)) == []


def test_folders_named_by_variables_count_when_they_are_absolute(tmp_path: Path) -> None:
    write(tmp_path / "x/zed/settings.json", "")
    write(tmp_path / "c/config.toml", "")
    environ = {"XDG_CONFIG_HOME": f"{tmp_path}/x", "CODEX_HOME": f"{tmp_path}/c"}
    assert list(known_files("linux", environ, tmp_path / "home")) == [
        ("Codex", tmp_path / "c/config.toml"),
        ("Zed", tmp_path / "x/zed/settings.json"),
    ]
    assert list(known_files("linux", {"XDG_CONFIG_HOME": "x", "CODEX_HOME": ""}, tmp_path / "home")) == []


def test_no_host_is_named_twice_for_one_place() -> None:
    assert len({(each.place, each.platforms) for each in KNOWN}) == len(KNOWN)
