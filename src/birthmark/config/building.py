"""From what files say about a service to the service: every value read, expanded and checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from birthmark.config import values as read
from birthmark.config.clients import Entry
from birthmark.config.envfile import read_env_file
from birthmark.config.expand import Expander
from birthmark.config.model import (
    Backoff,
    EnvProfile,
    Intensity,
    LogPolicy,
    ReadyKind,
    ReadySpec,
    Restart,
    ServiceSpec,
    Transport,
)
from birthmark.config.unwrap import unwrap
from birthmark.config.values import Said
from birthmark.core.markers import PREFIX, ChildKind
from birthmark.core.policies import StopPolicy
from birthmark.core.service import ServiceName

_T = TypeVar("_T")
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_SECRET_NAME: Final = re.compile(
    r"TOKEN|SECRET|PASSW|API_?KEY|(?:^|_)KEY(?:$|_)|CREDENTIAL|AUTH|COOKIE|PRIVATE", re.I
)
NOBODY: Final[tuple[str, ...]] = ()
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
            hint = "" if not entry.foreign else " of this server"
            raise entry.said.error(
                f"neither a command nor a url{hint}", 'Add command = "…", or import the host\'s file'
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
        self.refuse_lone_template(command, written, port is not None or span is not None)
        env, secrets, names = self.environment()
        cwd = self.cwd()
        spec = ServiceSpec(
            name=name,
            kind=kind,
            command=command,
            written=written,
            env=env,
            env_from=names,
            env_profile=self.value("env_profile", read.one_of(EnvProfile), EnvProfile.DEFAULT),
            env_drop=self.value("env_drop", read.strings, None),
            secrets=secrets,
            cwd=cwd,
            port=port,
            port_range=span,
            url=url,
            written_url=written_url,
            transport=self.transport(command, port is not None or span is not None or url is not None, kind),
            restart=self.value("restart", read.one_of(Restart), Restart.ON_FAILURE),
            enabled=self.value("enabled", read.flag, True),
            request_timeout_s=self.value("request_timeout", read.duration_s, None),
            source=str(entry.said.document.path),
            line=entry.said.line,
            notes=notes,
        )
        return self.policies(spec)

    def policies(self, spec: ServiceSpec) -> ServiceSpec:
        """Return the service with its lengths and limits."""
        return replace(
            spec,
            backoff=Backoff(
                first_s=self.value("backoff", read.duration_s, Backoff().first_s),
                cap_s=self.value("backoff_cap", read.duration_s, Backoff().cap_s),
                jitter=self.value("backoff_jitter", read.share, Backoff().jitter),
            ),
            intensity=Intensity(
                restarts=self.value("restarts", read.count, Intensity().restarts),
                within_s=self.value("restarts_within", read.duration_s, Intensity().within_s),
                stable_s=self.value("stable_after", read.duration_s, Intensity().stable_s),
            ),
            stop=StopPolicy(
                stdin_grace_s=self.value("stdin_grace", read.duration_s, StopPolicy().stdin_grace_s),
                term_grace_s=self.value("term_grace", read.duration_s, StopPolicy().term_grace_s),
                settle_s=self.value("settle", read.duration_s, StopPolicy().settle_s),
                stop_signal=self.value("stop_signal", read.stop_signal, StopPolicy().stop_signal),
            ),
            logs=LogPolicy(
                file_bytes=self.value("log_size", read.size_bytes, LogPolicy().file_bytes),
                files=self.value("log_files", read.count, LogPolicy().files),
                age_s=self.value("log_age", read.duration_s, LogPolicy().age_s),
                total_bytes=self.value("log_total", read.size_bytes, LogPolicy().total_bytes),
            ),
            ready=self.ready(spec),
        )

    # -- one value at a time ---------------------------------------------------

    def value(self, key: str, reader: Callable[[Said], _T], default: _T) -> _T:
        said = self.said.get(key)
        return default if said is None else reader(said)

    def at(self, key: str) -> str:
        said = self.said[key]
        return said.document.place(said.where)

    def expander(self, said: Said) -> Expander:
        workspace = self.base.workspaces[said.document.path]
        return Expander(self.entry.name, self.base.environ, workspace, self.base.home, self.base.allow_unset)

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
        if not _WEB.match(url):
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
            return default if transport is Transport.HTTP else transport
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
        names = list(self.value("env_from", read.strings, NOBODY))
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

    # -- readiness -------------------------------------------------------------

    def ready(self, spec: ServiceSpec) -> ReadySpec:
        reachable = spec.wants_port or (spec.url is not None and bool(spec.command))
        default = ReadyKind.TCP if reachable and spec.wants_port else ReadyKind.PROCESS
        for key, kind in (("ready_path", ReadyKind.HTTP), ("ready_pattern", ReadyKind.LOG)):
            default = kind if key in self.said else default
        kind = self.value("ready", read.one_of(ReadyKind), default)
        if kind in {ReadyKind.TCP, ReadyKind.HTTP} and not reachable and spec.command:
            said = self.said.get("ready") or self.said["ready_path"]
            raise said.error(
                f"{self.entry.name}: ready by {kind.value} needs a port", 'Add port = "auto", or a number'
            )
        if kind is ReadyKind.LOG and "ready_pattern" not in self.said:
            raise self.said["ready"].error("no pattern to look for", 'Add ready_pattern = "listening on"')
        plain = ReadySpec()
        return ReadySpec(
            kind=kind,
            alive_s=self.value("ready_after", read.duration_s, plain.alive_s),
            path=self.value("ready_path", _url_path, None),
            pattern=self.value("ready_pattern", read.pattern, None),
            deadline_s=self.value("ready_deadline", read.duration_s, plain.deadline_s),
            interval_s=self.value("ready_interval", read.duration_s, plain.interval_s),
            timeout_s=self.value("ready_timeout", read.duration_s, plain.timeout_s),
        )


def _url_path(said: Said) -> str:
    path = read.full_text(said)
    if not path.startswith("/"):
        raise said.error("a path begins with a slash", f'Write "/{path[:40]}"')
    return path


def _plain(url: str) -> str:
    """Return the url with a port in place of the template, so that it can be taken apart."""
    return url.replace("${port}", "1").replace("{port}", "1")
