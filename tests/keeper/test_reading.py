"""Papers read back: what a crash, a full disk, a power cut or a newer version may have left of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from birthmark.children.installation import open_installation
from birthmark.core.outcomes import ExitStatus
from birthmark.keeper.answering import is_answered_for
from birthmark.keeper.papers import Papers
from birthmark.keeper.reading import PaperUnreadable, read_papers, read_shelf, take_away
from birthmark.platforms import load
from birthmark.testing import puppet
from tests.keeper.papers import before_this_boot, ended, intended, ourselves, rewrite


def test_what_was_written_is_what_is_read() -> None:
    papers = intended("clock / 時計", front=ourselves())
    read = read_papers(papers.folder)
    assert read is not None
    assert (read.birth, read.service, read.by_pid, read.front) == (
        papers.birth, "clock / 時計", os.getpid(), ourselves(),
    )  # fmt: skip
    assert (read.identity, read.ended_at, read.exit) == (None, None, None)
    papers.born(ourselves(papers.birth))
    papers.ended(ExitStatus(signal=9, core_dumped=True), why="the client is gone", survivors=[7, 8])
    read = read_papers(papers.folder)
    assert read is not None
    assert read.identity == ourselves(papers.birth)
    assert (read.exit, read.why, read.survivors, read.born) == (
        ExitStatus(signal=9, core_dumped=True), "the client is gone", (7, 8), True,
    )  # fmt: skip


def test_a_birth_that_never_was_is_told_from_one_that_ended() -> None:
    papers = intended()
    papers.never_born("no such program")
    read = read_papers(papers.folder)
    assert read is not None
    assert (read.born, read.why) == (False, "no such program")


@pytest.mark.parametrize("name", ["intent.json", "identity.json", "exit.json"])
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty: the machine went down before it reached the disk"),
        (b'{"version": 1, "birth"', "it is no JSON: "),
        (b"\xff\x00", "it is no JSON: "),
        (b"[" * 100_000, "it is no JSON: "),
        (b"[1]", "it is no JSON object"),
        (b"{}", "its 'version' is None"),
        (b'{"version": true}', "its 'version' is True"),
        (b'{"version": 2}', "a newer birthmark wrote it (version 2; this one knows 1)"),
        (b'{"version": 1, "birth": "0123456789abcdef0123456789abcdef"}', "it is about birth '0123"),
    ],
)
def test_a_paper_that_cannot_be_understood_is_named(name: str, content: bytes, why: str) -> None:
    papers = ended()
    (papers.folder / name).write_bytes(content)
    with pytest.raises(PaperUnreadable) as caught:
        read_papers(papers.folder)
    assert caught.value.path == papers.folder / name
    assert why in caught.value.why


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("intent.json", {"kind": "daemon"}),
        ("intent.json", {"kind": None}),
        ("intent.json", {"service": "a=b"}),
        ("intent.json", {"service": ""}),
        ("intent.json", {"installation": "mine"}),
        ("intent.json", {"at": "noon"}),
        ("intent.json", {"at": 1e300}),
        ("intent.json", {"by_pid": "12"}),
        ("intent.json", {"front": {"pid": 1}}),
        ("intent.json", {"front": 1}),
        ("identity.json", {"identity": None}),
        ("identity.json", {"identity": {"pid": True}}),
        ("exit.json", {"exit": None}),
        ("exit.json", {"exit": {"code": "0"}}),
        ("exit.json", {"survivors": ["7"]}),
        ("exit.json", {"survivors": None}),
        ("exit.json", {"why": None}),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_and_never_guessed(name: str, changes: dict[str, object]) -> None:
    papers = ended()
    rewrite(papers, name, **changes)
    with pytest.raises(PaperUnreadable) as caught:
        read_papers(papers.folder)
    assert caught.value.path == papers.folder / name


def test_the_identity_of_another_birth_is_not_taken_for_this_ones() -> None:
    papers = intended()
    papers.born(ourselves(ended().birth))
    with pytest.raises(PaperUnreadable, match="it is the identity of birth"):
        read_papers(papers.folder)


def test_what_a_newer_version_adds_is_ignored() -> None:
    papers = ended()
    for name in ("intent.json", "identity.json", "exit.json"):
        rewrite(papers, name, colour="green")
    assert read_papers(papers.folder) is not None


def test_a_shelf_keeps_the_readable_the_unreadable_and_the_blank_apart() -> None:
    births = open_installation().births
    good, bad = ended(), ended()
    (bad.folder / "exit.json").write_bytes(b"")
    blank = intended()
    (blank.folder / "intent.json").rename(blank.folder / ".intent.json.4711")
    (births / "notes.txt").write_text("a person's")
    shelf = read_shelf(births)
    assert [papers.birth for papers in shelf.papers] == [good.birth]
    assert sorted(each.path.name for each in shelf.unreadable) == ["exit.json", "notes.txt"]
    assert shelf.blank == [blank.birth]


def test_taking_away_removes_papers_and_drafts_and_nothing_else() -> None:
    births = open_installation().births
    plain, noted = ended(), ended()
    (plain.folder / ".exit.json.4711").write_text("a draft whose writer was killed")
    (noted.folder / "notes.txt").write_text("a person's")
    take_away(plain.folder)
    with pytest.raises(OSError):
        take_away(noted.folder)
    assert [str(path.relative_to(births)) for path in births.rglob("*") if path.is_file()] == [
        f".{noted.birth}.done/notes.txt"
    ]


def test_taking_away_is_finished_by_the_next_after_a_crash_in_between() -> None:
    births = open_installation().births
    papers = ended()
    half = births / f".{papers.birth}.done"
    papers.folder.rename(half)
    (half / "identity.json").unlink()
    assert read_shelf(births).papers == []
    take_away(half)
    take_away(papers.folder)
    assert list(births.iterdir()) == []


# -- whether anybody stands by a birth ------------------------------------------


def answered(papers: Papers) -> bool | None:
    read = read_papers(papers.folder)
    assert read is not None
    return is_answered_for(read)


def test_a_front_that_lives_answers_and_one_that_is_gone_does_not() -> None:
    with puppet() as child:
        child.wait_ready()
        with load().pin(child.pid) as pinned:
            seen = load().observe(pinned, environ=False)
        assert seen is not None
        papers = intended(front=seen.identity())
        assert answered(papers) is True
        child.close_stdin()
        child.wait_exited()
        # Dead and unreaped it still has its number, and does nothing any more.
        assert answered(papers) is False
    assert answered(papers) is False


def test_a_front_of_an_earlier_boot_is_gone_whoever_has_its_number_now() -> None:
    papers = intended(front=ourselves())
    assert answered(papers) is True
    before_this_boot(papers)
    assert answered(papers) is False


@pytest.mark.parametrize("field", ["host", "pid_namespace"])
def test_a_front_elsewhere_cannot_be_judged_from_here(field: str) -> None:
    elsewhere = ourselves().to_dict() | {field: "elsewhere" if field == "host" else 1}
    papers = intended(front=ourselves())
    rewrite(papers, "intent.json", front=elsewhere)
    assert answered(papers) is None


def test_a_mere_number_answers_for_nothing_but_is_no_proof_of_absence_while_somebody_has_it() -> None:
    """As papers were written before the front's identity was in them."""
    papers = intended()
    assert answered(papers) is None
    with puppet() as leader:
        leader.wait_ready()
        with load().pin(leader.pid) as pinned:
            seen = load().observe(pinned, environ=False)
        assert seen is not None
        papers.born(seen.identity(birth=papers.birth))
        assert answered(papers) is None
        leader.close_stdin()
        leader.wait_exited()
        assert answered(papers) is None  # by_pid is this process, which lives
        rewrite(papers, "intent.json", by_pid=leader.pid)
        leader.reap()
    assert answered(papers) is False


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / ("0" * 32)).write_text("")
    (unreadable,) = read_shelf(tmp_path).unreadable
    assert unreadable.why == "Not a directory"
