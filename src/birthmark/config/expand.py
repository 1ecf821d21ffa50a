"""References in values: ``${VAR}``, ``${VAR:-default}``, ``${env:VAR}``, ``${file:PATH}``, ``${workspaceFolder}``,
``${userHome}``.

A bare ``$VAR`` is left alone, since passwords contain ``$``; ``$${`` stands for ``${``; ``${port}`` and ``{port}``
wait for the port to be leased. An empty variable counts as unset for ``:-``, as in a shell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from birthmark.config.environ import PLAIN, matches
from birthmark.config.files import Unreadable, read_regular
from birthmark.config.values import Said, check_text, text
from birthmark.errors import ConfigError

_REFERENCE: Final = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE_LIMIT_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class Expanded:
    """A value with its references replaced; `told` says whether something that may be a secret is part of it: a
    file, or a variable other than ``HOME``, ``PATH`` and their like."""

    text: str
    told: bool


@dataclass(frozen=True, slots=True)
class Expander:
    """Replaces references in the values of one service.

    `workspace` is the folder that relative paths and ``${workspaceFolder}`` mean. With `allow_unset`, a reference to a
    variable that is not set is left as it stands.
    """

    service: str
    environ: Mapping[str, str]
    workspace: Path
    home: Path
    allow_unset: bool = False

    def expand(self, said: Said) -> Expanded:
        """Return the string with its references replaced.

        Raises:
            ConfigError: It is no string; a variable is not set, a file cannot be read, or a reference is none we know.
        """
        written = text(said)
        told = False
        parts: list[str] = []
        at = 0
        for found in _REFERENCE.finditer(written):
            parts.append(written[at : found.start()])
            at = found.end()
            if found.group() == "$${":
                parts.append("${")
            elif found.group(1) is None:
                raise said.error(
                    f"{self.service}: a reference that begins with ${{ and does not end, or has another one inside",
                    "Close it with }, or write $${ for the characters themselves",
                )
            else:
                value, from_outside = self._look_up(found.group(), found.group(1), said)
                parts.append(value)
                told = told or from_outside
        parts.append(written[at:])
        value = "".join(parts)
        check_text(said, value)
        return Expanded(value, told)

    def _look_up(self, whole: str, inside: str, said: Said) -> tuple[str, bool]:
        match inside:
            case "port":
                return whole, False
            case "workspaceFolder" | "workspaceRoot":
                return str(self.workspace), False
            case "workspaceFolderBasename":
                return self.workspace.name, False
            case "userHome":
                return str(self.home), False
            case "/" | "pathSeparator":
                return os.sep, False
        scheme, colon, rest = inside.partition(":")
        if colon and scheme == "file":
            return self._file(rest, said), True
        if colon and scheme == "input":
            raise said.error(
                f"{self.service}: ${{input:{rest}}} asks a person in an editor, and here nobody asks",
                "Set a variable and write ${VAR} in a birthmark.toml that imports this file",
            )
        if colon and scheme == "env" and not rest.startswith("-"):
            return self._variable(whole, rest, said)
        return self._variable(whole, inside, said)

    def _variable(self, whole: str, inside: str, said: Said) -> tuple[str, bool]:
        name, has_default, default = inside.partition(":-")
        if not _NAME.fullmatch(name):
            raise said.error(
                f"{self.service}: {whole[:80]} is no reference known here",
                "Known are ${VAR}, ${VAR:-default}, ${env:VAR}, ${file:PATH}, ${workspaceFolder}, ${userHome}; "
                "write $${ for the characters themselves",
            )
        value = self.environ.get(name)
        if has_default:
            return (value, not matches(name, PLAIN)) if value else (default, False)
        if value is None:
            if self.allow_unset:
                return whole, False
            raise said.error(
                f"{self.service}: the variable {name} is not set",
                f"Set it, write ${{{name}:-default}}, or leave it as it stands with --allow-unset",
            )
        return value, not matches(name, PLAIN)

    def _file(self, written: str, said: Said) -> str:
        path = self.path(written, said)
        try:
            raw = read_regular(path, _FILE_LIMIT_BYTES)
        except Unreadable as err:
            raise said.error(f"{self.service}: the file {path} cannot be read: {err}") from None
        # Editors and `echo` end a file with a newline that is no part of a password.
        return raw.decode("utf-8", "surrogateescape").removesuffix("\n").removesuffix("\r")

    def path(self, written: str, said: Said) -> Path:
        """Return an absolute path: ``~`` is the home, relative ones start at the workspace."""
        if not written:
            raise self.no_path(said)
        if written == "~" or written.startswith(("~/", "~\\")):
            return self.home / written[2:]
        return self.workspace / written

    def no_path(self, said: Said) -> ConfigError:
        """Return the error about an empty path."""
        return said.error(f"{self.service}: an empty path")
