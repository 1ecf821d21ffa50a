"""The mark: the variables a child is stamped with at birth, and the tag beside them.

The mark names installation, birth, kind and service in the child's environment. Descendants
inherit it, so it says *of this birth*; only with the recorded pid does it say *this one*. The
tag is the birth's copy in the soft value of an unused resource limit, where neither
``env -i`` nor a rewritten process title can lose it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from birthmark.core.service import BirthId, InstallationId, ServiceName

SUBPROCESS_MARKER_ENV: Final = "BIRTHMARK_SUBPROCESS"
AGENT_NAME_ENV: Final = "BIRTHMARK_AGENT"
MCP_SERVICE_ID_ENV: Final = "BIRTHMARK_MCP"
API_SERVER_ENV: Final = "BIRTHMARK_API"
INSTALLATION_ENV: Final = "BIRTHMARK_INSTALLATION"
BIRTH_ENV: Final = "BIRTHMARK_BIRTH"
PARENT_ENV: Final = "BIRTHMARK_PARENT"

SUBPROCESS_MARKER_VALUE: Final = "1"
PREFIX: Final = "BIRTHMARK_"
"""Every variable that begins so is ours; all of them are removed before a child is marked."""

TAG_RESOURCE: Final = 15
"""RLIMIT_RTTIME on Linux: microseconds of real-time CPU. Source: getrlimit(2)."""

# 13 bits whose top bits put every tag above 2**60 µs (36,000 years) and below 2**63, so that
# a real-time thread never meets the limit and no signed reader trips over it.
_TAG_MAGIC: Final = 0b1_0110_1011_0110
_TAG_BITS: Final = 50
_TAG_MASK: Final = (1 << _TAG_BITS) - 1


class ChildKind(Enum):
    """What a marked process is to us."""

    AGENT = "agent"
    MCP = "mcp"
    API = "api"

    @property
    def marker_env(self) -> str:
        """The variable that holds the service's name in a process of this kind."""
        return _MARKER_ENV[self._value_]  # by text: the hash of a member is computed in Python

    def identifies(self, environ: bytes, service: str) -> bool:
        """Say whether an environment block is that of `service` as this kind.

        Args:
            environ: The raw block: entries separated by NUL, compared whole as bytes.
            service: The service's name.

        For agents and MCP servers the subprocess marker is needed too; the API server has only its own.
        """
        if self is ChildKind.API:
            return environ_identifies_api_server(environ, service)
        return environ_identifies_child(environ, self.marker_env, service)


_MARKER_ENV: Final[Mapping[str, str]] = {
    ChildKind.AGENT.value: AGENT_NAME_ENV,
    ChildKind.MCP.value: MCP_SERVICE_ID_ENV,
    ChildKind.API.value: API_SERVER_ENV,
}


def entry(name: str, value: str) -> bytes:
    """Return one environment entry as the kernel holds it."""
    return f"{name}={value}".encode("utf-8", "surrogateescape")


def environ_entries(environ: bytes) -> list[bytes]:
    """Split a raw environment block into its entries; text without ``=`` is kept."""
    return [item for item in environ.split(b"\0") if item]


def environ_identifies_child(environ: bytes, key: str, service: str) -> bool:
    """Say whether the block carries the subprocess marker and ``key=service``, each whole.

    Order is free, and duplicates allowed: one matching entry of each suffices.
    """
    entries = set(environ.split(b"\0"))
    return entry(SUBPROCESS_MARKER_ENV, SUBPROCESS_MARKER_VALUE) in entries and entry(key, service) in entries


def environ_identifies_api_server(environ: bytes, service: str) -> bool:
    """Say whether the block carries the API server's stamp for `service`."""
    return entry(API_SERVER_ENV, service) in environ.split(b"\0")


def environ_has_entries(environ: bytes) -> bool:
    """Say whether at least one entry of the block contains ``=``."""
    return b"=" in environ


def scrub(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without any variable of ours, so that no mark leaks into a nested birth."""
    return {name: value for name, value in environ.items() if not name.startswith(PREFIX)}


def mark_entries(
    *,
    kind: ChildKind,
    service: ServiceName,
    installation: InstallationId,
    birth: BirthId | None,
    parent: BirthId | None = None,
) -> dict[str, str]:
    """Return the variables a child of this birth carries, in the order they are placed.

    Args:
        kind: The kind; the API server gets neither the subprocess marker nor a birth.
        birth: None for the API server only.
        parent: The birth inside which this one happens, or None.
    """
    if kind is ChildKind.API:
        return {API_SERVER_ENV: str(service), INSTALLATION_ENV: installation}
    if birth is None:
        raise ValueError(f"a child of kind {kind.value} needs a birth id")
    marks = {
        SUBPROCESS_MARKER_ENV: SUBPROCESS_MARKER_VALUE,
        kind.marker_env: str(service),
        INSTALLATION_ENV: installation,
        BIRTH_ENV: birth,
    }
    if parent is not None:
        marks[PARENT_ENV] = parent
    return marks


def mark_block(*, kind: ChildKind, service: str, installation: str, birth: BirthId) -> bytes:
    """Return how the environment block of a child of this birth begins: its mark as it is placed, with the last NUL."""
    return (
        f"{SUBPROCESS_MARKER_ENV}={SUBPROCESS_MARKER_VALUE}\0{kind.marker_env}={service}\0"
        f"{INSTALLATION_ENV}={installation}\0{BIRTH_ENV}={birth}\0"
    ).encode("utf-8", "surrogateescape")


class Mark:
    """What the ``BIRTHMARK_*`` entries of one environment block say."""

    __slots__ = ("api", "birth", "installation", "services", "subprocess")

    def __init__(self, entries: Iterable[bytes]) -> None:
        self.subprocess = False
        self.installation: str | None = None
        self.birth: str | None = None
        self.services: set[tuple[ChildKind, str]] = set()
        self.api = False
        for item in entries:
            if not item.startswith(b"BIRTHMARK_"):
                continue
            name, _, raw = item.partition(b"=")
            value = raw.decode("utf-8", "surrogateescape")
            match name:
                case b"BIRTHMARK_SUBPROCESS":
                    self.subprocess = self.subprocess or value == SUBPROCESS_MARKER_VALUE
                case b"BIRTHMARK_INSTALLATION":
                    self.installation = self.installation or value
                case b"BIRTHMARK_BIRTH":
                    self.birth = self.birth or value
                case b"BIRTHMARK_AGENT":
                    self.services.add((ChildKind.AGENT, value))
                case b"BIRTHMARK_MCP":
                    self.services.add((ChildKind.MCP, value))
                case b"BIRTHMARK_API":
                    self.services.add((ChildKind.API, value))
                    self.api = True
                case _:
                    pass

    @property
    def complete(self) -> bool:
        """Whether this is a mark at all: a child's, or the API server's."""
        return self.api or (self.subprocess and bool(self.services))


def read_mark(environ: bytes) -> Mark | None:
    """Return the mark in a raw environment block, or None when it carries none of ours."""
    entries = []
    # Found by search, which spares most processes, and most entries of ours, the split.
    at = environ.find(b"BIRTHMARK_")
    while at >= 0:
        end = environ.find(b"\0", at)
        end = len(environ) if end < 0 else end
        if at == 0 or environ[at - 1] == 0:
            entries.append(environ[at:end])
        at = environ.find(b"BIRTHMARK_", end)
    if not entries:
        return None
    mark = Mark(entries)
    return mark if mark.complete else None


def tag_of(birth: BirthId) -> int:
    """Return the tag of a birth: a value for the soft limit of `TAG_RESOURCE`, in [2**60, 2**63)."""
    return _TAG_MAGIC << _TAG_BITS | int(birth, 16) >> (128 - _TAG_BITS)


def is_tag(value: int) -> bool:
    """Say whether a soft limit is a tag of any birth. Any other value is *no tag*, never *another*."""
    return value > 0 and value >> _TAG_BITS == _TAG_MAGIC
