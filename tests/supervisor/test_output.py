"""What children write: logs that rotate, names that become files, pipes that never fill up. Real files and pipes."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from birthmark.config.model import LogPolicy
from birthmark.supervisor.drains import Drains
from birthmark.supervisor.journal import LINE_BYTES, CountSink, Journal, LineSink, log_path

NOON = datetime(2026, 2, 3, 12, 0, 0, 123456, tzinfo=UTC)
STAMP = b"2026-02-03T12:00:00.123Z"
WITHIN_S = 5.0


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "one.log", LogPolicy(), now=lambda: NOON)
    yield made
    made.close()


def test_each_line_has_its_time_and_stream(journal: Journal) -> None:
    sink = LineSink(journal, "stderr")
    sink.feed(b"first\nsec")
    sink.feed(b"ond\r\n\nrest")
    sink.end()
    journal.notice("ready")
    assert journal.path.read_bytes().splitlines() == [
        STAMP + b" stderr first",
        STAMP + b" stderr second",
        STAMP + b" stderr ",
        STAMP + b" stderr rest",
        STAMP + b" birthmark ready",
    ]
    assert journal.path.stat().st_mode & 0o777 == 0o600


def test_a_line_without_an_end_is_cut_and_loses_nothing(journal: Journal) -> None:
    sink = LineSink(journal, "stdout")
    for _ in range(5):
        sink.feed(b"x" * LINE_BYTES)
    sink.end()
    lines = journal.path.read_bytes().splitlines()
    assert max(map(len, lines)) == LINE_BYTES + len(STAMP + b" stdout ")
    assert sum(line.count(b"x") for line in lines) == 5 * LINE_BYTES


def test_a_log_rotates_by_size_and_keeps_so_many_files(tmp_path: Path) -> None:
    policy = LogPolicy(file_bytes=200, files=3, total_bytes=10_000)
    journal = Journal(tmp_path / "one.log", policy, now=lambda: NOON)
    for number in range(40):
        journal.write("stdout", [b"line %d" % number])
    journal.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["one.log", "one.log.1", "one.log.2"]
    assert all(file.stat().st_size <= 200 for file in files)
    kept = b"".join(file.read_bytes() for file in reversed(files)).splitlines()
    numbers = [int(line.rsplit(b" ", 1)[1]) for line in kept]
    assert numbers == list(range(numbers[0], 40))


def test_a_log_of_one_file_begins_anew(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "one.log", replace(LogPolicy(), file_bytes=100, files=1), now=lambda: NOON)
    for number in range(10):
        journal.write("stdout", [b"line %d" % number])
    journal.close()
    assert [file.name for file in tmp_path.iterdir()] == ["one.log"]
    assert journal.path.read_bytes().endswith(b"line 9\n")


def test_the_oldest_go_when_the_total_is_too_much(tmp_path: Path) -> None:
    policy = LogPolicy(file_bytes=100, files=9, total_bytes=300)
    journal = Journal(tmp_path / "one.log", policy, now=lambda: NOON)
    for number in range(40):
        journal.write("stdout", [b"line %d" % number])
    journal.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 300


def test_what_cannot_be_written_is_counted_and_holds_nobody_up(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "absent" / "one.log", LogPolicy())
    journal.write("stdout", [b"a", b"b"])
    assert journal.lost_lines == 2


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("time", "time.log"),
        ("a/b", "a%2Fb.log"),
        ("..", "%2E..log"),
        (".hidden", "%2Ehidden.log"),
        ("two words", "two words.log"),
        ("時計", "%E6%99%82%E8%A8%88.log"),
        ("50%", "50%25.log"),
    ],
)
def test_every_name_is_a_file_of_its_own(tmp_path: Path, name: str, file: str) -> None:
    assert log_path(tmp_path, name) == tmp_path / file


def test_names_too_long_for_a_file_system_are_cut_and_still_differ(tmp_path: Path) -> None:
    one, two = log_path(tmp_path, "時" * 300 + "a"), log_path(tmp_path, "時" * 300 + "b")
    assert one != two
    one.write_text("it can be made")


# -- drains


@pytest.fixture
def drains() -> Iterator[Drains]:
    made = Drains()
    yield made
    made.close()


def pipe() -> tuple[io.FileIO, int]:
    reader, writer = os.pipe()
    return io.FileIO(reader, "rb"), writer


def test_all_that_is_written_arrives_and_the_end_is_told(drains: Drains) -> None:
    reader, writer = pipe()
    sink = CountSink()
    drain = drains.add(reader, sink)
    for _ in range(64):
        os.write(writer, b"x" * 65536)  # 4 MiB through a pipe of 64 KiB: it would block for ever
    os.close(writer)
    assert drain.ended.wait(WITHIN_S)
    assert sink.total_bytes == 64 * 65536
    assert reader.closed


def test_a_pipe_that_somebody_keeps_open_is_let_go_of_with_all_it_holds(drains: Drains) -> None:
    reader, writer = pipe()
    sink = CountSink()
    drain = drains.add(reader, sink)
    os.write(writer, b"last words")
    drain.finish()
    assert drain.ended.wait(WITHIN_S)
    assert sink.total_bytes == len(b"last words")
    with pytest.raises(BrokenPipeError):
        os.write(writer, b"!")
    os.close(writer)


def test_a_writer_that_never_stops_does_not_hold_up_the_others(drains: Drains) -> None:
    loud_reader, loud = pipe()
    stop = threading.Event()

    def shout() -> None:
        try:
            while not stop.is_set():
                os.write(loud, b"x" * 65536)
        except BrokenPipeError:
            pass  # let go of, as it should be

    shouter = threading.Thread(target=shout)
    shouting = drains.add(loud_reader, CountSink())
    shouter.start()
    quiet_reader, quiet = pipe()
    sink = CountSink()
    listening = drains.add(quiet_reader, sink)
    os.write(quiet, b"hello")
    os.close(quiet)
    assert listening.ended.wait(WITHIN_S)
    shouting.finish()
    assert shouting.ended.wait(WITHIN_S)
    stop.set()
    shouter.join(WITHIN_S)
    os.close(loud)
    assert sink.total_bytes == 5


def test_closing_takes_in_what_is_there_and_may_be_done_twice() -> None:
    drains = Drains()
    reader, writer = pipe()
    sink = CountSink()
    drain = drains.add(reader, sink)
    os.write(writer, b"last words")
    drains.close()
    drains.close()
    assert (drain.ended.is_set(), sink.total_bytes, reader.closed) == (True, 10, True)
    os.close(writer)
    late, other = pipe()
    with late, pytest.raises(RuntimeError, match="closed"):
        drains.add(late, sink)
    os.close(other)
