"""What the kernel and other tools print, as bytes and text; nothing is guessed from noise."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from birthmark.core.parsers import (
    environ_from_procargs2,
    parse_lsof_pids,
    parse_netstat_listeners,
    parse_stat,
    signalable_pid,
)

TAIL = " ".join(str(n) for n in range(4, 53))
"""Fields 4 to 52, each holding its own number."""


# /proc/PID/stat


@pytest.mark.parametrize("comm", [b"cat", b"a b", b") S 1 (", b"))))", b"", b"((", b"a\nb) R 1", b"\xff\xfe"])
def test_fields_are_counted_from_the_last_bracket(comm: bytes) -> None:
    stat = parse_stat(b"77 (" + comm + b") Z " + TAIL.encode())
    assert (stat.state, stat.ppid, stat.pgid, stat.session) == ("Z", 4, 5, 6)
    assert (stat.flags, stat.threads, stat.start_ticks, stat.env_end) == (9, 20, 22, 51)


def test_addresses_that_the_kernel_hides_say_nothing() -> None:
    fields = TAIL.split()
    fields[26 - 4] = "1"  # start_code reads as 1 without ptrace access, and every address as 0
    fields[51 - 4] = "0"
    assert parse_stat(b"77 (x) S " + " ".join(fields).encode()).env_end is None


def test_a_line_of_an_old_kernel_has_no_env_end() -> None:
    assert parse_stat(b"77 (x) S " + " ".join(TAIL.split()[:40]).encode()).env_end is None


@pytest.mark.parametrize(
    "line", [b"", b"77", b"77 (x)", b"77 (x) S 1 2 3", b"77 x S " + TAIL.encode(), b"\0"]
)
def test_what_is_no_stat_line_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="not a line"):
        parse_stat(line)


@given(st.binary(max_size=300))
def test_no_line_breaks_the_stat_parser_but_with_a_value_error(line: bytes) -> None:
    try:
        parse_stat(line)
    except ValueError:
        pass


@given(st.binary(max_size=15))
def test_no_name_of_a_process_shifts_a_field(comm: bytes) -> None:
    assert parse_stat(b"77 (" + comm + b") Z " + TAIL.encode()).start_ticks == 22


# pids


@pytest.mark.parametrize(
    ("pid", "answer"),
    [(1, 1), (2**31 - 1, 2**31 - 1), (0, None), (-1, None), (2**31, None), (-(2**63), None)],
)
def test_only_what_names_one_process_is_signalable(pid: int, answer: int | None) -> None:
    assert signalable_pid(pid) == answer


@pytest.mark.parametrize("pid", [None, "1", 1.0, True, b"1"])
def test_what_is_no_number_is_no_pid(pid: object) -> None:
    with pytest.raises(TypeError, match=type(pid).__name__):
        signalable_pid(pid)  # type: ignore[arg-type]


# lsof -t


@pytest.mark.parametrize(
    ("text", "pids"),
    [
        ("", []),
        ("42\n7\n42\n", [7, 42]),
        ("  42  \r\n", [42]),
        ("+42\n", [42]),
        ("0\n-1\nx\n4 2\n1_000\n٣\n\n", []),
        ("4294967295\n4294967296\n99999999999\n", [4294967295]),
        ("lsof: WARNING: can't stat()\n8\n", [8]),
    ],
)
def test_lsof_pids_are_strict_decimals(text: str, pids: list[int]) -> None:
    assert parse_lsof_pids(text) == pids


@given(st.text())
def test_no_text_breaks_the_lsof_parser(text: str) -> None:
    found = parse_lsof_pids(text)
    assert found == sorted(set(found))
    assert all(0 < pid < 2**32 for pid in found)


@given(st.sets(st.integers(1, 2**32 - 1)))
def test_lsof_pids_survive_the_round_trip(pids: set[int]) -> None:
    assert parse_lsof_pids("\n".join(map(str, pids))) == sorted(pids)


# netstat -ano

NETSTAT = """
Active Connections

  Proto  Local Address          Foreign Address        State           PID
  TCP    0.0.0.0:8080           0.0.0.0:0              LISTENING       4242
  TCP    [::]:8080              [::]:0                 LISTENING       4242
  tcp    127.0.0.1:8080         0.0.0.0:0              listening       17
  TCP    127.0.0.1:18080        0.0.0.0:0              LISTENING       5
  TCP    127.0.0.1:50000        127.0.0.1:8080         ESTABLISHED     6
  TCP    127.0.0.1:8080         127.0.0.1:50000        ESTABLISHED     7
  UDP    0.0.0.0:8080           *:*                                    8
  TCP    0.0.0.0:8080           0.0.0.0:0              LISTENING       0
  TCP    0.0.0.0:8080           0.0.0.0:0              LISTENING       abc
  TCP    0.0.0.0:8080           0.0.0.0:0              LISTENING       9 10
"""


def test_netstat_lines_count_only_whole() -> None:
    assert parse_netstat_listeners(NETSTAT, 8080) == [17, 4242]
    assert parse_netstat_listeners(NETSTAT, 80) == []
    assert parse_netstat_listeners("", 8080) == []


@given(st.text(), st.integers(0, 65535))
def test_no_text_breaks_the_netstat_parser(text: str, port: int) -> None:
    found = parse_netstat_listeners(text, port)
    assert found == sorted(set(found))


# KERN_PROCARGS2


def procargs(
    path: bytes, argv: list[bytes], tail: bytes, *, padding: int = 3, argc: int | None = None
) -> bytes:
    count = struct.pack("=i", len(argv) if argc is None else argc)
    return count + path + b"\0" * (1 + padding) + b"".join(arg + b"\0" for arg in argv) + tail


@pytest.mark.parametrize("padding", range(8))
def test_the_environment_follows_the_counted_arguments(padding: int) -> None:
    blob = procargs(b"/bin/x", [b"x", b"", b"A=not"], b"A=1\0B=2\0", padding=padding)
    assert environ_from_procargs2(blob) == b"A=1\0B=2\0"


def test_what_the_loader_gets_is_not_environment() -> None:
    blob = procargs(b"/bin/x", [b"x"], b"A=1\0\0ptr_munge=7\0main_stack=\0executable_file=0x1\0")
    assert environ_from_procargs2(blob) == b"A=1\0"


def test_an_environment_that_the_system_withholds_is_empty() -> None:
    assert environ_from_procargs2(procargs(b"/bin/x", [b"x"], b"")) == b""
    assert environ_from_procargs2(procargs(b"/bin/x", [b"x"], b"\0ptr_munge=7\0")) == b""


def test_no_argument_at_all_leaves_everything_to_the_environment() -> None:
    assert environ_from_procargs2(procargs(b"/bin/x", [], b"A=1\0")) == b"A=1\0"


def test_bytes_that_are_not_utf_8_pass_unchanged() -> None:
    assert environ_from_procargs2(procargs(b"/\xff", [b"\xfe"], b"A=\xff\0")) == b"A=\xff\0"


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\1\0\0",
        struct.pack("=i", -1) + b"/bin/x\0x\0A=1\0",
        struct.pack("=i", 1) + b"/bin/x",
        struct.pack("=i", 1) + b"/bin/x\0\0\0",
        procargs(b"/bin/x", [b"x"], b"", argc=2),
        procargs(b"/bin/x", [b"x"], b"A=1", argc=2),
        struct.pack("=i", 2**31 - 1) + b"/bin/x\0x\0A=1\0",
    ],
)
def test_a_blob_that_is_cut_or_malformed_is_nothing(blob: bytes) -> None:
    assert environ_from_procargs2(blob) is None


@given(st.binary(max_size=300))
def test_no_blob_breaks_the_parser(blob: bytes) -> None:
    environ_from_procargs2(blob)


words = st.binary(min_size=1, max_size=20).map(lambda raw: raw.replace(b"\0", b"_"))


@given(words, st.lists(words | st.just(b"")), st.lists(words), st.integers(0, 7))
def test_every_environment_survives_the_round_trip(
    path: bytes, arguments: list[bytes], environ: list[bytes], padding: int
) -> None:
    block = b"".join(each + b"\0" for each in environ)
    blob = procargs(path, [b"argv0", *arguments], block + b"\0ptr_munge=1\0", padding=padding)
    assert environ_from_procargs2(blob) == block


@given(st.lists(words | st.just(b""), min_size=1), st.lists(words), st.integers(0, 7))
def test_no_argument_is_ever_taken_for_environment(
    arguments: list[bytes], environ: list[bytes], padding: int
) -> None:
    """Cut anywhere, and with an empty first argument, which the padding swallows: some of the environment, or nothing."""
    block = b"".join(each + b"\0" for each in environ)
    blob = procargs(b"/bin/x", arguments, block, padding=padding)
    start = len(blob) - len(block)
    for end in range(len(blob) + 1):
        found = environ_from_procargs2(blob[:end])
        assert found is None or found in blob[start:end]
