"""The files of MCP hosts as they are: a table of shapes and one normaliser.

We read what hosts read and never write into their files. What a host's file holds beyond that is left alone; a key
nobody is known to use is mentioned, since it may be a slip of the pen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from birthmark.config.documents import Document, Where
from birthmark.config.values import Said, nearest
from birthmark.core.markers import ChildKind


@dataclass(slots=True)
class Entry:
    """One service as files say it: values under our own keys, each with its place; the environment name by name."""

    name: str
    kind: ChildKind
    said: Said
    values: dict[str, Said] = field(default_factory=dict)
    env: dict[str, Said] = field(default_factory=dict)
    foreign: bool = False
    expands: bool = True
    timeout_unit_s: float | None = None
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Host:
    """How one host writes its file. `ends` are the ends of paths that only its files have."""

    name: str
    ends: tuple[str, ...] = ()
    timeout_unit_s: float | None = None
    expands: bool = True


HOSTS: Final = (
    Host("Claude Code", (".mcp.json", ".claude.json"), 0.001),
    Host("Claude Desktop", ("claude_desktop_config.json",)),
    Host("Cursor", (".cursor/mcp.json",)),
    Host("VS Code", (".vscode/mcp.json",)),
    Host("Copilot CLI", (".copilot/mcp-config.json", ".github/mcp.json"), 0.001),
    Host("Gemini CLI", (".gemini/settings.json",), 0.001),
    Host("Windsurf", ("windsurf/mcp_config.json",)),
    Host("Cline", ("cline_mcp_settings.json",), 1.0),
    Host("Roo", (".roo/mcp.json", "mcp_settings.json"), 1.0),
    Host("opencode", ("opencode.json", "opencode.jsonc"), 0.001),
    Host("Codex", (".codex/config.toml",), 1.0, expands=False),
)
_UNKNOWN_HOST: Final = Host("a host not known by its file's name")
_CODEX: Final = next(host for host in HOSTS if host.name == "Codex")

TOP_KEYS: Final = ("mcpServers", "servers", "context_servers", "mcp_servers")

SAME_KEY: Final[Mapping[str, str]] = {
    "command": "command",
    "cmd": "command",
    "args": "args",
    "env": "env",
    "environment": "env",
    "envs": "env",
    "env_vars": "env_from",
    "envFile": "env_file",
    "cwd": "cwd",
    "url": "url",
    "serverUrl": "url",
    "httpUrl": "url",
    "uri": "url",
    "type": "type",
    "transport": "type",
    "transportType": "type",
    "enabled": "enabled",
    "disabled": "disabled",
    "timeout": "timeout",
    "startup_timeout_sec": "startup_timeout_sec",
    "tool_timeout_sec": "tool_timeout_sec",
}

_LEFT_ALONE: Final = """
    alwaysAllow auth autoApprove autoStart bearer_token_env_var default_tools_approval_mode description dev
    disabledTools disabled_tools enabledTools enabled_tools env_http_headers excludeTools exclude_tags gallery headers
    headersHelper http_headers http_headers_helper icon id includeTools include_tags keep_alive label name oauth
    protocolEra required sandbox sandboxEnabled scopes settings source tools trust version watchPaths
"""
LEFT_ALONE: Final = frozenset(_LEFT_ALONE.split())
"""Keys that hosts are known to use and that mean nothing to a supervisor."""

STDIO: Final = frozenset({"stdio", "local"})
HTTP: Final = frozenset(
    {"http", "streamable-http", "streamableHttp", "streamable_http", "sse", "remote", "ws"}
)


def servers_of(document: Document) -> tuple[Where, dict[str, object]] | None:
    """Return where a host's file keeps its servers, and them; None when it is no file of a host we know."""
    for key in TOP_KEYS:
        if isinstance(servers := document.data.get(key), dict):
            return (key,), servers
        if key in document.data and document.format == "json":
            raise document.error((key,), "a table of servers is expected")
    mcp = document.data.get("mcp")
    if isinstance(mcp, dict) and document.format == "json" and not looks_like_server(mcp):
        inner = mcp.get("servers")
        if isinstance(inner, dict) and all(isinstance(server, dict) for server in inner.values()):
            return ("mcp", "servers"), inner
        return ("mcp",), mcp
    entries = document.data.values()
    if document.format == "json" and all(
        isinstance(each, dict) and looks_like_server(each) for each in entries
    ):
        return ((), document.data) if document.data else None
    return None


def looks_like_server(entry: Mapping[str, object]) -> bool:
    """Say whether a table names a command or an address."""
    return any(
        SAME_KEY.get(key) in {"command", "url"} and isinstance(entry[key], (str, list)) for key in entry
    )


def host_of(document: Document) -> Host:
    """Return the host a file is of, by its name; content decides only where it is unmistakable."""
    path = "/" + PurePath(document.path).as_posix()
    for host in HOSTS:
        if any(path.endswith("/" + end) for end in host.ends):
            return host
    return _CODEX if document.format == "toml" else _UNKNOWN_HOST


def read_host(document: Document) -> tuple[list[Entry], list[str]] | None:
    """Return the servers of a host's file under our own keys, and warnings; None when it is no such file.

    Raises:
        ConfigError: A server is no table.
    """
    found = servers_of(document)
    if found is None:
        return None
    where, servers = found
    host = host_of(document)
    entries = [_entry(Said(server, document, (*where, name)), name, host) for name, server in servers.items()]
    warnings = []
    projects = document.data.get("projects")
    if isinstance(projects, dict) and any(
        isinstance(each, dict) and each.get("mcpServers") for each in projects.values()
    ):
        warnings.append(f"{document.place(('projects',))}: the servers of single projects are not taken")
    return entries, warnings


def _entry(said: Said, name: str, host: Host) -> Entry:
    entry = Entry(
        name, ChildKind.MCP, said, foreign=True, expands=host.expands, timeout_unit_s=host.timeout_unit_s
    )
    for key, value in said.members().items():
        ours = SAME_KEY.get(key)
        if ours is None:
            if key not in LEFT_ALONE:
                hint = nearest(key, SAME_KEY) or ""
                suggestion = f" {hint}" if hint.startswith("Did") else ""
                entry.warnings.append(
                    f"{_at(value)}: {name}: {key!r} is not known here and left alone.{suggestion}"
                )
        elif value.value is None or (value.value == "" and ours in {"cwd", "url", "env_file"}):
            continue  # several hosts write null or nothing for what is not set
        elif ours == "env":
            entry.env.update(value.members())
        else:
            _take(entry, ours, value, host)
    return entry


def _take(entry: Entry, key: str, said: Said, host: Host) -> None:
    """Put one value of a host under our key, or say why it is left alone."""
    match key:
        case "type":
            word = said.value if isinstance(said.value, str) else ""
            if word in STDIO:
                entry.values["transport"] = Said("stdio", said.document, said.where)
            elif word in HTTP:
                entry.values["transport"] = Said("http", said.document, said.where)
            else:
                entry.warnings.append(
                    f"{_at(said)}: {entry.name}: this type is not known here and left alone"
                )
        case "disabled":
            if not isinstance(said.value, bool):
                raise said.wrong("true or false")
            entry.values["enabled"] = Said(not said.value, said.document, said.where)
        case "timeout":
            if host.timeout_unit_s is None:
                entry.warnings.append(
                    f"{_at(said)}: {entry.name}: 'timeout' is left alone: its unit differs by host, and this file's "
                    "name does not tell the host"
                )
            else:
                entry.values["request_timeout"] = _seconds(said, host.timeout_unit_s)
        case "tool_timeout_sec":
            entry.values["request_timeout"] = _seconds(said, 1.0)
        case "startup_timeout_sec":
            entry.values["ready_deadline"] = _seconds(said, 1.0)
        case _:
            entry.values[key] = said


def _seconds(said: Said, unit_s: float) -> Said:
    value = said.value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e11:
        raise said.wrong("a number of zero or more")
    return Said(f"{value * unit_s:.3f}s", said.document, said.where)


def _at(said: Said) -> str:
    return said.document.place(said.where)
