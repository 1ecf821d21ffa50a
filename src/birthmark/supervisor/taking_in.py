"""Taking in: the papers of births under `birthmark run` become rows of the registry, and leave their folder.

`run` starts without waiting for a database; whoever boots a supervisor gathers what has become of it, all in one
transaction. Rows first, folders afterwards: a crash in between costs nothing, since taking in twice changes
nothing. Births whose front lives stay where they are, and so does what cannot be understood.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from birthmark.children.installation import Installation
from birthmark.children.proving import find_carriers, still_runs
from birthmark.core.service import BirthId
from birthmark.errors import InstallationBroken
from birthmark.keeper.answering import is_answered_for, last_word
from birthmark.keeper.reading import DONE, BirthPapers, PaperUnreadable, Shelf, read_shelf, take_away
from birthmark.registry.contract import BirthOrigin, BirthRecord, BirthState, Registry

BLANK_STAYS_S: Final = 3600.0
"""How long a folder without an intent stays: its front may be about to write one."""


@dataclass(slots=True)
class TakenIn:
    """What became of the papers: births now in the registry, and those that stayed, each with the reason."""

    births: list[BirthRecord] = field(default_factory=list)
    unreadable: list[PaperUnreadable] = field(default_factory=list)
    unsure: list[BirthPapers] = field(default_factory=list)
    """Whether their front lives cannot be known from here: it is in another pid namespace, or on another host."""


def take_in(installation: Installation, registry: Registry, *, epoch: int, at: datetime) -> TakenIn:
    """Take in all births that nobody stands by any more. Blocks; signals nobody.

    A birth without an end is taken in as *lost* when nothing is left of it, and else as the open birth
    it is, for the boot's sweep to end.

    Args:
        at: Now, written down as the end of births whose end nobody saw.

    Raises:
        InstallationBroken: The folder of the papers cannot be read.
        RegistryError: The rows could not be written; no paper was removed.
        LookFailed: We could not look at processes; nothing was changed.
    """
    shelf = read_papers_of(installation)
    done = TakenIn(unreadable=shelf.unreadable)
    over, left = _sorted(shelf, done)
    carried = _carried([papers.birth for papers in left], installation)
    folders: list[Path] = []
    for papers in over:
        done.births.append(record_of(papers))
        folders.append(papers.folder)
    for papers in left:
        alive = papers.birth in carried or _may_live(papers)
        done.births.append(record_of(papers) if alive else _lost(papers, at))
        folders.append(papers.folder)
    if done.births:
        registry.take_in(done.births, epoch=epoch)
    for folder in [*folders, *_remains(installation.births, shelf, installation)]:
        with suppress(OSError):
            take_away(folder)  # if it cannot be removed now, the next boot takes it in again, to no effect
    return done


def read_papers_of(installation: Installation, *, ended: bool = True) -> Shelf:
    """Read the papers of an installation. What was copied along with another's folder is not ours, and left out.

    Args:
        ended: Whether births with an exit record are read too.

    Raises:
        InstallationBroken: Their folder cannot be read.
    """
    births = installation.births
    try:
        shelf = read_shelf(births, ended=ended)
    except OSError as err:
        raise InstallationBroken(str(births), f"the births' papers cannot be listed: {err.strerror}") from err
    shelf.papers = [papers for papers in shelf.papers if papers.installation == installation.id]
    return shelf


def record_of(papers: BirthPapers) -> BirthRecord:
    """Return the papers of a birth as the registry would hold it."""
    if papers.ended_at is not None:
        known = papers.exit is not None and papers.exit.known
        state = BirthState.ENDED if known or not papers.born else BirthState.LOST
    else:
        state = BirthState.INTENDED if papers.identity is None else BirthState.BORN
    return BirthRecord(
        birth=papers.birth,
        service=papers.service,
        kind=papers.kind,
        state=state,
        epoch=0,
        identity=papers.identity,
        intended_at=_time(papers.intended_at),
        born_at=None if papers.born_at is None else _time(papers.born_at),
        ended_at=None if papers.ended_at is None else _time(papers.ended_at),
        exit=papers.exit,
        why=papers.why,
        origin=BirthOrigin.RUN,
    )


def _sorted(shelf: Shelf, done: TakenIn) -> tuple[list[BirthPapers], list[BirthPapers]]:
    """Return the births that are over, and those whose front is gone without a word of their end."""
    over: list[BirthPapers] = []
    left: list[BirthPapers] = []
    for papers in shelf.papers:
        if papers.ended_at is not None:
            over.append(papers)
            continue
        answered = is_answered_for(papers)
        if answered is None:
            done.unsure.append(papers)
        if answered is not False:
            continue
        try:
            last = last_word(papers)
        except PaperUnreadable as err:
            done.unreadable.append(err)
            continue
        if last is not None:
            (left if last.ended_at is None else over).append(last)
    return over, left


def _carried(births: list[BirthId], installation: Installation) -> set[BirthId]:
    return {carrier.birth for carrier in find_carriers(births, installation.id)} if births else set()


def _may_live(papers: BirthPapers) -> bool:
    return papers.identity is not None and still_runs(papers.identity) is not False


def _lost(papers: BirthPapers, at: datetime) -> BirthRecord:
    born = papers.identity is not None
    why = "its `birthmark run` was killed, and nothing was left of it" if born else "never born"
    return replace(record_of(papers), state=BirthState.LOST, ended_at=at, why=why)


def _remains(births: Path, shelf: Shelf, installation: Installation) -> list[Path]:
    """Return folders that hold no birth: blank ones that are old and that nobody carries, and half removed ones."""
    old = [birth for birth in shelf.blank if _age_s(births / birth) > BLANK_STAYS_S]
    carried = _carried(old, installation)
    half_removed = [
        births / name for name in os.listdir(births) if name.startswith(".") and name.endswith(DONE)
    ]
    return [*(births / birth for birth in old if birth not in carried), *half_removed]


def _age_s(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_mtime
    except OSError:
        return 0.0


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
