"""Whether a file may start anything: a project's file is somebody else's code until its reader has said yes.

The word is given for the file's bytes: a changed file is asked about anew.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from birthmark.children.installation import Installation
from birthmark.config.model import Config, Source
from birthmark.errors import InstallationBroken
from birthmark.interfaces.cli.configuring import config_folder
from birthmark.interfaces.cli.render import one_line

_FILE: Final = "trusted.json"
_VERSION_CONTROL: Final = (".git", ".hg", ".jj", ".svn", ".bzr", "_darcs", ".fslckout")


def project_of(path: Path) -> Path | None:
    """Return the folder with version control that the file lies in; None for a file of the user's own.

    A link leads where it leads: a file counts as a project's by its name or by what it links to.
    """
    for place in dict.fromkeys((Path(os.path.abspath(path)), Path(os.path.realpath(path)))):
        if place.is_relative_to(config_folder()):
            continue
        for folder in place.parents:
            if any((folder / name).exists() for name in _VERSION_CONTROL):
                if not _own_dotfile(place, folder):
                    return folder
                break
    return None


def _own_dotfile(place: Path, project: Path) -> bool:
    """Say whether it is a dotfile in a home folder that is itself under version control."""
    try:
        return project == Path.home() and place.relative_to(project).parts[0].startswith(".")
    except RuntimeError:  # no entry for our uid
        return False


def untrusted(config: Config, installation: Installation) -> list[Source]:
    """Return the files of projects, among those read, that nobody has said yes to.

    Raises:
        InstallationBroken: What was said yes to cannot be read.
    """
    asked = [source for source in config.sources if project_of(source.path) is not None]
    if not asked:
        return []
    known = _read(installation.home / _FILE)
    return [source for source in asked if known.get(str(source.path)) != source.sha256]


def trust(sources: Sequence[Source], installation: Installation) -> None:
    """Write down that these very bytes may start what they name.

    Raises:
        InstallationBroken: It cannot be written.
    """
    path = installation.home / _FILE
    known = {**_read(path), **{str(source.path): source.sha256 for source in sources}}
    draft = path.with_name(f"{_FILE}.{os.getpid()}")
    try:
        draft.unlink(missing_ok=True)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            json.dump(known, file, indent=1)
        draft.replace(path)
    except OSError as err:
        raise InstallationBroken(str(path), f"cannot be written: {err.strerror}") from err


def _read(path: Path) -> dict[str, str]:
    try:
        known = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as err:
        raise InstallationBroken(str(path), f"cannot be read ({err}); remove it to be asked anew") from err
    if not isinstance(known, dict):
        raise InstallationBroken(str(path), "holds no JSON object; remove it to be asked anew")
    return {str(name): str(digest) for name, digest in known.items()}


def commands(config: Config) -> list[str]:
    """Return what the configuration would start, one line a service, as it may be shown.

    Names of variables are shown too: some of them make a harmless program run something else.
    """
    lines = []
    for each in config.services:
        if each.remote or not each.enabled:
            continue
        names = f"  (with {', '.join(sorted(each.env))})" if each.env else ""
        lines.append(one_line(f"{each.name}: {shlex.join(each.written or each.command[:1])}{names}"))
    return lines
