"""A host's file with each stdio server under ``birthmark run``, and back: by edits of the text, nothing else moves.

What `wrapped` puts in, `unwrapped` takes out to the byte. How the arguments stood before shows in the blanks inside
the brackets, which no reader of the file sees:

    ["-I", … "npx"]       there were none: key and array are ours
    [ "-I", … "npx" ]     there was an empty array, or one with arguments
    [  "-I", … "npx"  ]   there was a null

Every result is read again and compared with what was meant, so that a text we misread is refused and not spoiled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from birthmark.config.clients import HTTP, SAME_KEY, STDIO, host_of, servers_of
from birthmark.config.documents import Document, Where, parse_document
from birthmark.config.find import FILE_NAME
from birthmark.config.jsonc import locate_jsonc
from birthmark.config.spans import Array, Edit, Span, apply
from birthmark.config.tomlfile import key_places
from birthmark.config.unwrap import unwrap
from birthmark.config.written import Written, written_in_json, written_in_toml
from birthmark.core.service import ServiceName
from birthmark.errors import ConfigError

_BOM: Final = b"\xef\xbb\xbf"
_REPLACED_BY_HOSTS: Final = frozenset("$%{}")
"""A name with one of these would be something else in some hosts' arguments."""


@dataclass(frozen=True, slots=True)
class Server:
    """What becomes of one server: `changed`, or why it is left. `place` is ``file:line``."""

    name: str
    place: str
    changed: bool
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Rewriting:
    """One file's content before and after. They are equal when there is nothing to do."""

    path: Path
    host: str
    before: bytes
    after: bytes
    servers: tuple[Server, ...]


@dataclass(frozen=True, slots=True)
class Wrapper:
    """What stands in front of a wrapped server's own command."""

    server: str
    words: tuple[str, ...]


def wrapped(path: Path, raw: bytes, launcher: Sequence[str]) -> Rewriting:
    """Return the file with every stdio server's command behind the words of `launcher`, its name and ``--``.

    Servers that run under ``birthmark run`` already, and remote ones, are left.

    Args:
        path: Whose content it is; its name tells host and format.
        raw: The content.
        launcher: An absolute interpreter and what it needs to become ``birthmark run``.

    Raises:
        ConfigError: The file is no host's, or something in it is not understood.
    """
    text = _Text(path, raw)
    return text.rewritten([_wrap(text, each, launcher) for each in _servers(text.document)])


def unwrapped(path: Path, raw: bytes) -> Rewriting:
    """Return the file with every server that runs under ``birthmark run`` as it was without.

    Raises:
        ConfigError: The file is no host's, or something in it is not understood.
    """
    text = _Text(path, raw)
    return text.rewritten([_unwrap(text, each) for each in _servers(text.document)])


def has_servers(path: Path, raw: bytes) -> bool:
    """Say whether a host's file names any server; an empty file does not.

    Raises:
        ConfigError: The file cannot be read as what it is.
    """
    if not raw.strip():
        return False
    return any(servers for _, servers in _tables(parse_document(path, raw)))


def wrappers_in(path: Path, raw: bytes) -> list[Wrapper]:
    """Return what stands in front of each wrapped server.

    Raises:
        ConfigError: The file is no host's, or something in it is not understood.
    """
    return [
        Wrapper(_named(entry), entry.words[: len(entry.words) - len(inner[0])])
        for entry in _servers(parse_document(path, raw))
        if (inner := unwrap(entry.words))
    ]


# -- what a file says ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Entry:
    """One server; without a command, `why` says what it is."""

    name: str
    where: Where
    command: Where | None = None
    args: Where | None = None
    words: tuple[str, ...] = ()
    why: str | None = None


def _servers(document: Document) -> list[_Entry]:
    tables = _tables(document)
    if not tables:
        ours = document.path.name == FILE_NAME
        hint = "`birthmark up` supervises what it names, without a wrapper" if ours else None
        raise document.error((), "there are no servers of an MCP host in it", hint)
    return [
        _entry(document, (*where, name), name, server)
        for where, servers in tables
        for name, server in servers.items()
    ]


def _tables(document: Document) -> list[tuple[Where, dict[str, object]]]:
    """Return every table of servers, those of single projects included."""
    found = servers_of(document)
    # TOML is Codex's. Another program's table of servers is none of ours.
    tables = (
        [found] if found is not None and (document.format == "json" or found[0] == ("mcp_servers",)) else []
    )
    projects = document.data.get("projects")
    if isinstance(projects, dict) and document.format == "json":
        for folder, project in projects.items():
            if isinstance(project, dict) and isinstance(servers := project.get("mcpServers"), dict):
                tables.append((("projects", folder, "mcpServers"), servers))
    return tables


def _entry(document: Document, where: Where, name: str, server: object) -> _Entry:
    if not isinstance(server, dict):
        raise document.error(where, "a table is expected")
    programs = _keys(server, "command")
    kinds = [server[key] for key in _keys(server, "type")]
    for kind in kinds:
        if not isinstance(kind, str) or kind not in STDIO | HTTP:
            raise document.error(where, f"its type {kind!a} is not known here")
    remote = any(server[key] != "" for key in _keys(server, "url")) or any(kind in HTTP for kind in kinds)
    if not programs:
        return _Entry(name, where, why="it is remote" if remote else "it names no command")
    if remote:
        raise document.error(
            where, "it has a command and says that it is remote: hosts differ in what they do"
        )
    if len(programs) > 1:
        raise document.error(where, f"it has two commands: {programs[0]} and {programs[1]}")
    command = (*where, programs[0])
    words = _words(document, command, server[programs[0]])
    given = [key for key in server if SAME_KEY.get(key) == "args"]
    args = (*where, given[0]) if given else None
    if args is not None and server[given[0]] is not None:
        words += _words(document, args, server[given[0]], alone=False)
    why = (
        "it runs in the host's sandbox, where birthmark may be out of reach"
        if server.get("sandboxEnabled")
        else None
    )
    return _Entry(name, where, command, args, words, why)


def _keys(server: dict[str, object], meaning: str) -> list[str]:
    return [key for key, value in server.items() if SAME_KEY.get(key) == meaning and value is not None]


def _words(document: Document, where: Where, value: object, *, alone: bool = True) -> tuple[str, ...]:
    words = [value] if alone and isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise document.error(
            where, "text is expected, or an array of it" if alone else "an array of text is expected"
        )
    if alone and not words:
        raise document.error(where, "this is empty")
    return tuple(words)


# -- the edits -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Change:
    """What is to be done to one server: edits, and the words it has afterwards."""

    entry: _Entry
    edits: tuple[Edit, ...] = ()
    words: tuple[str, ...] = ()
    why: str | None = None


class _Text:
    """A file's text, and where things stand in it."""

    def __init__(self, path: Path, raw: bytes) -> None:
        self.raw = raw
        self.document = parse_document(path, raw)
        self.bom = _BOM if raw.startswith(_BOM) else b""
        self.text = raw[len(self.bom) :].decode("utf-8")
        is_json = self.document.format == "json"
        self._layout = locate_jsonc(self.text) if is_json else None
        self._places = {} if is_json else key_places(self.text)

    def written(self, entry: _Entry) -> Written:
        """Return where the entry's command stands.

        Raises:
            ConfigError: That is not certain.
        """
        assert entry.command is not None
        if self._layout is not None:
            return written_in_json(self.text, self._layout, entry.command, entry.args)
        found = written_in_toml(self.text, self._places, entry.command, entry.args)
        if found is None:
            raise self.document.error(
                entry.where,
                "its command is written in a way that is not changed here",
                "Give command and args a line each under a header: [mcp_servers.NAME]",
            )
        return found

    def rewritten(self, changes: Sequence[_Change]) -> Rewriting:
        """Return the text with the edits made, once it has been read again and found to say what was meant.

        Raises:
            ConfigError: It does not.
        """
        document = self.document
        edits = [edit for change in changes for edit in change.edits]
        after = self.raw
        if edits:
            after = self.bom + apply(self.text, edits).encode("utf-8")
            said = {change.entry.where: change.words for change in changes if change.edits}
            try:
                again = parse_document(document.path, after)
                agrees = _without_commands(again) == _without_commands(document, said)
            except ConfigError:
                agrees = False
            if not agrees:
                raise document.error((), "it is written in a way that is not changed here without harm")
        servers = [
            Server(_named(change.entry), document.place(change.entry.where), bool(change.edits), change.why)
            for change in changes
        ]
        return Rewriting(document.path, host_of(document).name, self.raw, after, tuple(servers))


def _named(entry: _Entry) -> str:
    return f"{entry.name} (in {entry.where[1]})" if len(entry.where) == 4 else entry.name


def _without_commands(
    document: Document, instead: dict[Where, tuple[str, ...]] | None = None
) -> tuple[object, dict[Where, tuple[str, ...]]]:
    """Return the data without programs and arguments, and those by server: as they are, or as said in `instead`."""
    data = deepcopy(document.data)
    words = {}
    for entry in _servers(replace(document, data=data)):
        if entry.command is not None:
            words[entry.where] = (instead or {}).get(entry.where, entry.words)
            table: object = data
            for key in entry.where:
                assert isinstance(table, dict)
                table = table[key]
            assert isinstance(table, dict)
            for way in (entry.command, entry.args):
                if way is not None:
                    table.pop(way[-1], None)
    return data, words


def _wrap(text: _Text, entry: _Entry, launcher: Sequence[str]) -> _Change:
    if entry.command is None or entry.why:
        return _Change(entry, why=entry.why)
    if unwrap(entry.words):
        return _Change(entry, why="it runs under `birthmark run` already")
    if (strange := _strange(entry.words[0])) is not None:
        raise text.document.error(entry.command, *strange)
    front = (*launcher, *_name_option(entry.name), "--")
    change = _Change(entry, (), front + entry.words)
    place = text.written(entry)
    if isinstance(place.command, Array):
        first = place.command.items[0]
        new = ", ".join(map(_literal, front))
        return replace(
            change, edits=(Edit(Span(first.start, first.start), new + _separator(text, place.command)),)
        )
    program, *options = map(_literal, front)
    # The program's own text moves as it stands, escapes and quotes included, so that it can move back.
    new = ", ".join([*options, place.command.of(text.text)])
    if isinstance(place.args, Array) and place.args.items:
        first = place.args.items[0]
        args = Edit(Span(first.start, first.start), new + _separator(text, place.args))
    elif isinstance(place.args, Array):
        args = Edit(Span(place.args.span.start + 1, place.args.span.start + 1), f" {new} ")
    elif place.args is not None:
        args = Edit(place.args, f"[  {new}  ]")
    else:
        args = Edit(Span(place.args_at, place.args_at), f"{place.before_args}{new}]")
    return replace(change, edits=(Edit(place.command, program), args))


def _separator(text: _Text, array: Array) -> str:
    """Return what goes between our words and the first there was: a new line where that one had one of its own."""
    before = text.text[array.span.start + 1 : array.items[0].start]
    return f",{before}" if "\n" in before and not before.strip() else ", "


def _literal(word: str) -> str:
    """Return a string as JSON and TOML write it alike."""
    return json.dumps(word, ensure_ascii=False).replace("\x7f", "\\u007f")


def _name_option(name: str) -> tuple[str, ...]:
    """Return the option that gives the server its name, where `run` and every host take it as it is."""
    try:
        ServiceName(name)
    except ValueError:
        return ()
    return () if name == "--" or _REPLACED_BY_HOSTS & set(name) else ("--name", name)


def _strange(program: str) -> tuple[str, str] | None:
    """Return why a program may mean another one once it is an argument, and the way out; None when it may not."""
    if not program.strip():
        return "this is empty", "Name a program"
    if program.startswith("~"):
        return "some hosts replace the ~ of a command only", "Write the whole path"
    if any(character.isspace() for character in program) and not Path(program).is_absolute():
        return "it holds blanks, and some hosts take it apart there", "Put what follows the program into args"
    return None


def _unwrap(text: _Text, entry: _Entry) -> _Change:
    if entry.command is None:
        return _Change(entry, why=entry.why)
    found = unwrap(entry.words)
    if found is None:
        return _Change(entry, why="it does not run under `birthmark run`")
    inner = found[0]
    taken = len(entry.words) - len(inner)
    change = _Change(entry, (), inner)
    place = text.written(entry)
    if isinstance(place.command, Array):
        items = place.command.items
        if taken >= len(items):
            raise text.document.error(
                entry.where, "the command inside stands in args, and its wrapper in command"
            )
        _require_no_comment(text, entry, items[: taken + 1])
        return replace(change, edits=(Edit(Span(items[0].start, items[taken].start), ""),))
    if not isinstance(place.args, Array):
        raise text.document.error(entry.where, "its wrapper is not understood")
    items = place.args.items
    _require_no_comment(text, entry, items[: taken + 1])
    program = Edit(place.command, items[taken - 1].of(text.text))
    if taken < len(items):
        args = Edit(Span(items[0].start, items[taken].start), "")
    else:
        args = _emptied(text, place, place.args)
    return replace(change, edits=(program, args))


def _emptied(text: _Text, place: Written, array: Array) -> Edit:
    """Return the edit that takes all arguments away: `wrapped` tells by its blanks what had been there."""
    first, last = array.items[0], array.items[-1]
    before = text.text[array.span.start + 1 : first.start]
    after = text.text[last.end : array.span.end - 1]
    if not before and not after and place.args_follow:
        return Edit(Span(place.args_at, array.span.end), "")
    if before == after == "  " and text.document.format == "json":
        return Edit(array.span, "null")
    if before.endswith(" ") and after.startswith(" "):
        return Edit(Span(first.start - 1, last.end + 1), "")
    comma = after.lstrip().startswith(",")
    return Edit(Span(first.start, last.end + (after.index(",") + 1 if comma else 0)), "")


def _require_no_comment(text: _Text, entry: _Entry, items: Sequence[Span]) -> None:
    """Refuse to take away what somebody wrote between the words.

    Raises:
        ConfigError: Something but commas and blanks is there.
    """
    for gap in _gaps(items):
        if gap.of(text.text).strip(" \t\r\n,"):
            raise text.document.error(
                entry.where, "there is a comment inside its wrapper", "Move it elsewhere"
            )


def _gaps(items: Sequence[Span]) -> Iterator[Span]:
    for left, right in pairwise(items):
        yield Span(left.end, right.start)
