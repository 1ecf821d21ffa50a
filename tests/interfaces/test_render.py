"""From values to lines, compared whole. Values only."""

from __future__ import annotations

import pytest

from birthmark.interfaces.cli.render import has_survivors, length, one_line, receipt_lines, table


def test_a_table_is_aligned_and_has_no_blanks_at_its_right() -> None:
    assert table(["NAME", "WHY"], [["a", ""], ["longer", "because"]]) == (
        "NAME    WHY\n"
        "a       -\n"
        "longer  because"
    )  # fmt: skip


def test_wide_scripts_take_two_columns() -> None:
    assert table(["N", "X"], [["時計", "1"], ["abcd", "2"]]).splitlines() == ["N     X", "時計  1", "abcd  2"]


def test_a_table_without_rows_is_its_heads() -> None:
    assert table(["NAME", "WHY"], []) == "NAME  WHY"


def test_what_could_drive_a_terminal_is_escaped() -> None:
    assert one_line("a\x1b[2Jb\nc\u202ed") == "a\\x1b[2Jb\\nc\\u202ed"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "-"), (0.9, "0s"), (-3, "0s"), (59, "59s"), (61, "1m 1s"), (3661, "1h 1m"), (90061, "1d 1h")],
)
def test_a_length_is_shown_in_its_two_largest_units(seconds: float | None, words: str) -> None:
    assert length(seconds) == words


RECEIPT = {
    "service": "time",
    "termination": "killed",
    "took_ms": 812,
    "members": [
        {
            "pid": 10,
            "found": "leader",
            "command": "python server.py",
            "sent": [{"signal": "SIGTERM", "after_ms": 0}, {"signal": "SIGKILL", "after_ms": 500}],
            "end": "signal 9 (SIGKILL)",
            "why": None,
        },
        {"pid": 11, "found": "mark", "command": "", "sent": [], "end": None, "why": "not permitted"},
    ],
    "notes": ["port 8080 is free again"],
}


def test_a_receipt_names_every_member_what_was_sent_and_how_it_ended() -> None:
    assert receipt_lines(RECEIPT) == [
        "time: killed in 812 ms",
        "  10  leader  SIGTERM at 0 ms, SIGKILL at 500 ms: signal 9 (SIGKILL)  python server.py",
        "  11  mark  nothing sent: still alive (not permitted)",
        "  note: port 8080 is free again",
    ]


def test_a_member_without_an_end_is_a_survivor() -> None:
    assert has_survivors(RECEIPT)
    assert not has_survivors({"members": [{"end": "exit code 0"}]})
    assert not has_survivors({})
