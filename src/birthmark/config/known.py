"""Where each MCP host keeps its user's own file, platform by platform."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

LINUX: Final = "linux"
MACOS: Final = "darwin"
WINDOWS: Final = "win32"
_EVERYWHERE: Final = (LINUX, MACOS, WINDOWS)


class Known(NamedTuple):
    """A host's file on some platforms.

    `place` begins with a folder's name: ``HOME``, ``CONFIG`` (the user's configuration: XDG's, or ``~/.config``), ``APPS``
    (where programs with a window keep theirs: as ``CONFIG``, ``~/Library/Application Support``, ``%APPDATA%``),
    or ``CODEX_HOME``.
    """

    host: str
    place: str
    platforms: tuple[str, ...] = _EVERYWHERE


_CODE: Final = ("Code", "Code - Insiders", "VSCodium")
_CLINE: Final = "User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"
_ROO: Final = "User/globalStorage/rooveterinaryinc.roo-cline/settings"

KNOWN: Final = (
    Known("Claude Desktop", "APPS/Claude/claude_desktop_config.json"),
    Known("Claude Code", "HOME/.claude.json"),
    Known("Cursor", "HOME/.cursor/mcp.json"),
    *(Known("VS Code", f"APPS/{code}/User/mcp.json") for code in _CODE),
    Known("Copilot CLI", "HOME/.copilot/mcp-config.json"),
    Known("Gemini CLI", "HOME/.gemini/settings.json"),
    Known("Codex", "CODEX_HOME/config.toml"),
    Known("Windsurf", "HOME/.codeium/windsurf/mcp_config.json"),
    Known("Zed", "CONFIG/zed/settings.json", (LINUX, MACOS)),
    Known("Zed", "APPS/Zed/settings.json", (WINDOWS,)),
    *(Known("Cline", f"APPS/{code}/{_CLINE}") for code in _CODE),
    *(Known("Roo", f"APPS/{code}/{_ROO}/mcp_settings.json") for code in _CODE),
    Known("opencode", "CONFIG/opencode/opencode.json"),
    Known("opencode", "CONFIG/opencode/opencode.jsonc"),
    Known("Goose", "CONFIG/goose/config.yaml"),
    Known("home-manager", "CONFIG/mcp/mcp.json"),
)
"""In the order in which they are offered. Projects' files are not among them: they are several people's."""


def known_files(platform: str, environ: Mapping[str, str], home: Path) -> Iterator[tuple[str, Path]]:
    """Yield host and path of each of the user's own files that exist.

    Args:
        platform: As `sys.platform` has it; one we do not know counts as Linux.
        environ: Our variables: ``XDG_CONFIG_HOME``, ``APPDATA`` and ``CODEX_HOME`` count when they are absolute.
        home: The user's home.
    """
    platform = platform if platform in _EVERYWHERE else LINUX
    folders = _folders(platform, environ, home)
    for known in KNOWN:
        anchor, _, rest = known.place.partition("/")
        path = folders[anchor] / rest
        if platform in known.platforms and os.path.isfile(path):  # False also where we may not look
            yield known.host, path


def _folders(platform: str, environ: Mapping[str, str], home: Path) -> dict[str, Path]:
    config = _named(environ, "XDG_CONFIG_HOME") or home / ".config"
    apps = {
        LINUX: config,
        MACOS: home / "Library/Application Support",
        WINDOWS: _named(environ, "APPDATA") or home / "AppData/Roaming",
    }
    codex = _named(environ, "CODEX_HOME") or home / ".codex"
    return {"HOME": home, "CONFIG": config, "APPS": apps[platform], "CODEX_HOME": codex}


def _named(environ: Mapping[str, str], name: str) -> Path | None:
    path = Path(environ.get(name, ""))
    return path if path.is_absolute() else None
