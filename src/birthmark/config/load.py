"""From files to services: read, import, overlay, build."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from birthmark.config.building import Base, Builder
from birthmark.config.clients import Entry, read_host
from birthmark.config.documents import Document, read_document
from birthmark.config.expand import Expander
from birthmark.config.find import home_of
from birthmark.config.model import Config, Source, SupervisorSettings
from birthmark.config.own import Own, read_own
from birthmark.config.values import Said, full_text, nearest
from birthmark.errors import ConfigError

_HOST_FOLDERS: Final = frozenset(
    {".cursor", ".vscode", ".gemini", ".github", ".copilot", ".codex", ".roo", ".zed", ".claude", ".amazonq"}
)


_USER_FOLDERS: Final = _HOST_FOLDERS | {".config", ".codeium", "Library", "AppData"}


def load_files(
    paths: Sequence[Path], *, environ: Mapping[str, str], allow_unset: bool = False, home: Path | None = None
) -> Config:
    """Return what the files say together. Starts nothing and asks nobody.

    Args:
        paths: Our own files and hosts' files, in any mixture; a service's name may stand in one of them only.
        environ: The variables that references look up.
        allow_unset: Leave a reference to an unset variable as it stands.
        home: What ``~`` and ``${userHome}`` mean; None: as the environment says.

    Raises:
        ConfigError: Something in them cannot be used; it says where, and the way out.
    """
    return _Loading(environ, allow_unset, home or home_of(environ)).load(paths)


def workspace_of(path: Path, home: Path) -> Path:
    """Return the folder that relative paths in a file start from: the project's, or the home for a user's own file."""
    folder = path.parent
    if folder.is_relative_to(home):
        inside = folder.relative_to(home).parts
        if inside and inside[0] in _USER_FOLDERS:
            return home
    return folder.parent if folder.name in _HOST_FOLDERS else folder


class _Loading:
    def __init__(self, environ: Mapping[str, str], allow_unset: bool, home: Path) -> None:
        self.environ, self.allow_unset, self.home = environ, allow_unset, home
        self.entries: dict[str, Entry] = {}
        self.warnings: list[str] = []
        self.sources: list[Source] = []
        self.workspaces: dict[Path, Path] = {}
        self.defaults: list[tuple[Path, Entry]] = []
        self.supervisor: SupervisorSettings | None = None
        self.default_of: dict[str, Entry] = {}

    def load(self, paths: Sequence[Path]) -> Config:
        for path in dict.fromkeys(Path(os.path.abspath(path)) for path in paths):
            self.take(path)
        supervisor = self.supervisor or SupervisorSettings()
        base = Base(self.environ, self.home, self.workspaces, supervisor.ports, self.allow_unset)
        services = []
        for name, entry in self.entries.items():
            self.warnings += entry.warnings
            services.append(Builder(self.with_defaults(name, entry), base, self.warnings).build())
        return Config(
            services=tuple(services),
            sources=tuple(self.sources),
            warnings=tuple(self.warnings),
            supervisor=supervisor,
        )

    def read(self, path: Path, root: Path) -> Document:
        document = read_document(path)
        self.sources.append(Source(path, root, document.sha256))
        self.workspaces[path] = workspace_of(path, self.home)
        return document

    def take(self, path: Path) -> None:
        """Take in one file that was asked for."""
        document = self.read(path, path)
        host = self.host_entries(document)
        if host is not None:
            for entry in host:
                self.add(entry)
            return
        if document.format == "json":
            raise _no_servers(document)
        own = read_own(document)
        if own.supervisor is not None:
            if self.supervisor is not None:
                raise document.error(("supervisor",), "another file has this table too", "Keep one of them")
            self.supervisor = own.supervisor
        entries = self.imported(own, path)
        for entry in own.entries:
            below = entries.get(entry.name)
            if below is None and not {"command", "url"} & entry.values.keys():
                known = nearest(entry.name, entries) if entries else None
                raise entry.said.error(
                    "neither a command nor a url, and no imported file has a server of that name",
                    known or f'Add command = "…", or import = ["…"] at the top of {path.name}',
                )
            entries[entry.name] = entry if below is None else _overlaid(below, entry)
        for entry in entries.values():
            if own.defaults is not None:
                self.default_of[entry.name] = own.defaults
            self.add(entry)

    def imported(self, own: Own, root: Path) -> dict[str, Entry]:
        """Return the servers of the host files our own file imports, by name."""
        entries: dict[str, Entry] = {}
        for said in own.imports:
            full_text(said)
            expander = Expander("import", self.environ, self.workspaces[root], self.home, self.allow_unset)
            path = Path(os.path.abspath(expander.path(expander.expand(said).text, said)))
            if path in self.workspaces:
                raise said.error(f"{path} is read already", "Name each file once")
            try:
                document = self.read(path, root)
            except ConfigError as err:
                if err.line is None:  # nothing in the file is at fault: the import is
                    raise said.error(f"{path}: {err.problem}", err.hint) from None
                raise
            found = self.host_entries(document)
            if found is None:
                if document.format == "json":
                    raise _no_servers(document)
                raise said.error(
                    f"{path} is no host's file", "Import hosts' files only; give both of ours with -f"
                )
            for entry in found:
                if (other := entries.get(entry.name)) is not None:
                    if other.said.value == entry.said.value:
                        self.warnings.append(
                            f"{_at(entry.said)}: {entry.name} says the same as {_at(other.said)}; that one is used"
                        )
                        continue
                    raise _twice(entry, other)
                entries[entry.name] = entry
        return entries

    def host_entries(self, document: Document) -> list[Entry] | None:
        found = read_host(document)
        if found is None:
            return None
        entries, warnings = found
        self.warnings += warnings
        return entries

    def add(self, entry: Entry) -> None:
        if (other := self.entries.get(entry.name)) is not None:
            raise _twice(entry, other)
        self.entries[entry.name] = entry

    def with_defaults(self, name: str, entry: Entry) -> Entry:
        defaults = self.default_of.get(name)
        if defaults is None:
            return entry
        values = dict(defaults.values)
        # What a service says about one sort of readiness leaves no room for a default of another sort.
        if "ready" in entry.values:
            values = {key: said for key, said in values.items() if key not in {"ready_path", "ready_pattern"}}
        entry.values = values | entry.values
        entry.env = defaults.env | entry.env
        return entry


def _overlaid(below: Entry, above: Entry) -> Entry:
    """Return the imported server with our own file's words over it."""
    values = dict(below.values)
    if "command" in above.values:  # another command has arguments of its own
        values.pop("args", None)
    below.values = values | above.values
    below.env = below.env | above.env
    below.kind = above.kind
    return below


def _twice(entry: Entry, other: Entry) -> ConfigError:
    return entry.said.error(
        f"another file names a service {entry.name!r} too: {_at(other.said)}",
        "Rename one of them, or leave one file away",
    )


def _at(said: Said) -> str:
    return said.document.place(said.where)


def _no_servers(document: Document) -> ConfigError:
    if "manifest_version" in document.data or "packages" in document.data:
        return document.error((), "a bundle's manifest or a registry entry, not a host's configuration")
    known = ("mcpServers", "servers", "context_servers", "mcp")
    key = next((key for key in document.data if (nearest(key, known) or "").startswith("Did")), None)
    hint = nearest(key, known) if key is not None else None
    where = (key,) if key is not None else ()
    return document.error(
        where,
        "no servers in it",
        hint or 'A host\'s file looks like {"mcpServers": {"NAME": {"command": "…"}}}',
    )
