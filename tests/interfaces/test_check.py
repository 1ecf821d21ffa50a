"""`check`, on files that can be used and files that cannot. Starts nothing; run inside the test's process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.interfaces.running import command, process

GOOD = """
[mcp.time]
command = "mcp-server-time"
args = ["--zone", "UTC"]
env = { API_KEY = "hunter2", TZ = "UTC" }

[agent.web]
command = "/bin/serve"
port = 8080

[mcp.elsewhere]
url = "https://example.org/mcp"

[mcp.off]
command = "never"
enabled = false
"""


def test_what_a_file_comes_to_is_shown_with_the_plan(tmp_path: Path) -> None:
    file = tmp_path / "birthmark.toml"
    file.write_text(GOOD)
    said = command("check", str(file))
    assert said.code == 0
    assert [line.split() for line in said.out.splitlines()] == [
        ["read", str(file)],
        ["NAME", "KIND", "TRANSPORT", "PORT", "READY", "RESTART", "COMMAND"],
        ["time", "mcp", "stdio", "-", "process", "on-failure", "mcp-server-time", "--zone", "UTC"],
        ["elsewhere", "mcp", "http", "-", "process", "on-failure", "https://example.org/mcp"],
        ["off", "mcp", "stdio", "-", "process", "on-failure", "(disabled)", "never"],
        ["web", "agent", "http", "8080", "tcp", "on-failure", "/bin/serve"],
        ["`birthmark", "up`", "would", "start", "2", "of", "4"],
    ]


def test_json_holds_everything_but_secrets(tmp_path: Path) -> None:
    file = tmp_path / "birthmark.toml"
    file.write_text(GOOD)
    said = command("check", "--json", str(file))
    assert "hunter2" not in said.out
    services = said.json["services"]
    assert isinstance(services, list)
    assert services[0]["env"] == {"API_KEY": "*****", "TZ": "UTC"}
    assert said.json["plan"] == [
        {"service": "time", "action": "start"},
        {"service": "elsewhere", "action": "nothing: it is somebody else's server"},
        {"service": "off", "action": "nothing: it is disabled"},
        {"service": "web", "action": "start"},
    ]


def test_a_hosts_own_file_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / ".mcp.json"
    file.write_text(
        json.dumps({"mcpServers": {"fetch it": {"command": "uvx", "args": ["mcp-server-fetch"]}}})
    )
    said = command("check", "--json", str(file))
    services = said.json["services"]
    assert isinstance(services, list)
    assert [(each["name"], each["command"]) for each in services] == [
        ("fetch it", ["uvx", "mcp-server-fetch"])
    ]


@pytest.mark.parametrize(
    ("name", "text", "where", "why"),
    [
        ("a.json", "{", ":1", ""),
        ("a.toml", "= 3", ":1", ""),
        ("a.toml", '[mcp.x]\ncommand = "x"\ncomand = "y"\n', ":3", "comand"),
        ("a.toml", '[mcp.x]\ncommand = "x"\nenv = { A = "${NOT_SET_ANYWHERE}" }\n', ":3", "NOT_SET_ANYWHERE"),
        ("a.toml", '[mcp.x]\ncommand = "x"\n[agent.x]\ncommand = "x"\n', ":3", "x"),
        ("a.toml", '[mcp.x]\ncommand = "x"\nport = 70000\n', ":3", "70000"),
        ("a.toml", '[mcp.x]\ncommand = "x"\nport = 0\n', ":3", "0"),
        ("a.toml", '[mcp.""]\ncommand = "x"\n', ":1", "empty"),
        ("a.toml", '[mcp."a=b"]\ncommand = "x"\n', ":1", "'='"),
        ("a.toml", '[mcp."a\\nb"]\ncommand = "x"\n', ":1", "holds"),
        ("a.toml", "[mcp.api]\ncommand = 'x'\n", ":1", "reserved"),
        ("a.toml", "[mcp.x]\ncommand = 3\n", ":2", "command"),
        ("a.toml", '[mcp.x]\ncommand = "x"\nterm_grace = 3\n', ":3", "term_grace"),
        ("a.json", '{"servres": {}}', "", "servres"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_line_and_the_reason(
    tmp_path: Path, name: str, text: str, where: str, why: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    said = command("check", str(file))
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"birthmark: {file}{where}")
    assert why in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo"])
def test_what_is_no_file_is_no_configuration(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.toml"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)  # nobody ever opens its other end
    said = process("check", str(path))
    assert (said.code, said.out) == (2, "")
    assert str(path) in said.err


def test_unset_variables_are_refused_unless_they_are_allowed(tmp_path: Path) -> None:
    file = tmp_path / "birthmark.toml"
    file.write_text('[mcp.x]\ncommand = "x"\nargs = ["${NEVER_SET_HERE}"]\n')
    said = command("check", str(file))
    assert said.code == 2
    assert "NEVER_SET_HERE is not set" in said.err
    assert "--allow-unset" in said.err
    said = command("check", "--allow-unset", str(file))
    assert (said.code, said.err) == (0, "")
    assert "${NEVER_SET_HERE}" in said.out


def test_without_a_file_the_ways_to_name_one_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    said = command("check")
    assert (said.code, said.out) == (2, "")
    assert "no birthmark.toml here" in said.err
