"""What may not stand anywhere in the tree: addresses of registries, and paths of somebody's machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.reading import ROOT

NOT_OURS = {".git", ".hypothesis", ".venv", ".envs", "node_modules", "build", "dist", "__pycache__"}
# Written so that this file does not match itself.
REGISTRIES = re.compile(
    r"pypi[.]org|pythonhosted[.]org|npmjs[.](?:org|com)|(?:deb|security)[.]debian[.]org|index-ur[l][ =]*https?:"
)
MACHINES = re.compile(r"/roo[t]/[.\w]|/wor[k]/|[.]pyen[v]/versions|/tm[p]/bm/|/op[t]/(?:pypi|wheels)")


def texts() -> Iterator[tuple[Path, str]]:
    """Yield every text file of the tree that is not made by a tool."""
    folders = [ROOT]
    while folders:
        for entry in folders.pop().iterdir():
            if entry.name in NOT_OURS or entry.name.endswith((".egg-info", "_cache", ".so", ".pyc")):
                continue
            if entry.is_dir() and not entry.is_symlink():
                folders.append(entry)
            elif entry.is_file():
                try:
                    yield entry.relative_to(ROOT), entry.read_text(encoding="utf-8")
                except UnicodeDecodeError:
                    continue


def found(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{number}: {match.group()}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if (match := pattern.search(line))
    ]


def test_no_registry_is_named_by_its_address() -> None:
    assert found(REGISTRIES) == []


def test_no_path_of_a_machine_is_named() -> None:
    assert found(MACHINES) == []


def test_the_lock_pins_everything_with_hashes() -> None:
    entries = re.split(r"\n(?=\S)", (ROOT / "dev.lock").read_text().strip())
    wrong = [entry.splitlines()[0] for entry in entries if "==" not in entry or "--hash=sha256:" not in entry]
    assert entries
    assert wrong == []
