"""Our own file, ``birthmark.toml``: which keys it may hold, and the services it names or adds policy to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from birthmark.config.clients import Entry
from birthmark.config.documents import Document
from birthmark.config.model import PICKED_PORTS, SupervisorSettings
from birthmark.config.values import Said, duration_s, nearest, port_range
from birthmark.core.markers import ChildKind

_POLICY_WORDS: Final = """
    env env_from env_profile env_drop restart backoff backoff_cap backoff_jitter restarts restarts_within stable_after
    stdin_grace term_grace settle stop_signal ready ready_path ready_pattern ready_after ready_deadline ready_interval
    ready_timeout log_size log_files log_age log_total
"""
POLICY_KEYS: Final = frozenset(_POLICY_WORDS.split())
"""What a service may say and ``[defaults]`` too."""

SERVICE_KEYS: Final = POLICY_KEYS | {
    "command",
    "args",
    "cwd",
    "env_file",
    "port",
    "url",
    "transport",
    "enabled",
}
_SUPERVISOR_KEYS: Final = frozenset({"shutdown", "ports"})
_TOP_KEYS: Final = frozenset({"mcp", "agent", "defaults", "supervisor", "import"})
_KINDS: Final[Mapping[str, ChildKind]] = {"mcp": ChildKind.MCP, "agent": ChildKind.AGENT}


@dataclass(slots=True)
class Own:
    """What one ``birthmark.toml`` says. `imports` are the host files it takes in, as written."""

    entries: list[Entry] = field(default_factory=list)
    defaults: Entry | None = None
    supervisor: SupervisorSettings | None = None
    imports: list[Said] = field(default_factory=list)


def read_own(document: Document) -> Own:
    """Return what our own file says, its values still unread.

    Raises:
        ConfigError: A key is unknown, a table is none, or a name stands under both kinds.
    """
    own = Own()
    top = Said(document.data, document, ()).members()
    _only_known(top, _TOP_KEYS)
    if imports := top.get("import"):
        own.imports = imports.items() if isinstance(imports.value, list) else [imports]
    if defaults := top.get("defaults"):
        own.defaults = _entry(defaults, "[defaults]", ChildKind.MCP, POLICY_KEYS)
    if supervisor := top.get("supervisor"):
        own.supervisor = _supervisor(supervisor)
    seen: dict[str, Said] = {}
    for table, kind in _KINDS.items():
        if table not in top:
            continue
        for name, said in top[table].members().items():
            if other := seen.get(name):
                raise said.error(
                    f"{name!r} is already the name of an agent or MCP server, on {other.document.place(other.where)}",
                    "A name is unique across kinds; rename one of them",
                )
            if not isinstance(said.value, dict):
                raise said.wrong("a table", f"A service is a table with a name: [{table}.NAME]")
            seen[name] = said
            own.entries.append(_entry(said, name, kind, SERVICE_KEYS))
    return own


def _entry(said: Said, name: str, kind: ChildKind, known: Collection[str]) -> Entry:
    entry = Entry(name, kind, said)
    entry.values = said.members()
    _only_known(entry.values, known)
    if env := entry.values.pop("env", None):
        entry.env = env.members()
    return entry


def _supervisor(said: Said) -> SupervisorSettings:
    members = said.members()
    _only_known(members, _SUPERVISOR_KEYS)
    default = SupervisorSettings()
    return SupervisorSettings(
        shutdown_s=duration_s(members["shutdown"]) if "shutdown" in members else default.shutdown_s,
        ports=port_range(members["ports"]) if "ports" in members else PICKED_PORTS,
    )


def _only_known(members: Mapping[str, Said], known: Collection[str]) -> None:
    for key, said in members.items():
        if key not in known:
            raise said.error("an unknown key", nearest(key, known))
