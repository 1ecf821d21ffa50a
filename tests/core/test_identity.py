"""The decision table of identity, row by row, with values. The first row that holds decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from birthmark.core.identity import (
    WORDS,
    EnvironState,
    Evidence,
    HostFacts,
    Identity,
    Proof,
    Reason,
    Sighting,
    Verdict,
    gone,
)
from birthmark.core.judging import judge, judge_mark
from birthmark.core.markers import ChildKind, entry, mark_entries, tag_of
from birthmark.core.service import ServiceName, api_server_service, birth_id, installation_id

BIRTH: Final = birth_id("0123456789abcdef" * 2)
OTHER_BIRTH: Final = birth_id("fedcba9876543210" * 2)
OURS: Final = installation_id("aa" * 16)
THEIRS: Final = installation_id("bb" * 16)
TIME: Final = ServiceName("time")
HERE: Final = HostFacts("host", "boot", 4026531836)
NO_TAG: Final = 2**64 - 1  # RLIM_INFINITY


def block(**change: object) -> bytes:
    """The block of a child of this birth, or of one that differs in what is named."""
    values: dict[str, object] = {"kind": ChildKind.MCP, "service": TIME, "installation": OURS, "birth": BIRTH}
    marks = mark_entries(**{**values, **change})  # type: ignore[arg-type]
    return b"".join(entry(name, value) + b"\0" for name, value in marks.items()) + b"PATH=/bin\0"


IDENTITY: Final = Identity(
    host="host",
    boot="boot",
    pid_namespace=4026531836,
    pid=77,
    start_ticks=500,
    inode=9000,
    birth=BIRTH,
    installation=OURS,
    kind=ChildKind.MCP,
    service=TIME,
)
SEEN: Final = Sighting(
    facts=HERE,
    pid=77,
    start_ticks=500,
    inode=9000,
    exited=False,
    ppid=1,
    pgid=77,
    session=77,
    state="S",
    threads=1,
    environ_state=EnvironState.READABLE,
    environ=b"PATH=/bin\0",
    tag=NO_TAG,
)
BARE: Final = replace(IDENTITY, inode=None)
"""The same, recorded by a kernel whose pidfds have no inodes."""


def decides(proof: Proof, verdict: Verdict, *reasons: Reason) -> None:
    assert (proof.verdict, [each.reason for each in proof.evidence]) == (verdict, list(reasons))
    assert proof.pid == 77


# Row 1: gone, or a zombie.


def test_nothing_under_the_pid_is_gone() -> None:
    decides(judge(IDENTITY, None), Verdict.GONE, Reason.GONE)
    decides(judge(IDENTITY, None, held=True), Verdict.GONE, Reason.GONE)


@pytest.mark.parametrize(
    ("here", "reason", "elsewhere"),
    [
        (replace(HERE, host="elsewhere"), Reason.OTHER_HOST, True),
        (replace(HERE, pid_namespace=1), Reason.OTHER_PID_NAMESPACE, True),
        (replace(HERE, boot="later"), Reason.OTHER_BOOT, False),
    ],
)
def test_of_a_record_from_elsewhere_an_unused_pid_here_says_nothing(
    here: HostFacts, reason: Reason, elsewhere: bool
) -> None:
    proof = judge(IDENTITY, None, here=here)
    decides(proof, Verdict.DIFFERENT, reason)
    assert proof.elsewhere is elsewhere
    decides(judge(IDENTITY, None, here=HERE), Verdict.GONE, Reason.GONE)


def test_a_zombie_is_gone() -> None:
    decides(judge(IDENTITY, replace(SEEN, exited=True)), Verdict.GONE, Reason.ZOMBIE)


def test_somebody_elses_zombie_is_different_not_gone() -> None:
    decides(judge(IDENTITY, replace(SEEN, exited=True, inode=9001)), Verdict.DIFFERENT, Reason.OTHER_INODE)


# Row 2: another host, boot, pid namespace, start time or inode.


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (replace(SEEN, facts=replace(HERE, host="elsewhere")), Reason.OTHER_HOST),
        (replace(SEEN, facts=replace(HERE, boot="later")), Reason.OTHER_BOOT),
        (replace(SEEN, facts=replace(HERE, pid_namespace=1)), Reason.OTHER_PID_NAMESPACE),
        (replace(SEEN, start_ticks=501), Reason.OTHER_START_TIME),
        (replace(SEEN, inode=9001), Reason.OTHER_INODE),
    ],
)
def test_what_cannot_be_it_is_different_even_with_its_mark(
    seen: Sighting, reason: Reason, held: bool
) -> None:
    marked = replace(seen, environ=block(), tag=tag_of(BIRTH))
    decides(judge(IDENTITY, marked, held=held), Verdict.DIFFERENT, reason)


def test_a_difference_says_what_was_recorded_and_what_was_found() -> None:
    proof = judge(IDENTITY, replace(SEEN, start_ticks=501))
    assert proof.evidence == (Evidence(Reason.OTHER_START_TIME, "500", "501"),)


def test_an_inode_that_one_side_does_not_have_is_not_another_one() -> None:
    assert judge(BARE, replace(SEEN, environ=block())).verdict is Verdict.SAME
    assert judge(IDENTITY, replace(SEEN, inode=None, environ=block())).verdict is Verdict.SAME


def test_another_pid_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="78"):
        judge(IDENTITY, replace(SEEN, pid=78))


@pytest.mark.parametrize("expected", [IDENTITY, replace(IDENTITY, start_ticks=-1)])
def test_a_start_that_is_hidden_is_not_another_one(expected: Identity) -> None:
    seen = replace(SEEN, start_ticks=-1, environ_state=EnvironState.HIDDEN, environ=b"", tag=None)
    decides(judge(expected, seen), Verdict.SAME, Reason.SAME_INODE, Reason.ENVIRON_HIDDEN)


@pytest.mark.parametrize("tag", [tag_of(BIRTH), tag_of(OTHER_BIRTH)])
def test_an_inherited_tag_proves_nothing_where_neither_start_nor_inode_can_be_compared(tag: int) -> None:
    seen = replace(SEEN, start_ticks=-1, environ_state=EnvironState.HIDDEN, environ=b"", tag=tag)
    decides(judge(BARE, seen), Verdict.UNKNOWN, Reason.ENVIRON_HIDDEN, Reason.NO_INODE)


# Row 3: a pidfd held since birth.


@pytest.mark.parametrize("state", list(EnvironState))
def test_what_we_hold_since_birth_is_the_same_whatever_it_shows(state: EnvironState) -> None:
    seen = replace(SEEN, environ_state=state, environ=b"", inode=None)
    decides(judge(IDENTITY, seen, held=True), Verdict.SAME, Reason.HELD_SINCE_BIRTH)


# Row 4: the mark, or the tag, of this birth.


def test_the_mark_of_this_birth_is_the_same() -> None:
    decides(judge(BARE, replace(SEEN, environ=block())), Verdict.SAME, Reason.MARK_OF_THIS_BIRTH)


@pytest.mark.parametrize("state", [state for state in EnvironState if state is not EnvironState.READABLE])
def test_the_tag_of_this_birth_is_the_same_where_no_environment_can_be_read(state: EnvironState) -> None:
    seen = replace(SEEN, environ_state=state, environ=b"", tag=tag_of(BIRTH))
    decides(judge(BARE, seen), Verdict.SAME, Reason.TAG_OF_THIS_BIRTH)


def test_the_tag_of_this_birth_is_the_same_where_the_mark_was_dropped() -> None:
    decides(judge(BARE, replace(SEEN, tag=tag_of(BIRTH))), Verdict.SAME, Reason.TAG_OF_THIS_BIRTH)


def test_the_api_servers_mark_has_no_birth_and_is_the_same() -> None:
    server = replace(BARE, kind=ChildKind.API, service=api_server_service(), birth=None)
    stamp = block(kind=ChildKind.API, service=api_server_service(), birth=None)
    decides(judge(server, replace(SEEN, environ=stamp)), Verdict.SAME, Reason.MARK_OF_THIS_BIRTH)


# Row 5: a mark or tag of another birth, service, kind or installation.


@pytest.mark.parametrize("expected", [IDENTITY, BARE])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"birth": OTHER_BIRTH}, Reason.MARK_OF_ANOTHER_BIRTH),
        ({"service": ServiceName("time-staging")}, Reason.MARK_OF_ANOTHER_SERVICE),
        ({"kind": ChildKind.AGENT}, Reason.MARK_OF_ANOTHER_KIND),
        ({"installation": THEIRS}, Reason.MARK_OF_ANOTHER_INSTALLATION),
    ],
)
def test_a_mark_of_another_is_different_even_with_the_same_inode(
    expected: Identity, change: dict[str, object], reason: Reason
) -> None:
    decides(judge(expected, replace(SEEN, environ=block(**change))), Verdict.DIFFERENT, reason)


def test_a_tag_of_another_birth_is_different() -> None:
    seen = replace(SEEN, environ_state=EnvironState.DENIED, environ=b"", tag=tag_of(OTHER_BIRTH))
    decides(judge(IDENTITY, seen), Verdict.DIFFERENT, Reason.TAG_OF_ANOTHER_BIRTH)


def test_a_readable_mark_outranks_the_tag_both_ways() -> None:
    ours = replace(SEEN, environ=block(), tag=tag_of(OTHER_BIRTH))
    decides(judge(BARE, ours), Verdict.SAME, Reason.MARK_OF_THIS_BIRTH)
    theirs = replace(SEEN, environ=block(birth=OTHER_BIRTH), tag=tag_of(BIRTH))
    decides(judge(BARE, theirs), Verdict.DIFFERENT, Reason.MARK_OF_ANOTHER_BIRTH)


@pytest.mark.parametrize("tag", [None, NO_TAG, 0, -1, 200_000, 2**60, 2**63 - 1])
def test_a_value_without_the_magic_is_no_tag_never_another(tag: int | None) -> None:
    decides(judge(BARE, replace(SEEN, tag=tag)), Verdict.UNKNOWN, Reason.NO_MARK, Reason.NO_INODE)


def test_a_birth_nested_in_ours_is_another_birth() -> None:
    nested = block(birth=OTHER_BIRTH, parent=BIRTH)
    decides(judge(IDENTITY, replace(SEEN, environ=nested)), Verdict.DIFFERENT, Reason.MARK_OF_ANOTHER_BIRTH)


def test_a_birth_nested_in_another_is_ours_whoever_its_parent_is() -> None:
    nested = block(parent=OTHER_BIRTH)
    decides(judge(BARE, replace(SEEN, environ=nested)), Verdict.SAME, Reason.MARK_OF_THIS_BIRTH)


# Rows 6 and 7: the environment says nothing.

SILENT: Final = {
    EnvironState.DENIED: Reason.ENVIRON_DENIED,
    EnvironState.HIDDEN: Reason.ENVIRON_HIDDEN,
    EnvironState.UNSUPPORTED: Reason.ENVIRON_UNSUPPORTED,
    EnvironState.DESTROYED: Reason.ENVIRON_DESTROYED,
    EnvironState.PARENTS: Reason.ENVIRON_SETTLING,
    EnvironState.SETTLING: Reason.ENVIRON_SETTLING,
}


@pytest.mark.parametrize("state", SILENT)
def test_a_silent_environment_with_the_same_inode_is_the_same(state: EnvironState) -> None:
    seen = replace(SEEN, environ_state=state, environ=b"")
    decides(judge(IDENTITY, seen), Verdict.SAME, Reason.SAME_INODE, SILENT[state])


@pytest.mark.parametrize("state", SILENT)
@pytest.mark.parametrize("expected", [IDENTITY, BARE])
def test_a_silent_environment_without_an_inode_is_unknown(expected: Identity, state: EnvironState) -> None:
    seen = replace(SEEN, environ_state=state, environ=b"", inode=None)
    decides(judge(expected, seen), Verdict.UNKNOWN, SILENT[state], Reason.NO_INODE)


# Rows 8 and 9: readable entries, no mark.


def test_a_child_that_dropped_its_mark_is_the_same_by_its_inode() -> None:
    decides(judge(IDENTITY, SEEN), Verdict.SAME, Reason.SAME_INODE, Reason.NO_MARK)


def test_without_mark_and_inode_it_is_unknown() -> None:
    decides(judge(BARE, SEEN), Verdict.UNKNOWN, Reason.NO_MARK, Reason.NO_INODE)


@pytest.mark.parametrize(
    "part",
    [
        b"BIRTHMARK_SUBPROCESS=1\0",
        b"BIRTHMARK_MCP=time\0",
        b"BIRTHMARK_SUBPROCESS=0\0BIRTHMARK_MCP=time\0",
        b"XBIRTHMARK_SUBPROCESS=1\0XBIRTHMARK_MCP=time\0",
    ],
)
def test_half_a_mark_is_no_mark(part: bytes) -> None:
    assert judge(BARE, replace(SEEN, environ=part)).reason is Reason.NO_MARK


# The execve window.


@pytest.mark.parametrize("state", [EnvironState.PARENTS, EnvironState.SETTLING])
@pytest.mark.parametrize("foreign", [b"PATH=/bin\0", block(birth=OTHER_BIRTH), block(installation=THEIRS)])
@pytest.mark.parametrize("tag", [None, NO_TAG, tag_of(OTHER_BIRTH)])
@pytest.mark.parametrize("expected", [IDENTITY, BARE])
def test_between_fork_and_exec_nothing_is_ever_different(
    expected: Identity, state: EnvironState, foreign: bytes, tag: int | None
) -> None:
    proof = judge(expected, replace(SEEN, environ_state=state, environ=foreign, tag=tag))
    assert proof.verdict is not Verdict.DIFFERENT


@pytest.mark.parametrize("state", [EnvironState.PARENTS, EnvironState.SETTLING])
def test_between_fork_and_exec_the_parents_block_never_proves_us(state: EnvironState) -> None:
    proof = judge(BARE, replace(SEEN, environ_state=state, environ=block()))
    assert proof.verdict is Verdict.UNKNOWN
    assert proof.transient


def test_only_an_unsettled_look_is_worth_another() -> None:
    assert not judge(BARE, SEEN).transient
    assert not judge(BARE, replace(SEEN, environ_state=EnvironState.DENIED)).transient
    assert not judge(IDENTITY, replace(SEEN, environ_state=EnvironState.SETTLING)).transient


# An identity of a process we did not spawn.


def test_a_stranger_we_wrote_down_is_the_same_by_its_inode_alone() -> None:
    stranger = replace(IDENTITY, birth=None, installation=None, kind=None, service=None)
    decides(judge(stranger, replace(SEEN, environ=block())), Verdict.SAME, Reason.SAME_INODE, Reason.NO_MARK)
    bare = replace(stranger, inode=None)
    assert judge(bare, replace(SEEN, environ=block(), tag=tag_of(BIRTH))).verdict is Verdict.UNKNOWN


# What holds for every input.

sightings = st.builds(
    Sighting,
    facts=st.sampled_from([HERE, replace(HERE, boot="later")]),
    pid=st.just(77),
    start_ticks=st.sampled_from([500, 501]),
    inode=st.sampled_from([None, 9000, 9001]),
    exited=st.booleans(),
    ppid=st.just(1),
    pgid=st.just(77),
    session=st.just(77),
    state=st.just("S"),
    threads=st.just(1),
    environ_state=st.sampled_from(list(EnvironState)),
    environ=st.sampled_from(
        [b"", b"PATH=/bin\0", block(), block(birth=OTHER_BIRTH), block(installation=THEIRS)]
    ),
    tag=st.sampled_from([None, NO_TAG, 0, tag_of(BIRTH), tag_of(OTHER_BIRTH)]),
)


@given(st.sampled_from([IDENTITY, BARE]), sightings, st.booleans())
def test_same_always_rests_on_a_pidfd_an_inode_a_mark_or_a_tag(
    expected: Identity, seen: Sighting, held: bool
) -> None:
    proof = judge(expected, seen, held=held)
    if proof.verdict is Verdict.SAME:
        assert (seen.facts, seen.start_ticks, seen.exited) == (HERE, 500, False)
        assert seen.inode is None or expected.inode is None or seen.inode == expected.inode
        readable = seen.environ_state is EnvironState.READABLE
        assert (
            held
            or (seen.inode is not None and seen.inode == expected.inode)
            or (readable and seen.environ == block())
            or seen.tag == tag_of(BIRTH)
        )
    assert proof.verdict.value in str(proof)


@given(sightings)
def test_the_rule_by_mark_alone_says_same_to_our_mark_only(seen: Sighting) -> None:
    proof = judge_mark(77, seen, kind=ChildKind.MCP, service="time", installation=OURS)
    ours = seen.environ_state is EnvironState.READABLE and seen.environ in (block(), block(birth=OTHER_BIRTH))
    assert (proof.verdict is Verdict.SAME) == (ours and not seen.exited)


# By pid and mark alone.


def by_mark(seen: Sighting | None, kind: ChildKind = ChildKind.MCP, service: str = "time") -> Proof:
    return judge_mark(77, seen, kind=kind, service=service, installation=OURS)


def test_by_mark_nothing_and_a_zombie_are_gone() -> None:
    decides(by_mark(None), Verdict.GONE, Reason.GONE)
    decides(by_mark(replace(SEEN, exited=True)), Verdict.GONE, Reason.ZOMBIE)


def test_by_mark_any_birth_of_our_service_is_ours() -> None:
    decides(by_mark(replace(SEEN, environ=block())), Verdict.SAME, Reason.MARK_MATCHES)
    decides(by_mark(replace(SEEN, environ=block(birth=OTHER_BIRTH))), Verdict.SAME, Reason.MARK_MATCHES)


@pytest.mark.parametrize("state", SILENT)
def test_by_mark_a_silent_environment_is_unknown(state: EnvironState) -> None:
    decides(by_mark(replace(SEEN, environ_state=state)), Verdict.UNKNOWN, SILENT[state])


def test_by_mark_readable_entries_without_one_are_not_ours() -> None:
    decides(by_mark(SEEN), Verdict.DIFFERENT, Reason.NO_MARK)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"service": ServiceName("time-staging")}, Reason.MARK_OF_ANOTHER_SERVICE),
        ({"kind": ChildKind.AGENT}, Reason.MARK_OF_ANOTHER_KIND),
        ({"installation": THEIRS}, Reason.MARK_OF_ANOTHER_INSTALLATION),
    ],
)
def test_by_mark_another_is_different(change: dict[str, object], reason: Reason) -> None:
    decides(by_mark(replace(SEEN, environ=block(**change))), Verdict.DIFFERENT, reason)


def test_by_mark_an_agent_proves_neither_an_mcp_server_nor_the_api_server() -> None:
    agent = replace(SEEN, environ=block(kind=ChildKind.AGENT))
    assert by_mark(agent, ChildKind.AGENT).verdict is Verdict.SAME
    assert by_mark(agent, ChildKind.MCP).verdict is Verdict.DIFFERENT
    assert by_mark(agent, ChildKind.API).verdict is Verdict.DIFFERENT


def test_by_mark_a_mark_without_an_installation_is_another_installations() -> None:
    stripped = b"BIRTHMARK_SUBPROCESS=1\0BIRTHMARK_MCP=time\0"
    assert by_mark(replace(SEEN, environ=stripped)).reason is Reason.MARK_OF_ANOTHER_INSTALLATION


# Written down and read back.


@pytest.mark.parametrize(
    "identity",
    [IDENTITY, BARE, replace(IDENTITY, birth=None, installation=None, kind=None, service=None)],
)
def test_an_identity_survives_its_record(identity: Identity) -> None:
    assert Identity.from_dict(dict(identity.to_dict())) == identity


def test_a_sighting_writes_its_identity_down() -> None:
    assert SEEN.identity(birth=BIRTH, installation=OURS, kind=ChildKind.MCP, service=TIME) == IDENTITY


def test_a_newer_versions_field_is_ignored() -> None:
    assert Identity.from_dict({**IDENTITY.to_dict(), "later": 1}) == IDENTITY


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("host", None),
        ("boot", 7),
        ("pid", "77"),
        ("pid", True),
        ("pid", -1),
        ("pid", 77.0),
        ("start_ticks", None),
        ("start_ticks", -2),
        ("inode", "9000"),
        ("birth", "xyz"),
        ("installation", "AA" * 16),
        ("kind", "robot"),
        ("service", ""),
        ("service", 3),
        ("pid_namespace", []),
    ],
)
def test_a_broken_record_is_an_error_that_names_the_field_or_the_value(field: str, value: object) -> None:
    with pytest.raises(ValueError) as raised:
        Identity.from_dict({**IDENTITY.to_dict(), field: value})
    assert field.split("_")[0] in str(raised.value) or str(value) in str(raised.value)


def test_every_reason_has_words() -> None:
    assert set(WORDS) == set(Reason)


def test_a_proof_reads_as_a_sentence_and_as_json() -> None:
    proof = judge(IDENTITY, replace(SEEN, start_ticks=501))
    assert str(proof) == (
        "different: it started at another time: the pid was recycled (recorded 500, found 501)"
    )
    assert proof.to_dict() == {
        "pid": 77,
        "verdict": "different",
        "evidence": [{"reason": "other_start_time", "expected": "500", "found": "501"}],
    }


def test_more_evidence_stands_behind_what_decided() -> None:
    proof = gone(77).with_evidence([Evidence(Reason.NO_INODE)])
    assert proof.reason is Reason.GONE
    assert len(proof.evidence) == 2
