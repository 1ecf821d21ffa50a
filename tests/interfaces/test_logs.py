"""`logs` and the tail behind it, on real files written by a real journal."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from birthmark.children.installation import open_installation
from birthmark.config.model import LogPolicy
from birthmark.interfaces.cli.logs import Tail
from birthmark.supervisor.journal import Journal, log_path
from tests.interfaces.births import house
from tests.interfaces.running import command

AT = datetime(2030, 1, 1, 12, tzinfo=UTC)
STAMP = "2030-01-01T12:00:00.000Z"


def journal(name: str = "time", policy: LogPolicy | None = None, minute: int = 0) -> Journal:
    path = log_path(open_installation().logs, name)
    return Journal(path, policy or LogPolicy(), now=lambda: AT.replace(minute=minute))


def test_lines_are_shown_as_they_were_written() -> None:
    written = journal()
    written.write("stdout", [b"hello", b""])
    written.write("stderr", [b"oh\xff no"])
    written.close()
    assert command("logs", "time") == (
        0,
        f"{STAMP} stdout hello\n{STAMP} stdout \n{STAMP} stderr oh\\xff no\n",
        "",
    )


def test_only_the_last_lines_are_shown() -> None:
    written = journal()
    written.write("stdout", [b"%d" % number for number in range(200)])
    written.close()
    assert command("logs", "-n", "2", "time").out == f"{STAMP} stdout 198\n{STAMP} stdout 199\n"
    assert len(command("logs", "time").out.splitlines()) == 100
    assert command("logs", "-n", "0", "time").out == ""


def test_older_files_are_read_where_the_newest_has_too_few() -> None:
    written = journal(policy=LogPolicy(file_bytes=100, files=4))
    for number in range(9):
        written.write("stdout", [b"%d" % number])
    written.close()
    assert (written.path.with_name(f"{written.path.name}.2")).exists()
    shown = [line.rpartition(" ")[2] for line in command("logs", "-n", "6", "time").out.splitlines()]
    assert shown == ["3", "4", "5", "6", "7", "8"]


def test_standard_output_can_be_left_out() -> None:
    written = journal()
    written.write("stdout", [b"a"])
    written.write("stderr", [b"b"])
    written.notice("born")
    written.close()
    assert command("logs", "--stderr", "time").out == f"{STAMP} stderr b\n{STAMP} birthmark born\n"


def test_several_services_are_told_apart_and_put_in_order() -> None:
    for name, minute in (("b", 1), ("a", 2)):
        written = journal(name, minute=minute)
        written.write("stdout", [name.encode()])
        written.close()
    assert command("logs", "a", "b").out == (
        "b | 2030-01-01T12:01:00.000Z stdout b\na | 2030-01-01T12:02:00.000Z stdout a\n"
    )


def test_json_is_one_object_a_line() -> None:
    written = journal("a/b")
    written.write("stdout", [b"x\ty"])
    written.close()
    assert json.loads(command("logs", "--json", "a/b").out) == {
        "service": "a/b",
        "at": STAMP,
        "stream": "stdout",
        "text": "x\ty",
    }


def test_what_a_server_wrote_cannot_drive_the_terminal() -> None:
    written = journal()
    written.write("stdout", [b"\x1b]0;owned\x07"])
    written.close()
    assert command("logs", "time").out == f"{STAMP} stdout \\x1b]0;owned\\x07\n"


def test_a_known_service_without_a_log_has_no_lines_yet() -> None:
    with house() as home:
        home.know("time")
    assert command("logs", "time") == (0, "", "")


def test_an_unknown_service_is_an_error() -> None:
    assert command("logs", "time") == (4, "", "birthmark: no service is called 'time'; there are: none\n")


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", ".", ".."])
def test_a_name_never_leads_out_of_the_folder_of_logs(name: str) -> None:
    said = command("logs", name)
    assert (said.code, said.out) == (4, "")


@pytest.mark.parametrize("name", ["", "a\0b", "a=b", "a\nb", "\udcff"])
def test_a_name_that_no_service_can_have_is_a_mistake_of_usage(name: str) -> None:
    said = command("logs", name)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("birthmark: the service name")


# -- the tail


def texts(tail: Tail) -> list[str]:
    return [line.text for line in tail.more()]


def test_a_tail_goes_on_across_a_rotation_and_loses_nothing() -> None:
    written = journal(policy=LogPolicy(file_bytes=100, files=3))
    tail = Tail("time", written.path)
    assert texts(tail) == []
    written.write("stdout", [b"1"])
    assert texts(tail) == ["1"]
    written.write("stdout", [b"2"])
    written.write("stdout", [b"3"])  # rotates: 2 was the last line of the file that was moved
    written.write("stdout", [b"4"])
    assert texts(tail) == ["2", "3", "4"]
    written.close()
    tail.close()


def test_a_tail_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    tail = Tail("x", path)
    with open(path, "wb", buffering=0) as file:
        file.write(f"{STAMP} stdout hel".encode())
        assert texts(tail) == []
        file.write(b"lo\n")
        assert texts(tail) == ["hello"]
    tail.close()


def test_a_tail_waits_for_its_file(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    tail = Tail("x", path)
    assert texts(tail) == []
    path.write_text(f"{STAMP} stdout first\n")
    assert texts(tail) == ["first"]
    tail.close()


@pytest.mark.skipif(sys.platform == "win32", reason="ends it as a terminal would")
def test_following_shows_what_is_written_next_and_ends_with_an_interrupt() -> None:
    import signal

    written = journal()
    written.write("stdout", [b"before"])
    program = [sys.executable, "-m", "birthmark", "logs", "-f", "-n", "1", "time"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == f"{STAMP} stdout before\n"
        written.write("stderr", [b"after"])
        assert child.stdout.readline() == f"{STAMP} stderr after\n"
        child.send_signal(signal.SIGINT)
        assert child.wait(5) == 0
        assert child.stderr.read() == ""
    written.close()
