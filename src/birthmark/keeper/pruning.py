"""Pruning: `birthmark run` keeps the newest papers and takes away old ones, so that their folder does not grow for ever.

It is done by a front whose command has ended, with its client waiting, so the work is bounded. Where a
supervisor boots on the installation now and then, it takes all papers in long before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from birthmark.core.identity import HostFacts
from birthmark.keeper.papers import EXIT, KEPT
from birthmark.keeper.reading import DONE, BirthPapers, PaperUnreadable, read_papers, take_away
from birthmark.platforms import load

AT_MOST: Final = 8
"""Births taken away by one front: more than one, so that a crowd that has gathered is worked off."""

LOOKED_AT: Final = 2000
"""Folders a front looks at, so that neither an enormous crowd is listed nor the client kept waiting."""

_READ: Final = 4 * AT_MOST


def prune(births: Path, *, kept: int = KEPT, at_most: int = AT_MOST) -> int:
    """Take the papers of some old births away that have ended with nobody left; returns how many.

    Those that may still be alive stay, and those that cannot be understood. A birth without an end stays
    until the machine has been started anew: only then is nobody of it left for certain.

    Raises:
        OSError: The folder cannot be listed.
    """
    ages: list[tuple[float, str]] = []
    with os.scandir(births) as folders:
        for number, folder in enumerate(folders):
            if number >= LOOKED_AT:
                break
            try:
                ages.append((folder.stat(follow_symlinks=False).st_mtime, folder.name))
            except OSError:
                continue  # just taken away by another front
    ages.sort()
    gone = 0
    for folder_path in _over(births, ages[: max(0, len(ages) - kept)]):
        if gone >= at_most:
            break
        try:
            take_away(folder_path)
            gone += 1
        except OSError:
            continue
    return gone


def _over(births: Path, old: list[tuple[float, str]]) -> Iterator[Path]:
    """Yield the folders that nobody needs, in the order given; reads no more than a bounded number of papers."""
    booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    here = load().facts()
    read = 0
    for written_at, name in old:
        folder = births / name
        if name.startswith(".") and name.endswith(DONE):
            yield folder  # whoever took it away did not get to the end
            continue
        # The cheap questions first: a crowd without exit records costs one look each, not one paper each.
        if not os.path.exists(folder / EXIT) and written_at >= booted_at:
            continue
        if read >= _READ:
            return
        read += 1
        try:
            papers = read_papers(folder)
        except PaperUnreadable:
            continue
        if papers is not None and is_over(papers, here):
            yield folder


def is_over(papers: BirthPapers, here: HostFacts) -> bool:
    """Say whether nobody of a birth can be left: its end is written down without survivors, or it was before this boot."""
    if papers.ended_at is not None and not papers.survivors:
        return True
    who = papers.identity or papers.front
    return who is not None and who.host == here.host and who.boot != here.boot
