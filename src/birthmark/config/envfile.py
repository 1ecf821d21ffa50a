"""Files of variables, one ``NAME=value`` a line, as ``env_file`` and hosts' ``envFile`` name them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from birthmark.config.files import Unreadable, read_regular
from birthmark.config.values import Said, check_text
from birthmark.errors import ConfigError

_LINE: Final = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.]*)[ \t]*=[ \t]*(.*)")
_LIMIT_BYTES: Final = 2**20


def read_env_file(path: Path, said: Said) -> dict[str, str]:
    """Return the variables of a file; quotes around a value are taken off, nothing is expanded.

    Raises:
        ConfigError: It cannot be read, or a line is neither a comment nor ``NAME=value``; the line is not repeated,
            since it may hold a secret.
    """
    try:
        text = read_regular(path, _LIMIT_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(str(path), "the file is not UTF-8", hint="Save it as UTF-8") from None
    except Unreadable as err:
        raise said.error(f"the file {path} cannot be read: {err}") from None
    variables: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        found = _LINE.fullmatch(stripped)
        if found is None:
            raise ConfigError(str(path), "not of the form NAME=value", number)
        name, value = found.groups()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        check_text(said, value)
        variables[name] = value
    return variables
