"""Which file a service's command means, and what to say when it means none."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from birthmark.config.model import ServiceSpec
from birthmark.errors import SpawnFailed

_WELL_KNOWN_FOLDERS: Final = """
~/.local/bin ~/.nvm/versions/node/*/bin ~/.volta/bin ~/.local/share/mise/shims ~/.asdf/shims
~/.local/share/fnm/aliases/default/bin ~/.bun/bin ~/.deno/bin ~/.cargo/bin ~/.pyenv/shims ~/go/bin
/opt/homebrew/bin /usr/local/bin /home/linuxbrew/.linuxbrew/bin /opt/local/bin /snap/bin
"""
_WELL_KNOWN: Final = tuple(_WELL_KNOWN_FOLDERS.split())
"""Where version managers put programs: a start from a desktop or a service manager has none of them in its PATH."""


def resolve_command(spec: ServiceSpec, environ: Mapping[str, str], cwd: Path | None = None) -> Path:
    """Return the absolute path of the service's program, searched with the child's own PATH.

    Args:
        spec: A service with a command.
        environ: The child's environment, as `child_environ` returns it.
        cwd: The child's working directory; None: the service's.

    Raises:
        SpawnFailed: There is no such working directory; the program is missing, a folder, or not executable. A search that
            found nothing names the PATH, and the well-known folder that has the program, if one has.
        ValueError: The service has no command: it is remote.
    """
    if not spec.command:
        raise ValueError(f"{spec.name} has no command: it is a remote server")
    program = spec.command[0]
    folder = cwd or spec.cwd or Path.cwd()
    if not folder.is_dir():
        hint = (
            f"its working directory {folder} is no folder"
            if folder.exists()
            else f"its working directory {folder} is missing"
        )
        raise SpawnFailed(program, errno.ENOTDIR if folder.exists() else errno.ENOENT, "cwd", hint=hint)
    if "\0" in program:
        raise SpawnFailed(program, errno.EINVAL, "exec", hint="its name holds a NUL")
    if _has_folder(program):
        path = folder / program
        if (number := _refusal(path)) is not None:
            raise SpawnFailed(program, number, "exec", hint=_why(number, path))
        return path
    return _search(program, environ, folder)


def _search(program: str, environ: Mapping[str, str], folder: Path) -> Path:
    searched = environ.get("PATH", os.defpath)
    if sys.platform == "win32":
        found = shutil.which(program, path=searched)  # knows PATHEXT
        if found is not None:
            return Path(os.path.abspath(found))
    met: tuple[int, Path] | None = None
    for entry in searched.split(os.pathsep):
        path = folder / entry / program  # an empty entry means the working directory
        number = _refusal(path)
        if number is None:
            return path
        if number != errno.ENOENT:
            met = met or (number, path)
    if met is not None:
        raise SpawnFailed(program, met[0], "search", searched, _why(*met))
    elsewhere = next(_elsewhere(program, environ), None)
    hint = None
    if " " in program.strip():
        hint = "its name holds spaces: if what follows the first is arguments, put them into args"
    if elsewhere is not None:
        hint = (
            f"it is in {elsewhere.parent}: write the whole path as the command, "
            "or add that folder to PATH in the service's env"
        )
    raise SpawnFailed(program, errno.ENOENT, "search", searched, hint)


def _elsewhere(program: str, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield where well-known folders have the program."""
    home = environ.get("HOME") or os.path.expanduser("~")
    for pattern in _WELL_KNOWN:
        whole = Path(pattern.replace("~", home, 1) if pattern.startswith("~") else pattern)
        star = next((at for at, part in enumerate(whole.parts) if part == "*"), None)
        if star is None:
            folders = [whole]
        else:
            above, below = Path(*whole.parts[:star]), whole.parts[star + 1 :]
            try:
                folders = sorted((each.joinpath(*below) for each in above.iterdir()), reverse=True)
            except OSError:
                continue
        yield from (each / program for each in folders if _refusal(each / program) is None)


def _has_folder(program: str) -> bool:
    return os.sep in program or bool(os.altsep and os.altsep in program)


def _refusal(path: Path) -> int | None:
    """Return the errno that executing `path` would give, None when it can be tried."""
    try:
        mode = os.stat(path).st_mode
    except OSError as err:
        # A folder of PATH that is missing, a file, or closed to us has no program for us.
        return errno.EACCES if err.errno == errno.EACCES else errno.ENOENT
    except ValueError:
        return errno.ENOENT
    if stat.S_ISDIR(mode):
        return errno.EISDIR
    return None if stat.S_ISREG(mode) and os.access(path, os.X_OK) else errno.EACCES


def _why(number: int, path: Path) -> str | None:
    match number:
        case errno.EISDIR:
            return f"{path} is a folder; name the program in it"
        case errno.EACCES:
            return f"{path} is not executable for this user"
        case errno.ENOENT:
            return f"there is no {path}"
    return None
