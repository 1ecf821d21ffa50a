"""What a configuration says once it is read: services and their policies, as values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from birthmark.core.markers import ChildKind
from birthmark.core.policies import StopPolicy
from birthmark.core.service import ServiceName

PICKED_PORTS: Final = (20000, 29999)
"""Where ports are picked from, both ends included: below every system's ephemeral range."""

HIDDEN: Final = "*****"
"""What stands where a secret would."""


class Transport(StrEnum):
    """How a client reaches a service."""

    STDIO = "stdio"
    HTTP = "http"
    NONE = "none"


class Restart(StrEnum):
    """When an ended service is started again."""

    NEVER = "never"
    ON_FAILURE = "on-failure"
    ALWAYS = "always"


class EnvProfile(StrEnum):
    """How much of our own environment a service inherits."""

    MINIMAL = "minimal"
    DEFAULT = "default"
    INHERIT = "inherit"


class ReadyKind(StrEnum):
    """What tells that a service is ready."""

    PROCESS = "process"
    TCP = "tcp"
    HTTP = "http"
    LOG = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadySpec:
    """How a service is known to be ready. All lengths in seconds.

    `alive_s` counts for `PROCESS`, `path` for `HTTP` (None: the service's url, or ``/``), and `pattern`, a
    regular expression searched for in each line, for `LOG`.
    """

    kind: ReadyKind = ReadyKind.PROCESS
    alive_s: float = 1.0
    path: str | None = None
    pattern: str | None = None
    deadline_s: float = 120.0
    interval_s: float = 10.0
    timeout_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Seconds before the next start: `first_s`, doubled with each failure up to `cap_s`, varied by ± `jitter`."""

    first_s: float = 0.5
    cap_s: float = 60.0
    jitter: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Intensity:
    """At most `restarts` within `within_s` seconds; beyond it we give up. Failures are forgotten after `stable_s`."""

    restarts: int = 5
    within_s: float = 60.0
    stable_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPolicy:
    """How much of a service's output is kept: `files` of `file_bytes`, `age_s` seconds, `total_bytes` in all."""

    file_bytes: int = 10 * 2**20
    files: int = 5
    age_s: float = 14 * 86400.0
    total_bytes: int = 100 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """One service as the configuration wants it.

    `command` holds the program first and is empty for a remote server, which is not ours to start. `port` is a fixed
    port, `port_range` the ports one is to be picked from, both ends included; at most one of them is given.
    ``{port}`` in command, env and url waits for `with_port`. `cwd` is absolute. `secrets` are the names in `env`
    whose values are shown to nobody; `written` is the command with its references, as it may be shown.
    `env_from` are names taken from our own environment beside the profile's. `request_timeout_s` is what the
    host's file allows one request; we only show it. Neither `repr` nor `shown_env` tells a secret.
    """

    name: ServiceName
    kind: ChildKind = ChildKind.MCP
    command: tuple[str, ...] = field(default=(), repr=False)
    written: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    env_from: tuple[str, ...] = ()
    env_profile: EnvProfile = EnvProfile.DEFAULT
    env_drop: tuple[str, ...] | None = None
    secrets: frozenset[str] = frozenset()
    cwd: Path | None = None
    port: int | None = None
    port_range: tuple[int, int] | None = None
    url: str | None = field(default=None, repr=False)
    written_url: str | None = None
    transport: Transport = Transport.STDIO
    restart: Restart = Restart.ON_FAILURE
    backoff: Backoff = Backoff()
    intensity: Intensity = Intensity()
    stop: StopPolicy = field(default_factory=StopPolicy)
    ready: ReadySpec = ReadySpec()
    logs: LogPolicy = LogPolicy()
    enabled: bool = True
    request_timeout_s: float | None = None
    source: str = ""
    line: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def remote(self) -> bool:
        """Whether somebody else runs it, so that we never start it."""
        return not self.command

    @property
    def wants_port(self) -> bool:
        """Whether a port is to be leased before it is started."""
        return self.port is not None or self.port_range is not None

    def shown_env(self) -> dict[str, str]:
        """Return the declared environment for people: secrets hidden."""
        return {name: HIDDEN if name in self.secrets else value for name, value in self.env.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorSettings:
    """The supervisor's own settings: the bound of a whole shutdown in seconds, and the ports it picks from."""

    shutdown_s: float = 60.0
    ports: tuple[int, int] = PICKED_PORTS


@dataclass(frozen=True, slots=True)
class Source:
    """A file that was read, the file asked for that led to it, and the SHA-256 of the very bytes that were read."""

    path: Path
    root: Path
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything the files say. `warnings` are sentences for people, each naming its file and line."""

    services: tuple[ServiceSpec, ...] = ()
    sources: tuple[Source, ...] = ()
    warnings: tuple[str, ...] = ()
    supervisor: SupervisorSettings = SupervisorSettings()


_PORT: Final = re.compile(r"\$?\{port\}")


def with_port(spec: ServiceSpec, port: int) -> ServiceSpec:
    """Return the service with `port` fixed and put in place of ``{port}`` and ``${port}`` in command, env and url.

    Raises:
        ValueError: The port is not in 1 to 65535.
    """
    if isinstance(port, bool) or not 1 <= port <= 65535:
        raise ValueError(f"{port!r} is no port: 1 to 65535 is expected")

    def fill(text: str) -> str:
        return _PORT.sub(str(port), text)

    return replace(
        spec,
        port=port,
        port_range=None,
        command=tuple(map(fill, spec.command)),
        written=tuple(map(fill, spec.written)),
        env={name: fill(value) for name, value in spec.env.items()},
        url=None if spec.url is None else fill(spec.url),
        written_url=None if spec.written_url is None else fill(spec.written_url),
    )
