"""The group of commands, and what becomes of their errors. Run inside the test's process unless a name says otherwise."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import click
import pytest

from birthmark import __version__
from birthmark.errors import NotSignalable
from birthmark.interfaces.cli import app
from birthmark.interfaces.cli.client import ErrorAnswer
from tests.interfaces.running import command, process


def commands() -> list[str]:
    context = click.Context(app.cli)
    return [name for name in app.cli.list_commands(context) if app.cli.get_command(context, name) is not None]


@pytest.mark.parametrize("name", commands())
def test_every_command_shows_how_it_is_used_and_speaks_json(name: str) -> None:
    said = command(name, "--help")
    assert said.code == 0
    assert said.err == ""
    if name != "run":
        assert "Examples:" in said.out
        assert "--json" in said.out
        assert f"birthmark {name}" in said.out


def test_every_command_that_is_named_is_there() -> None:
    context = click.Context(app.cli)
    missing = [name for name in app.COMMANDS if app.cli.get_command(context, name) is None]
    assert missing == []


def test_the_list_of_commands_names_each_with_its_first_sentence() -> None:
    said = command("--help")
    assert said.code == 0
    assert "  ps       List the services of the running supervisor" in said.out


@pytest.mark.parametrize("words", [["--version"], []])
def test_the_version_is_told_with_and_without_click(words: list[str]) -> None:
    if words:
        assert command(*words) == (0, f"birthmark {__version__}\n", "")
    done = process("--version")
    assert done == (0, f"birthmark {__version__}\n", "")


def test_a_command_that_is_not_there_names_the_one_that_was_meant() -> None:
    assert command("expalin") == (
        2,
        "",
        "birthmark: there is no command 'expalin'; did you mean 'explain'?\n  `birthmark --help` shows how\n",
    )


def test_a_missing_argument_is_a_mistake_of_usage() -> None:
    assert command("explain") == (
        2,
        "",
        "birthmark: Missing argument 'PID|SERVICE'\n  `birthmark explain --help` shows how\n",
    )


@pytest.mark.parametrize(
    "words",
    [
        ("ps", "--bogus"),
        ("stop",),
        ("ports", "0"),
        ("ports", "70000"),
        ("ports", "x"),
        ("logs",),
        ("logs", "-n", "-1", "a"),
    ],
)
def test_wrong_words_are_a_mistake_of_usage(words: tuple[str, ...]) -> None:
    said = command(*words)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("birthmark: ")
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    "words", [("ps",), ("status",), ("stop", "x"), ("start", "x"), ("restart", "x"), ("down",)]
)
def test_without_a_supervisor_the_way_out_is_named(words: tuple[str, ...]) -> None:
    said = command(*words)
    assert (said.code, said.out) == (4, "")
    assert said.err.startswith("birthmark: no supervisor answers on ")
    assert said.err.endswith("there is no such socket. Start one with `birthmark up`\n")


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Have `birthmark ps` raise something."""
    module = import_module("birthmark.interfaces.cli.ps")

    def fail_with(error: BaseException) -> None:
        monkeypatch.setattr(module, "chosen", lambda names: raising(error)())

    return fail_with


def test_an_error_of_ours_is_one_line_and_its_exit_code(failing: Callable[[BaseException], None]) -> None:
    failing(NotSignalable(1, "it is an ancestor of ours"))
    assert command("ps") == (
        5,
        "",
        "birthmark: process 1 is never signalled: it is an ancestor of ours\n",
    )


def test_an_error_of_the_supervisor_has_the_face_it_has_there(
    failing: Callable[[BaseException], None],
) -> None:
    failing(ErrorAnswer("PortHeld", "port 80 is held by nginx", {}))
    assert command("ps") == (5, "", "birthmark: port 80 is held by nginx\n")


def test_an_error_of_a_newer_supervisor_is_shown_all_the_same(
    failing: Callable[[BaseException], None],
) -> None:
    failing(ErrorAnswer("NewerError", "something new", {}))
    assert command("ps") == (1, "", "birthmark: something new\n")


def test_a_time_out_has_a_code_of_its_own(failing: Callable[[BaseException], None]) -> None:
    failing(TimeoutError("no answer within 5 s"))
    assert command("ps") == (124, "", "birthmark: no answer within 5 s\n")


def test_an_interrupt_is_no_defect(failing: Callable[[BaseException], None]) -> None:
    failing(KeyboardInterrupt())
    said = command("ps")
    assert said.code == 130
    assert said.err.endswith("birthmark: interrupted\n")


def test_a_defect_of_ours_says_so_without_a_traceback(failing: Callable[[BaseException], None]) -> None:
    failing(ZeroDivisionError("division by zero"))
    assert command("ps") == (
        1,
        "",
        "birthmark: ZeroDivisionError: division by zero. This is a defect of birthmark's; "
        "BIRTHMARK_DEBUG=1 shows where it is\n",
    )


def test_a_defect_is_shown_whole_to_whoever_asks(
    failing: Callable[[BaseException], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIRTHMARK_DEBUG", "1")
    failing(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        command("ps")


def test_a_reader_that_leaves_is_no_defect() -> None:
    program = [sys.executable, "-m", "birthmark", "doctor"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(10) == 1


@pytest.mark.parametrize("words", ["doctor", "explain 1", "ps --json", "check", "--help", "explain 0"])
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_defect(words: str, closed: str) -> None:
    line = f'exec "{sys.executable}" -m birthmark {words} <&- {closed}'
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=30, check=False)
    assert "defect" not in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 2, 4, 5)


@pytest.mark.parametrize("words", [("check",), ("up",), ("check", "x.toml")])
def test_a_working_directory_that_is_gone_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    line = f'cd "$1" && rmdir "$1" && shift && exec "{sys.executable}" -I -m birthmark "$@"'
    folder = tmp_path / "gone"
    folder.mkdir()
    program = ["sh", "-c", line, "sh", str(folder), *words]
    done = subprocess.run(program, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "birthmark: the working directory: cannot be used: No such file or directory. "
        "Go to another folder, or name files by absolute paths with -f\n"
    )


def test_a_name_the_terminal_cannot_show_is_escaped() -> None:
    done = process("explain", "時計", environ={"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"})
    assert (done.code, done.err) == (
        4,
        "birthmark: no service is called '\\u6642\\u8a08'; there are: none\n",
    )


def test_the_shell_completes_commands() -> None:
    environ = {"_BIRTHMARK_COMPLETE": "bash_complete", "COMP_WORDS": "birthmark exp", "COMP_CWORD": "1"}
    assert process(environ=environ).out == "plain,explain\n"
