"""`wrap` and `unwrap`: shown, asked for, written with a backup. Inside the test's process unless a name says otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from birthmark.errors import ConfigError
from birthmark.interfaces.cli import wrapped as wrapped_module
from birthmark.interfaces.cli.wrapped import LAUNCHES, launcher, trouble_with
from tests.interfaces.running import Said, command, process

PLAIN = """\
{
  "mcpServers": {
    "time": {"command": "uvx", "args": ["mcp-server-time"], "env": {"A": "b"}}, // why
    "docs": {"url": "https://docs.example/mcp"}
  }
}
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="`birthmark run` needs Linux")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a home of its own, with one client's file."""
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor/mcp.json").write_text(PLAIN)
    return tmp_path


@pytest.fixture
def file(home: Path) -> Path:
    return home / ".cursor/mcp.json"


def backups(file: Path) -> list[Path]:
    return sorted(file.parent.glob("*birthmark-backup-*"))


def the_only_file(said: Said) -> dict[str, object]:
    """Return what --json told of one file."""
    files = said.json["files"]
    assert isinstance(files, list)
    [told] = files
    assert isinstance(told, dict)
    return told


def test_what_changes_is_shown_and_written_and_kept(file: Path) -> None:
    said = command("wrap", "--yes", str(file))
    [backup] = backups(file)
    front = '"-I", "-m", "birthmark", "run", "--name", "time", "--", "uvx", '
    old = '    "time": {"command": "uvx", "args": ["mcp-server-time"], "env": {"A": "b"}}, // why'
    new = old.replace('"uvx"', f'"{sys.executable}"').replace("[", f"[{front}")
    assert said == (
        0,
        f"{file} (Cursor)\n"
        "  time: wrap\n"
        "  docs: left: it is remote\n"
        f"--- {file}\n"
        f"+++ {file}\n"
        "@@ -2,3 +2,3 @@\n"
        '   "mcpServers": {\n'
        f"-{old}\n"
        f"+{new}\n"
        '     "docs": {"url": "https://docs.example/mcp"}\n'
        f"written; what there was is in {backup}\n"
        "restart Cursor: it reads the file when it starts\n",
        "",
    )
    assert file.read_text() == PLAIN.replace(old, new)
    assert backup.read_text() == PLAIN


def test_unwrap_writes_the_same_bytes_again(file: Path) -> None:
    command("wrap", "--yes", str(file))
    assert command("unwrap", "--yes", str(file)).code == 0
    assert file.read_text() == PLAIN
    assert len(backups(file)) == 2


def test_a_second_time_there_is_nothing_to_do(file: Path) -> None:
    command("wrap", "--yes", str(file))
    once = file.read_bytes()
    said = command("wrap", str(file))
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[1:] == [
        "  time: left: it runs under `birthmark run` already",
        "  docs: left: it is remote",
        "nothing to wrap",
    ]
    assert file.read_bytes() == once
    assert len(backups(file)) == 1


@pytest.mark.parametrize("verb", ["wrap", "unwrap"])
def test_without_a_terminal_and_without_yes_nothing_is_written(file: Path, verb: str) -> None:
    if verb == "unwrap":
        command("wrap", "--yes", str(file))
    before, kept = file.read_bytes(), backups(file)
    said = process(verb, str(file))
    assert said.code == 5
    assert said.err == f"birthmark: {file}: nobody is here to be asked; --yes says yes; nothing was changed\n"
    assert "+++" in said.out
    assert (file.read_bytes(), backups(file)) == (before, kept)


def at_a_terminal(answer: str, *words: str) -> Said:
    """Run a command as a process at a terminal where somebody types the answer."""
    import pty  # which not every system has

    keyboard, terminal = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "birthmark", *words],
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=terminal,
            text=True,
        ) as asked:
            os.close(terminal)
            terminal = -1
            os.write(keyboard, answer.encode())
            out, _ = asked.communicate(timeout=30)
        said = b""
        try:
            while chunk := os.read(keyboard, 4096):
                said += chunk
        except OSError:  # the other side is closed, and everything read
            pass
        return Said(asked.returncode, out, said.decode())
    finally:
        for fd in (keyboard, terminal):
            if fd >= 0:
                os.close(fd)


def test_at_a_terminal_yes_writes_and_no_does_not(file: Path) -> None:
    said = at_a_terminal("n\n", "wrap", str(file))
    assert said.code == 5
    assert f"Write this to {file}? [y/N]:" in said.err
    assert "the answer was no; nothing was changed" in said.err
    assert file.read_text() == PLAIN
    assert at_a_terminal("y\n", "wrap", str(file)).code == 0
    assert file.read_text() != PLAIN


def test_a_file_under_version_control_is_refused_without_yes_with_the_reason(home: Path, file: Path) -> None:
    (home / ".git").mkdir()
    sentence = (
        f"{file}: it is under version control ({home}), and the path of the interpreter is yours alone; "
        "--yes writes it all the same; nothing was changed"
    )
    assert command("wrap", str(file)).err == f"birthmark: {sentence}\n"
    said = at_a_terminal("y\n", "wrap", str(file))
    assert said.code == 5
    assert sentence in said.err.replace("\r\n", "\n")
    assert file.read_text() == PLAIN
    assert command("wrap", "--yes", str(file)).code == 0


def test_a_link_into_version_control_counts(home: Path, file: Path) -> None:
    (home / "dotfiles/.git").mkdir(parents=True)
    file.rename(home / "dotfiles/mcp.json")
    file.symlink_to(home / "dotfiles/mcp.json")
    assert "under version control" in command("wrap", str(file)).err
    assert command("wrap", "--yes", str(file)).code == 0
    assert file.is_symlink()
    # The path is taken out again: nothing of it is personal.
    assert "nobody is here to be asked" in command("unwrap", str(file)).err


def test_what_is_not_understood_is_refused_and_left(file: Path) -> None:
    file.write_text('{"mcpServers": {"x": {"command": "npx -y a"}, "y": {"command": "y"}}}')
    before = file.read_bytes()
    said = command("wrap", "--yes", str(file))
    assert said == (
        2,
        "",
        f"birthmark: {file}:1: mcpServers.x.command: it holds blanks, and some hosts take it apart there. "
        "Put what follows the program into args\n",
    )
    assert file.read_bytes() == before
    assert backups(file) == []


@pytest.mark.parametrize("words", [["wrap"], ["unwrap"], ["wrap", "--all", "a.json"]])
def test_one_file_or_all_of_them(words: list[str]) -> None:
    said = command(*words)
    assert (said.code, said.out) == (2, "")
    assert "name one file, or say --all" in said.err


def test_a_file_that_is_not_there_is_a_mistake(home: Path) -> None:
    assert command("wrap", f"{home}/gone.json") == (
        2,
        "",
        f"birthmark: {home}/gone.json: cannot be read: No such file or directory\n",
    )


def test_json_says_what_was_done(file: Path) -> None:
    said = command("wrap", "--yes", "--json", str(file))
    told = the_only_file(said)
    assert "Cursor" in said.err
    diff = told.pop("diff")
    assert isinstance(diff, str)
    assert diff.startswith(f"--- {file}\n+++ {file}\n")
    assert told == {
        "path": str(file),
        "host": "Cursor",
        "changed": True,
        "servers": [
            {"name": "time", "place": f"{file}:3", "action": "wrap", "why": None},
            {"name": "docs", "place": f"{file}:4", "action": "leave", "why": "it is remote"},
        ],
        "backup": str(backups(file)[0]),
    }


def test_json_without_yes_tells_the_diff_and_writes_nothing(file: Path) -> None:
    said = process("wrap", "--json", str(file))
    assert said.code == 5
    told = the_only_file(said)
    assert told["changed"] is False
    assert "+++" in str(told["diff"])
    assert file.read_text() == PLAIN


def test_all_offers_each_known_file_and_one_that_is_refused_stops_no_other(home: Path, file: Path) -> None:
    (home / ".claude.json").write_text('{"mcpServers": {"x": {"command": "x y"}}}')
    (home / ".gemini").mkdir()
    (home / ".gemini/settings.json").write_text('{"theme": "dark"}')
    (home / ".codex").mkdir()
    codex = home / ".codex/config.toml"
    codex.write_text('[mcp_servers.x]\ncommand = "x"\n')
    said = command("wrap", "--all", "--yes", "--json")
    assert said.code == 2
    told = {
        Path(each["path"]).relative_to(home).as_posix(): (each["host"], each["changed"], "refused" in each)
        for each in json.loads(said.out)["files"]
    }
    assert told == {
        ".claude.json": ("Claude Code", False, True),
        ".cursor/mcp.json": ("Cursor", True, False),
        ".codex/config.toml": ("Codex", True, False),
    }
    assert command("unwrap", "--all", "--yes").code == 0
    assert (file.read_text(), codex.read_text()) == (PLAIN, '[mcp_servers.x]\ncommand = "x"\n')


def test_all_without_any_file_says_so(file: Path) -> None:
    file.unlink()
    assert command("wrap", "--all") == (0, "no known client has a file with servers here\n", "")
    assert command("wrap", "--all", "--json").json == {"files": []}


def test_a_control_character_in_a_file_does_not_reach_the_terminal(file: Path) -> None:
    file.write_text('{"mcpServers": {\t"x": {"command": "x"}, // \x1b[2J\x9b\n}}')
    said = command("wrap", str(file))
    assert said.code == 5
    assert r"\x1b[2J\x9b" in said.out
    assert "\x1b" not in said.out


def test_on_a_system_without_run_nothing_is_wrapped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    said = command("wrap", "--yes", str(file))
    assert said.code == 1
    assert "is not supported on darwin" in said.err
    assert file.read_text() == PLAIN


# -- the words that are written ------------------------------------------------


@pytest.fixture(autouse=True)
def forget_answers() -> Iterator[None]:
    """Have each test ask interpreters anew."""
    wrapped_module._no_answer.cache_clear()
    yield
    wrapped_module._no_answer.cache_clear()


def test_the_interpreter_is_absolute_and_answers() -> None:
    front = launcher()
    assert front == (sys.executable, *LAUNCHES)
    assert Path(front[0]).is_absolute()


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("", "Python does not say which interpreter this is"),
        ("/opt/$x/python", "characters that not every host leaves"),
        ("/opt/\udcff/python", "characters that not every host leaves"),
        ("/home/ada/.cache/uv/archive-v0/a/bin/python", "in a cache, from which it may vanish"),
        ("/gone/bin/python", "there is no /gone/bin/python"),
    ],
)
def test_an_interpreter_that_would_not_start_every_server_is_refused(
    program: str, why: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    said = command("wrap", "--yes", str(file))
    assert said.code == 2
    assert why in said.err
    assert file.read_text() == PLAIN
    with pytest.raises(ConfigError):
        launcher()


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_wrapper_that_does_not_start_is_told_by_its_trouble(tmp_path: Path) -> None:
    lost = script(tmp_path / "python3", "echo No module named birthmark >&2; exit 1")
    closed = tmp_path / "closed"
    closed.touch(mode=0o600)
    assert trouble_with((sys.executable, *LAUNCHES, "--")) is None
    assert (
        trouble_with((str(lost), *LAUNCHES)) == f"{lost} does not find birthmark: No module named birthmark"
    )
    assert trouble_with((str(closed), "run")) == f"{closed} cannot be executed"
    assert trouble_with((f"{tmp_path}/gone", "run")) == f"there is no {tmp_path}/gone"
    assert trouble_with(("no-such-birthmark", "run")) == "no-such-birthmark is not on PATH"
    assert trouble_with(("sh", "run")) is None


# -- doctor --------------------------------------------------------------------


def findings() -> list[dict[str, object]]:
    said = command("doctor", "--json")
    found = said.json["findings"]
    assert isinstance(found, list)
    return [each for each in found if each["subject"] == "wrapped"]


def test_doctor_says_nothing_of_files_that_are_not_wrapped() -> None:
    assert findings() == []


def test_doctor_names_what_is_wrapped(file: Path) -> None:
    command("wrap", "--yes", str(file))
    assert findings() == [
        {
            "subject": "wrapped",
            "state": "ok",
            "words": f"Cursor, {file}: time: under `birthmark run`",
            "todo": None,
        }
    ]


def test_doctor_finds_a_wrapper_that_is_gone_and_the_way_out_is_one(file: Path, tmp_path: Path) -> None:
    command("wrap", "--yes", str(file))
    file.write_text(file.read_text().replace(sys.executable, f"{tmp_path}/gone/python"))
    (tmp_path / ".claude.json").write_text("not json")
    assert findings() == [
        {
            "subject": "wrapped",
            "state": "broken",
            "words": f"Cursor, {file}: time: there is no {tmp_path}/gone/python",
            "todo": f"birthmark unwrap {file} && birthmark wrap {file}; then restart Cursor",
        }
    ]
    assert command("doctor").code == 1
    assert command("unwrap", "--yes", str(file)).code == 0
    assert file.read_text() == PLAIN
    assert command("wrap", "--yes", str(file)).code == 0
    assert [each["state"] for each in findings()] == ["ok"]
