"""The mark and the tag, with bytes: the original's rule case by case, and ours on top."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from birthmark.core import markers
from birthmark.core.markers import (
    ChildKind,
    entry,
    environ_has_entries,
    environ_identifies_api_server,
    environ_identifies_child,
    is_tag,
    mark_entries,
    read_mark,
    scrub,
    tag_of,
)
from birthmark.core.service import ServiceName, api_server_service, birth_id, installation_id

BIRTH: Final = birth_id("0123456789abcdef" * 2)
OURS: Final = installation_id("aa" * 16)
MARKED: Final = b"PATH=/bin\0BIRTHMARK_SUBPROCESS=1\0BIRTHMARK_AGENT=greeter\0HOME=/\0"

births = st.integers(0, 2**128 - 1).map(lambda n: birth_id(f"{n:032x}"))
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="="), min_size=1)
names = names.filter(lambda text: text != "api")


# Whole entries, as bytes.


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (MARKED, True),
        (MARKED.rstrip(b"\0"), True),  # a missing last NUL is fine
        (b"BIRTHMARK_AGENT=greeter\0BIRTHMARK_SUBPROCESS=1\0", True),  # order is free
        (MARKED + b"BIRTHMARK_AGENT=other\0", True),  # a later entry does not undo a match
        (b"BIRTHMARK_AGENT=other\0" + MARKED, True),
        (MARKED + b"\xff\xfe=\xff\0", True),  # what is not UTF-8 is not looked at
        (b"\0\0" + MARKED, True),
        (MARKED.replace(b"greeter", b"other"), False),
        (MARKED.replace(b"greeter", b"greeter-staging"), False),
        (MARKED.replace(b"greeter", b"greete"), False),
        (MARKED.replace(b"greeter", b"Greeter"), False),
        (MARKED.replace(b"greeter", b""), False),
        (MARKED.replace(b"SUBPROCESS=1", b"SUBPROCESS=0"), False),
        (MARKED.replace(b"SUBPROCESS=1", b"SUBPROCESS=11"), False),
        (MARKED.replace(b"SUBPROCESS=1", b"SUBPROCESS=1 "), False),
        (MARKED.replace(b"SUBPROCESS=1", b"subprocess=1"), False),
        (MARKED.replace(b"BIRTHMARK_SUBPROCESS=1\0", b""), False),
        (MARKED.replace(b"BIRTHMARK_SUBPROCESS", b"X_BIRTHMARK_SUBPROCESS"), False),
        (b"A=BIRTHMARK_SUBPROCESS=1\0B=BIRTHMARK_AGENT=greeter\0", False),
        (b"PATH=/bin\0HOME=/\0", False),
        (b"", False),
        (b"\0", False),
    ],
)
def test_a_childs_mark_is_compared_whole(block: bytes, expected: bool) -> None:
    assert environ_identifies_child(block, "BIRTHMARK_AGENT", "greeter") is expected
    assert ChildKind.AGENT.identifies(block, "greeter") is expected


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"BIRTHMARK_API=api\0", True),
        (b"BIRTHMARK_SUBPROCESS=1\0BIRTHMARK_API=api", True),  # neither needed nor forbidden
        (b"BIRTHMARK_API=apis\0", False),
        (b"BIRTHMARK_SUBPROCESS=1\0BIRTHMARK_MCP=api\0", False),
        (b"", False),
    ],
)
def test_the_api_servers_mark_is_one_entry(block: bytes, expected: bool) -> None:
    assert environ_identifies_api_server(block, "api") is expected
    assert ChildKind.API.identifies(block, "api") is expected


@pytest.mark.parametrize("shown", list(ChildKind))
@pytest.mark.parametrize("asked", list(ChildKind))
def test_a_mark_of_one_kind_proves_no_other_even_with_equal_names(shown: ChildKind, asked: ChildKind) -> None:
    block = b"BIRTHMARK_SUBPROCESS=1\0" + entry(shown.marker_env, "same") + b"\0"
    assert asked.identifies(block, "same") is (shown is asked)


@pytest.mark.parametrize(
    ("block", "expected"),
    [(b"A=1\0", True), (b"=", True), (b"A\0B\0", False), (b"", False), (b"\0\0", False)],
)
def test_a_block_has_entries_when_one_has_an_equals_sign(block: bytes, expected: bool) -> None:
    assert environ_has_entries(block) is expected


# Reading a mark.


def test_a_mark_names_installation_birth_kind_and_service() -> None:
    mark = read_mark(
        b"BIRTHMARK_SUBPROCESS=1\0BIRTHMARK_MCP=time\0BIRTHMARK_INSTALLATION=aa\0BIRTHMARK_BIRTH=bb\0X=y\0"
    )
    assert mark is not None
    assert (mark.installation, mark.birth, mark.services) == ("aa", "bb", {(ChildKind.MCP, "time")})


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"PATH=/bin\0",
        b"BIRTHMARK_SUBPROCESS=1\0BIRTHMARK_BIRTH=aa\0",
        b"BIRTHMARK_MCP=time\0",
        b"BIRTHMARK_SUBPROCESS=yes\0BIRTHMARK_MCP=time\0",
        b"NOTE=BIRTHMARK_SUBPROCESS=1\0",
        b"BIRTHMARK_HOME=/tmp\0",
    ],
)
def test_what_lacks_marker_or_service_is_no_mark(block: bytes) -> None:
    assert read_mark(block) is None


def test_the_first_birth_and_installation_count() -> None:
    """Ours are placed first, so what a program appends to its own environment names nobody else."""
    mark = read_mark(MARKED + b"BIRTHMARK_BIRTH=a\0BIRTHMARK_BIRTH=b\0BIRTHMARK_INSTALLATION=c\0")
    assert mark is not None
    assert (mark.birth, mark.installation) == ("a", "c")


@given(st.binary(max_size=200))
def test_no_block_breaks_the_readers(noise: bytes) -> None:
    block = noise + b"\0" + MARKED
    assert ChildKind.AGENT.identifies(block, "greeter")
    assert read_mark(block) is not None
    read_mark(noise)
    environ_has_entries(noise)


# Making a mark.


@given(st.sampled_from([ChildKind.AGENT, ChildKind.MCP]), names, births, st.none() | births)
def test_what_was_marked_is_read_back(kind: ChildKind, text: str, birth: str, parent: str | None) -> None:
    name = ServiceName(text)
    marks = mark_entries(
        kind=kind,
        service=name,
        installation=OURS,
        birth=birth_id(birth),
        parent=None if parent is None else birth_id(parent),
    )
    block = b"".join(entry(key, value) + b"\0" for key, value in marks.items())
    mark = read_mark(block + b"PATH=/bin\0")
    assert mark is not None
    assert (mark.installation, mark.birth, mark.services) == (OURS, birth, {(kind, text)})
    assert kind.identifies(block, text)
    assert (markers.PARENT_ENV in marks) == (parent is not None)


def test_the_api_server_gets_neither_the_subprocess_marker_nor_a_birth() -> None:
    marks = mark_entries(kind=ChildKind.API, service=api_server_service(), installation=OURS, birth=BIRTH)
    assert marks == {"BIRTHMARK_API": "api", "BIRTHMARK_INSTALLATION": OURS}


@pytest.mark.parametrize("kind", [ChildKind.AGENT, ChildKind.MCP])
def test_a_child_without_a_birth_is_refused(kind: ChildKind) -> None:
    with pytest.raises(ValueError, match=kind.value):
        mark_entries(kind=kind, service=ServiceName("x"), installation=OURS, birth=None)


def test_the_subprocess_marker_comes_first_and_names_follow() -> None:
    marks = mark_entries(
        kind=ChildKind.MCP, service=ServiceName("x"), installation=OURS, birth=BIRTH, parent=BIRTH
    )
    assert list(marks) == [
        "BIRTHMARK_SUBPROCESS",
        "BIRTHMARK_MCP",
        "BIRTHMARK_INSTALLATION",
        "BIRTHMARK_BIRTH",
        "BIRTHMARK_PARENT",
    ]


def test_the_names_are_the_public_constants() -> None:
    assert (
        markers.SUBPROCESS_MARKER_ENV,
        markers.AGENT_NAME_ENV,
        markers.MCP_SERVICE_ID_ENV,
        markers.API_SERVER_ENV,
    ) == ("BIRTHMARK_SUBPROCESS", "BIRTHMARK_AGENT", "BIRTHMARK_MCP", "BIRTHMARK_API")
    assert {kind: kind.marker_env for kind in ChildKind} == {
        ChildKind.AGENT: "BIRTHMARK_AGENT",
        ChildKind.MCP: "BIRTHMARK_MCP",
        ChildKind.API: "BIRTHMARK_API",
    }


# Scrubbing.


def test_every_variable_of_ours_is_scrubbed_and_no_other() -> None:
    environ = {
        "BIRTHMARK_SUBPROCESS": "1",
        "BIRTHMARK_HOME": "/x",
        "BIRTHMARK_": "",
        "BIRTHMARK": "kept",
        "birthmark_subprocess": "kept",
        "X_BIRTHMARK_BIRTH": "kept",
        "PATH": "kept",
    }
    assert scrub(environ) == {name: value for name, value in environ.items() if value == "kept"}
    assert "BIRTHMARK_HOME" in environ  # the argument is left as it was


@given(st.dictionaries(st.sampled_from(["BIRTHMARK_BIRTH", "BIRTHMARK_X", "A", "B"]), st.text()))
def test_scrubbing_twice_is_scrubbing_once(environ: dict[str, str]) -> None:
    once = scrub(environ)
    assert scrub(once) == once
    assert read_mark(
        b"\0".join(f"{k}={v}".encode("utf-8", "replace") for k, v in once.items())
    ) is None or any("BIRTHMARK_" in value for value in once.values())


# The tag.


@given(births)
def test_a_tag_is_harmless_to_a_real_time_thread_and_to_signed_readers(birth: str) -> None:
    assert 2**60 <= tag_of(birth_id(birth)) < 2**63
    assert is_tag(tag_of(birth_id(birth)))


@given(births, births)
def test_births_that_differ_early_have_different_tags(one: str, other: str) -> None:
    """50 bits are kept: 12 hex digits and two bits of the next."""
    same = int(one, 16) >> 78 == int(other, 16) >> 78
    assert (tag_of(birth_id(one)) == tag_of(birth_id(other))) is same


@given(st.integers(-(2**64), 2**64))
def test_only_a_value_with_the_magic_is_a_tag(value: int) -> None:
    smallest, largest = tag_of(birth_id("0" * 32)), tag_of(birth_id("f" * 32))
    assert is_tag(value) is (smallest <= value <= largest)


@pytest.mark.parametrize("value", [-1, 0, 1, 200_000, 2**60, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
def test_no_usual_limit_is_a_tag(value: int) -> None:
    assert not is_tag(value)
