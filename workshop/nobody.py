"""Run a command as a user that nothing on this machine belongs to. Linux only; needs root and a private mount namespace.

    unshare --mount --propagation private -- python -m workshop.nobody FOLDER -- COMMAND…

The Python and the tree may lie where other users cannot go (a home of mode 0700). Nobody's home is opened for
that: inside the namespace the closed folder is covered by an empty one, with only what the suite needs laid into
it. FOLDER becomes the user's: home, TMPDIR, everything it may write to.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from workshop.environment import ROOT

UID: Final = 61713
NAME: Final = "birthmark-test"
IMPOSSIBLE: Final = 77
"""Exit code for "this machine cannot", with the reason on stderr."""
KEPT: Final = ("PATH", "LANG", "LC_ALL", "TERM", "TZ", "CI", "COLUMNS", "NO_COLOR", "FORCE_COLOR")


def main(arguments: Sequence[str]) -> int:
    """Prepare the namespace, then become the reaper that runs the command as the user."""
    folder, separator, *command = arguments
    if separator != "--" or not command:
        raise SystemExit("usage: python -m workshop.nobody FOLDER -- COMMAND…")
    home = Path(folder)
    stage = home / "stage"
    stage.mkdir()
    mount("-t", "tmpfs", "-o", "mode=755", "stage", stage)
    open_the_way(needed(), stage)
    register(stage, home)
    subprocess.run(["umount", "--lazy", stage], check=False)  # what was laid out of it stays
    for mine in (home, home / "home", home / "tmp"):
        mine.mkdir(exist_ok=True)
        mine.chmod(0o700)
        os.chown(mine, UID, UID)
    os.chdir(ROOT)  # again: the old working directory is the one that was covered
    environment = {
        **{name: os.environ[name] for name in KEPT if name in os.environ},
        "HOME": f"{home}/home",
        "TMPDIR": f"{home}/tmp",
        "USER": NAME,
        "LOGNAME": NAME,
        "SHELL": "/bin/sh",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": f"{home}/tmp/hypothesis",
    }
    probe = subprocess.run(
        [sys.executable, "-c", "import birthmark, pytest, tests"],
        user=UID, group=UID, extra_groups=[], env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if probe.returncode != 0:
        print(
            f"another user cannot read the tree or the environment: {probe.stderr.strip()}", file=sys.stderr
        )
        return IMPOSSIBLE
    reaper = [sys.executable, "-m", "workshop.reaper", "--user", str(UID)]
    sys.stdout.flush()
    os.execve(reaper[0], [*reaper, *command], environment)


def needed() -> list[Path]:
    """Return the folders that the suite reads: the tree, the Python under the environment, the links between."""
    folders = {ROOT, Path(sys.base_prefix), Path(sys.base_exec_prefix), Path(sys.prefix)}
    link = Path(sys.executable)
    while link.is_symlink():
        link = Path(os.path.normpath(link.parent / link.readlink()))
        folders.add(link.parent)
    return [path for path in sorted(folders) if not any(up in folders for up in path.parents)]


def open_the_way(folders: Iterable[Path], stage: Path) -> None:
    """Lay each folder that others cannot reach into an empty one that covers what is closed."""
    covers: dict[Path, list[Path]] = {}
    for folder in folders:
        closed = [place for place in (folder, *folder.parents) if not is_open(place)]
        if closed:
            covers.setdefault(closed[-1], []).append(folder)
    # All are staged before the first cover goes on: a cover hides what is beneath it.
    staged = {}
    for number, folder in enumerate(folder for held in covers.values() for folder in held):
        staged[folder] = stage / str(number)
        staged[folder].mkdir()
        mount("--rbind", folder, staged[folder])
    for cover, held in covers.items():
        mount("-t", "tmpfs", "-o", "mode=755", "cover", cover)
        for folder in held:
            lay(staged[folder], folder)


def lay(original: Path, place: Path) -> None:
    """Make the original visible at the place; if the original itself is closed, each of its entries."""
    if is_open(original):
        place.mkdir(parents=True, exist_ok=True)
        mount("--rbind", original, place)
        return
    place.mkdir(parents=True, exist_ok=True)
    for entry in original.iterdir():
        target = place / entry.name
        if entry.is_symlink():
            target.symlink_to(entry.readlink())
        elif entry.is_dir() or entry.is_file():
            target.mkdir() if entry.is_dir() else target.touch()
            mount("--rbind", entry, target)


def is_open(place: Path) -> bool:
    """Tell whether others may enter and list the folder."""
    return place.stat().st_mode & 0o005 == 0o005


def register(stage: Path, home: Path) -> None:
    """Give the user a name in this namespace's own copies of passwd and group: some programs ask for one."""
    lines = {
        "passwd": f"{NAME}:x:{UID}:{UID}::{home}/home:/bin/sh\n",
        "group": f"{NAME}:x:{UID}:\n",
    }
    for name, line in lines.items():
        copy = stage / name
        copy.write_text(Path(f"/etc/{name}").read_text().rstrip("\n") + "\n" + line)
        mount("--bind", copy, f"/etc/{name}")


def mount(*arguments: str | Path) -> None:
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"mount {' '.join(map(str, arguments))}: {done.stderr.strip()}", file=sys.stderr)
        raise SystemExit(IMPOSSIBLE)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
