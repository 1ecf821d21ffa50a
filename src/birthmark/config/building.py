"""From what files say about a service to the service: every value read, expanded and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from birthmark.config import policies
from birthmark.config import values as read
from birthmark.config.clients import Entry
from birthmark.config.envfile import read_env_file
from birthmark.config.expand import Expander
from birthmark.config.model import EnvProfile, Restart, ServiceSpec, Transport
from birthmark.config.unwrap import unwrap
from birthmark.config.values import Said
from birthmark.core.markers import PREFIX, ChildKind
from birthmark.core.service import ServiceName

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_SECRET_NAME: Final = re.compile(
    r"TOKEN|SECRET|PASSW|API_?KEY|(?:^|_)KEY(?:$|_)|CREDENTIAL|AUTH|COOKIE|PRIVATE", re.I
)
_NO_NAMES: Final[tuple[str, ...]] = ()
_WEB: Final = re.compile(r"(?:https?|wss?|unix|pipe)://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Base:
    """What relative things are relative to: the variables, the home, the folder of each file, the picked ports."""

    environ: Mapping[str, str]
    home: Path
    workspaces: Mapping[Path, Path]
    ports: tuple[int, int]
    allow_unset: bool = False


class Builder:
    """Reads one service's values, each with the rules of the file it stands in."""

    def __init__(self, entry: Entry, base: Base, warnings: list[str]) -> None:
        self.entry = entry
        self.base = base
        self.warnings = warnings
        self.said = entry.values
        # What is switched off is not started, so nobody misses its variables.
        self.enabled = read.optional(entry.values, "enabled", read.flag, True)

    def build(self) -> ServiceSpec:
        """Return the service.

        Raises:
            ConfigError: A value is of the wrong type, out of range, or refers to what is not there.
        """
        entry = self.entry
        try:
            name = ServiceName(entry.name)
        except ValueError as err:
            raise entry.said.error(str(err)) from None
        command, written = self.command()
        url, written_url = self.url()
        if not command and url is None:
            raise entry.said.error("neither a command nor a url", "Name the program under the key command")
        if not command and url is not None and "{port}" in url:
            raise self.said["url"].error(
                "a port to be leased, and no command to lease it for", "Write the port itself"
            )
        if command and url is not None and self.in_host_file(self.said["url"]):
            self.warnings.append(f"{self.at('url')}: {name}: the url is left alone, since there is a command")
            url = written_url = None
        kind = entry.kind
        notes: tuple[str, ...] = ()
        if inner := unwrap(command):
            command, written = inner[0], written[len(written) - len(inner[0]) :]
            kind = inner[1] or kind
            notes = ("it already ran under `birthmark run`; under a supervisor that wrapper is left out",)
        port, span = self.port(url if command else None)
        has_port = port is not None or span is not None
        self.refuse_lone_template(command, written, has_port)
        env, secrets, names = self.environment()
        cwd = self.cwd()
        return ServiceSpec(
            name=name,
            kind=kind,
            command=command,
            written=written,
            env=env,
            env_from=names,
            env_profile=read.optional(self.said, "env_profile", read.one_of(EnvProfile), EnvProfile.DEFAULT),
            env_drop=read.optional(self.said, "env_drop", read.strings, None),
            secrets=secrets,
            cwd=cwd,
            port=port,
            port_range=span,
            url=url,
            written_url=written_url,
            transport=self.transport(command, has_port or url is not None, kind),
            restart=read.optional(self.said, "restart", read.one_of(Restart), Restart.ON_FAILURE),
            enabled=self.enabled,
            request_timeout_s=read.optional(self.said, "request_timeout", read.duration_s, None),
            source=str(entry.said.document.path),
            line=entry.said.line,
            notes=notes,
            backoff=policies.backoff(self.said),
            intensity=policies.intensity(self.said),
            stop=policies.stop(self.said),
            logs=policies.logs(self.said),
            ready=policies.ready(name, self.said, has_port=has_port, remote=not command),
        )

    # -- one value at a time ---------------------------------------------------

    def at(self, key: str) -> str:
        said = self.said[key]
        return said.document.place(said.where)

    def expander(self, said: Said) -> Expander:
        workspace = self.base.workspaces[said.document.path]
        allow_unset = self.base.allow_unset or not self.enabled
        return Expander(self.entry.name, self.base.environ, workspace, self.base.home, allow_unset)

    def expand(self, said: Said) -> tuple[str, bool]:
        """Return the string and whether something from outside the file is in it."""
        if not self.entry.expands and self.in_host_file(said):  # Codex hands ${VAR} on as it stands
            return read.text(said), False
        expanded = self.expander(said).expand(said)
        return expanded.text, expanded.told

    def in_host_file(self, said: Said) -> bool:
        return self.entry.foreign and said.document is self.entry.said.document

    def command(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the command and the command as written."""
        said = self.said.get("command")
        parts: list[Said] = []
        if said is not None:
            parts = said.items() if isinstance(said.value, list) else [said]
            if not parts:
                raise said.error("this is empty", "Name a program")
            read.full_text(parts[0])
        if (args := self.said.get("args")) is not None:
            if not parts and "url" not in self.said:
                raise args.error("arguments without a command", 'Add command = "…"')
            parts += args.items() if parts else []
        command = tuple(self.expand(part)[0] for part in parts)
        if command and not command[0].strip():
            raise parts[0].error("the program's name is empty once its variables are replaced")
        return command, tuple(read.text(part) for part in parts)

    def url(self) -> tuple[str | None, str | None]:
        """Return the address and the address as written."""
        said = self.said.get("url")
        if said is None:
            return None, None
        written = read.full_text(said)
        url, _ = self.expand(said)
        if not _WEB.match(url) or not url.isprintable() or " " in url:
            raise said.error("this is no address", 'Write for example "http://127.0.0.1:8931/mcp"')
        try:
            port = urlsplit(_plain(url)).port
        except ValueError:
            raise said.error("this is no address: its host or port is not valid") from None
        if port == 0:
            raise said.error("0 is no port: 1 to 65535 is expected")
        return url, written

    def port(self, url: str | None) -> tuple[int | None, tuple[int, int] | None]:
        """Return the fixed port or the range to pick from; a url on this host names one too."""
        said = self.said.get("port")
        if said is None:
            if url is None or "{port}" in url:
                return None, self.base.ports if url is not None else None
            split = urlsplit(url)
            return (split.port, None) if split.hostname in _LOOPBACK else (None, None)
        if isinstance(said.value, str):
            return None, self.base.ports if said.value == "auto" else read.port_range(said)
        return read.port_number(said), None

    def refuse_lone_template(
        self, command: tuple[str, ...], written: tuple[str, ...], has_port: bool
    ) -> None:
        if not has_port and any("${port}" in part for part in (*command, *written)):
            said = self.said["args"] if "args" in self.said else self.said["command"]
            raise said.error(f"{self.entry.name}: ${{port}} without a port", 'Add port = "auto", or a number')

    def transport(self, command: tuple[str, ...], reachable: bool, kind: ChildKind) -> Transport:
        default = Transport.STDIO if kind is ChildKind.MCP else Transport.NONE
        if reachable or not command:
            default = Transport.HTTP
        said = self.said.get("transport")
        if said is None or (self.entry.foreign and not command):
            return default
        transport = read.one_of(Transport)(said)
        # A host's file that gives a command is reached over stdio, whatever else it says, unless we know its port.
        if self.in_host_file(said):
            return transport if transport is Transport.STDIO and not reachable else default
        return transport

    def cwd(self) -> Path:
        said = self.said.get("cwd")
        if said is None:
            return self.base.workspaces[self.entry.said.document.path]
        written, _ = self.expand(said)
        return self.expander(said).path(written, said)

    # -- the environment -------------------------------------------------------

    def environment(self) -> tuple[dict[str, str], frozenset[str], tuple[str, ...]]:
        """Return the declared variables, the names of the secret ones, and the names to take from ours."""
        env: dict[str, str] = {}
        secrets: set[str] = set()
        names = list(read.optional(self.said, "env_from", read.strings, _NO_NAMES))
        for name in names:
            read.variable_name(self.said["env_from"], name)
        if (said := self.said.get("env_file")) is not None:
            written, _ = self.expand(said)
            env.update(read_env_file(self.expander(said).path(written, said), said))
            secrets.update(env)
        for name, said in self.entry.env.items():
            read.variable_name(said, name)
            if said.value is None:
                names.append(name)
                continue
            env[name], told = self.variable(said)
            secrets.discard(name)
            if told or _SECRET_NAME.search(name):
                secrets.add(name)
        for name in [name for name in env if name.startswith(PREFIX)]:
            del env[name]
            self.warnings.append(
                f"{self.entry.said.document.place(self.entry.said.where)}: {self.entry.name}: {name} is left out: "
                f"variables that begin with {PREFIX} are ours alone"
            )
        return env, frozenset(secrets & set(env)), tuple(dict.fromkeys(names))

    def variable(self, said: Said) -> tuple[str, bool]:
        value = said.value
        if isinstance(value, dict) and list(value) == ["file"] and isinstance(value["file"], str):
            inside = Said(f"${{file:{value['file']}}}", said.document, said.where)
            return self.expand(inside)
        if not isinstance(value, str):
            raise said.wrong("a string", "Put it in quotes: variables hold text only")
        return self.expand(said)


def _plain(url: str) -> str:
    """Return the url with a port in place of the template, so that it can be taken apart."""
    return url.replace("${port}", "1").replace("{port}", "1")
