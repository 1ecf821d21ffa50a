"""Papers of births that never ran, for whoever reads or removes them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from birthmark.children.command import new_birth
from birthmark.children.installation import open_installation
from birthmark.core.identity import Identity
from birthmark.core.markers import ChildKind
from birthmark.core.outcomes import ExitStatus
from birthmark.core.service import BirthId, ServiceName
from birthmark.keeper.papers import Papers
from birthmark.platforms import load


def ourselves(birth: BirthId | None = None) -> Identity:
    """Return who this process is, as the leader of a birth where one is given."""
    with load().pin(os.getpid()) as pinned:
        seen = load().observe(pinned, environ=False)
    assert seen is not None
    return replace(seen.identity(), birth=birth)


def intended(name: str = "time", *, front: Identity | None = None) -> Papers:
    """Write the intent of a birth of this test's installation."""
    installation = open_installation()
    papers = Papers(installation.births, new_birth())
    papers.intend(
        installation=installation.id,
        kind=ChildKind.MCP,
        service=ServiceName(name),
        program="/bin/true",
        by="run",
        front=front,
    )
    return papers


def ended(name: str = "time", *, survivors: tuple[int, ...] = (), code: int = 0) -> Papers:
    """Write all papers of a birth that has ended."""
    papers = intended(name, front=ourselves())
    papers.born(ourselves(papers.birth))
    papers.ended(ExitStatus(code=code), why="the command ended", survivors=list(survivors))
    return papers


def before_this_boot(papers: Papers) -> None:
    """Rewrite papers as if the machine had been started anew since, a minute after they were written."""
    boot = load().facts().boot
    for name in ("intent.json", "identity.json"):
        path = papers.folder / name
        if path.exists():
            path.write_text(path.read_text().replace(boot, "0" * len(boot)))
    aged(papers.folder, 10.0)


def aged(folder: Path, at: float) -> None:
    """Have a folder look as if it had last been written to at that time."""
    os.utime(folder, (at, at))


def rewrite(papers: Papers, name: str, **changes: object) -> None:
    """Change some of the values in one paper."""
    path = papers.folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
