"""Whether anybody still stands by a birth: asked of its papers, before somebody else may end what is left of it."""

from __future__ import annotations

from birthmark.children.proving import pin_or_none, still_runs
from birthmark.keeper.reading import BirthPapers, read_papers
from birthmark.platforms import load


def is_answered_for(papers: BirthPapers) -> bool | None:
    """Say whether the front of a birth lives; None when that cannot be known from here.

    An older version wrote down a mere number. It tells when nobody has it; who has it, it does not tell.

    Raises:
        LookFailed: We could not look.
    """
    if papers.front is not None:
        return still_runs(papers.front)
    if papers.identity is None:
        return None
    if still_runs(papers.identity) is not False:
        return None
    # The leader was of this pid namespace, where its front's number means something, or of an earlier boot.
    gone = papers.identity.boot != load().facts().boot or (held := pin_or_none(papers.by_pid)) is None
    if not gone and held is not None:
        held.close()
    return False if gone else None


def last_word(papers: BirthPapers) -> BirthPapers | None:
    """Read papers again whose front was found gone: it may have written the end just before. None when they are gone.

    Raises:
        PaperUnreadable: One of them cannot be understood.
    """
    return papers if papers.ended_at is not None else read_papers(papers.folder)
