"""The command line from outside: a real `up` with real servers, and the commands that ask it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from birthmark.interfaces.sockets import control_socket
from tests.e2e.ups import DEAF, STDIO, WEB, WITHIN_S, free_port, up, wait_gone, write_services
from tests.interfaces.running import Said, process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor's platform is Linux")


def services_of(said: Said) -> dict[str, dict[str, object]]:
    services = said.json["services"]
    assert isinstance(services, list)
    return {each["name"]: each for each in services}


def test_services_come_up_are_explained_stopped_and_gone(tmp_path: Path, birthmark_home: Path) -> None:
    port = free_port()
    file = write_services(
        tmp_path,
        {
            "web": {"kind": "agent", "script": WEB, "args": ["{port}"], "port": port},
            "echo it": {"script": STDIO},
        },
    )
    with up("-f", str(file)) as supervisor:
        supervisor.wait_line("web: ready")
        supervisor.wait_line("echo it: ready")
        assert "`birthmark run`" in supervisor.wait_line("echo it: started")
        assert supervisor.objects[0]["supervisor"]["stamp"] == "stamped"  # type: ignore[index]

        listed = services_of(process("ps", "--json"))
        assert {name: each["observed"] for name, each in listed.items()} == {
            "web": "ready",
            "echo it": "ready",
        }
        pid = listed["web"]["pid"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            assert json.load(answer) == {"pid": pid}

        explained = process("explain", "--json", str(pid))
        assert (explained.code, explained.json["owner"], explained.json["found"]) == (0, "ours", "leader")
        assert explained.json["would_signal"] == [
            {"pid": pid, "found": "leader", "command": explained.json["command"]}
        ]
        owner = process("explain", "--json", str(supervisor.process.pid))
        assert (owner.code, owner.json["kind"]) == (0, "api")
        held = process("ports", "--json", str(port)).json["ports"]
        assert isinstance(held, list)
        assert [(each["pid"], each["owner"], each["service"]) for each in held[0]["holders"]] == [
            (pid, "ours", "web")
        ]

        assert process("status").code == 0
        assert "GET / HTTP" in process("logs", "web").out
        assert [
            line.rpartition(" stderr ")[2] for line in process("logs", "--stderr", "web").out.splitlines()
        ][1] == ("web begins")

        dry = process("stop", "--dry-run", "--json", "web")
        assert (dry.code, dry.json) == (0, {"would_signal": {"web": explained.json["would_signal"]}})
        assert process("stop", "web", "nosuch").code == 4
        assert services_of(process("ps", "--json"))["web"]["pid"] == pid

        stopped = process("stop", "web")
        assert (stopped.code, stopped.err) == (0, "")
        lines = stopped.out.splitlines()
        assert re.fullmatch(r"web: exited in \d+ ms", lines[0])
        assert re.fullmatch(rf"  {pid}  leader  SIGTERM at \d+ ms: signal 15 \(SIGTERM\)  .*", lines[1])
        assert lines[2:] == [f"  note: port {port} is free again"]
        assert process("status").code == 3
        assert process("status", "echo it").code == 0
        assert process("stop", "web").out == "web: was not running; it stays down until `birthmark start`\n"

        assert process("start", "web").code == 0
        assert process("restart", "web").code == 0
        supervisor.wait_line("web: ready")
        again = services_of(process("ps", "--json"))["web"]["pid"]
        assert isinstance(again, int)
        assert again != pid

        ended = process("down")
        assert ended.code == 0
        assert supervisor.wait() == 0
        assert {each["service"] for each in supervisor.receipts} == {"web", "echo it"}
        wait_gone([again])
    assert not control_socket(birthmark_home).exists()
    assert process("ps").code == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything_and_the_receipts_are_told(tmp_path: Path, number: signal.Signals) -> None:
    file = write_services(tmp_path, {"echo": {"script": STDIO}})
    with up("-f", str(file)) as supervisor:
        supervisor.wait_line("echo: ready")
        supervisor.signal(number)
        assert supervisor.wait() == 0
    assert [(each["service"], each["termination"]) for each in supervisor.receipts] == [("echo", "exited")]
    assert supervisor.lines[-1] == "all stopped"
    assert f"{number.name}: stopping" in supervisor.words


def test_a_hang_up_that_was_ignored_at_the_start_stays_ignored(tmp_path: Path) -> None:
    file = write_services(tmp_path, {"echo": {"script": STDIO}})
    with up("-f", str(file), under=("sh", "-c", "trap '' HUP; exec \"$@\"", "sh")) as supervisor:
        supervisor.wait_line("echo: ready")
        supervisor.signal(signal.SIGHUP)
        assert process("status").code == 0
        supervisor.signal(signal.SIGTERM)
        assert supervisor.wait() == 0
    assert "SIGHUP" not in supervisor.words


def test_a_second_signal_shortens_the_grace(tmp_path: Path) -> None:
    file = write_services(
        tmp_path, {"deaf": {"kind": "agent", "script": DEAF, "term_grace": "10m", "restart": "never"}}
    )
    with up("-f", str(file)) as supervisor:
        supervisor.wait_line("deaf: ready")
        supervisor.signal(signal.SIGINT)
        supervisor.wait_line("SIGINT: stopping")
        supervisor.signal(signal.SIGINT)
        assert supervisor.wait() == 0
    [receipt] = supervisor.receipts
    assert receipt["termination"] == "killed"
    members = receipt["members"]
    assert isinstance(members, list)
    assert len(members) == 2
    wait_gone([each["pid"] for each in members])


def test_what_a_killed_supervisor_left_is_ended_by_the_next_one_which_says_so(tmp_path: Path) -> None:
    port = free_port()
    file = write_services(
        tmp_path,
        {
            "deaf": {"kind": "agent", "script": DEAF, "term_grace": "200ms"},
            "web": {"kind": "agent", "script": WEB, "args": ["{port}"], "port": port},
        },
    )
    with up("-f", str(file)) as supervisor:
        supervisor.wait_line("deaf: ready")
        supervisor.wait_line("web: ready")
        listed = services_of(process("ps", "--json"))
        leader = listed["deaf"]["pid"]
        assert isinstance(leader, int)
        would = process("explain", "--json", "deaf").json["would_signal"]
        assert isinstance(would, list)
        pids = [each["pid"] for each in would]
        assert len(pids) == 2
        supervisor.signal(signal.SIGKILL)
        assert supervisor.wait() == -signal.SIGKILL
    left = process("explain", str(leader))
    assert left.code == 0, left
    with up("-f", str(file)) as supervisor:
        supervisor.wait_line("deaf: ready")
        supervisor.wait_line("web: ready")
        wait_gone(pids)
        assert str(leader) in supervisor.words
        assert f"pid {supervisor.process.pid}" not in supervisor.words
        assert services_of(process("ps", "--json"))["web"]["port"] == port
        supervisor.signal(signal.SIGTERM)
        assert supervisor.wait() == 0


def test_a_supervisor_whose_socket_is_gone_is_found_by_its_record_and_mark(
    tmp_path: Path, birthmark_home: Path
) -> None:
    file = write_services(tmp_path, {"echo": {"script": STDIO}})
    with up("-f", str(file)) as supervisor:
        supervisor.wait_line("echo: ready")
        control_socket(birthmark_home).unlink()
        assert process("ps").code == 4
        said = process("down")
        assert said.code == 0, said
        assert said.out.splitlines()[0] == (
            f"the supervisor did not answer on its socket; process {supervisor.process.pid} was proven to be it, "
            "and stopped"
        )
        assert supervisor.wait() == 0
    assert [each["service"] for each in supervisor.receipts] == ["echo"]
    assert process("down").code == 4


def test_a_second_supervisor_is_refused_and_the_first_goes_on(tmp_path: Path, birthmark_home: Path) -> None:
    file = write_services(tmp_path, {"echo": {"script": STDIO}})
    with up("-f", str(file)) as supervisor:
        supervisor.wait_line("echo: ready")
        refused = process("up", "-f", str(file))
        assert refused.code == 1
        assert refused.err == (
            f"birthmark: the supervisor with pid {supervisor.process.pid} already runs the installation in "
            f"{birthmark_home}; use `birthmark ps`, or give this one a folder of its own with BIRTHMARK_HOME\n"
        )
        assert process("status").code == 0


def test_a_stranger_on_a_configured_port_is_named_and_left_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        file = write_services(
            tmp_path, {"web": {"kind": "agent", "script": WEB, "args": ["{port}"], "port": port}}
        )
        with up("-f", str(file)) as supervisor:
            supervisor.wait_line(f"held by pid {os.getpid()} ")
            web = services_of(process("ps", "--json"))["web"]
            assert (web["observed"], web["pid"]) == ("blocked", None)
            assert str(os.getpid()) in str(web["why"])
            supervisor.signal(signal.SIGTERM)
            assert supervisor.wait() == 0
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_a_home_longer_than_a_socket_address_works(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 30) / ("longer" * 20)
    file = write_services(tmp_path, {"echo": {"script": STDIO}})
    environ = {"BIRTHMARK_HOME": str(home)}
    with up("-f", str(file), environ=environ) as supervisor:
        supervisor.wait_line("echo: ready")
        assert process("status", environ=environ).code == 0
        assert process("down", environ=environ).code == 0
        assert supervisor.wait() == 0


def test_paths_that_are_not_valid_unicode_work(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    odd.mkdir()
    file = odd / "birthmark.toml"
    write_services(tmp_path, {"echo": {"script": STDIO}, "gone": {"command": "./gone"}}).rename(file)
    environ = {"BIRTHMARK_HOME": str(odd / "home")}
    with up("-f", str(file), environ=environ) as supervisor:
        supervisor.wait_line("echo: ready")
        supervisor.wait_line("gone: blocked")
        services = services_of(process("ps", "--json", environ=environ))
        assert (services["echo"]["observed"], services["gone"]["observed"]) == ("ready", "blocked")
        assert str(services["echo"]["log"]).startswith(str(odd))
        explained = process("explain", "echo", environ=environ)
        assert explained.code == 0, explained.err
        stopped = process("stop", "--json", "echo", environ=environ)
        assert stopped.code == 0, stopped.err
        assert process("down", environ=environ).code == 0
        assert supervisor.wait() == 0


def test_a_reader_that_does_not_read_holds_nothing_up(tmp_path: Path) -> None:
    file = write_services(tmp_path, {"echo": {"script": STDIO}})
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while os.write(writing, b"x" * 4096):
            pass
    os.set_blocking(writing, True)
    words = [sys.executable, "-m", "birthmark", "up", "-f", str(file)]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=writing, start_new_session=True) as running:
        os.close(writing)
        try:
            deadline = time.monotonic() + WITHIN_S
            while (said := process("ps", "--json")).code or services_of(said)["echo"]["observed"] != "ready":
                assert time.monotonic() < deadline, "the supervisor waits for its reader"
            assert process("stop", "echo").code == 0
            with open(reading, "rb") as reader:
                running.terminate()
                assert b"echo: ready" in (told := reader.read())
            assert b"nothing was running" in told
            assert running.wait(WITHIN_S) == 0
        finally:
            running.kill()


def test_only_the_named_services_come_up(tmp_path: Path) -> None:
    file = write_services(tmp_path, {"a": {"script": STDIO}, "b": {"script": STDIO}})
    with up("-f", str(file), "b") as supervisor:
        supervisor.wait_line("b: ready")
        listed = services_of(process("ps", "--json"))
        assert (listed["a"]["observed"], listed["b"]["observed"]) == ("absent", "ready")


def test_secrets_are_shown_by_no_command(tmp_path: Path, birthmark_home: Path) -> None:
    file = write_services(tmp_path, {"echo": {"script": STDIO, "env": {}}})
    file.write_text(file.read_text().replace("env = {}", 'env = { API_KEY = "hunter2hunter2" }'))
    with up("-f", str(file)) as supervisor:
        supervisor.wait_line("echo: ready")
        shown = [
            process(*words)
            for words in (
                ["ps", "--json"],
                ["explain", "echo"],
                ["logs", "echo"],
                ["check", "--json", str(file)],
            )
        ]
        supervisor.signal(signal.SIGTERM)
        assert supervisor.wait() == 0
    assert "hunter2" not in supervisor.words + json.dumps(supervisor.objects) + str(shown)
    for path in birthmark_home.rglob("*"):
        if path.is_file():
            assert b"hunter2" not in path.read_bytes(), path


# -- what cannot be used


PROGRAM = f'command = "{sys.executable}"'

BAD = {
    "no TOML": ("x.toml", "= 3", 2),
    "no JSON": ("x.json", "{", 2),
    "an unknown key": ("x.toml", f'[mcp.x]\n{PROGRAM}\ncomand = "y"\n', 2),
    "an unset variable": ("x.toml", f'[mcp.x]\n{PROGRAM}\nargs = ["${{NOT_SET_ANYWHERE}}"]\n', 2),
    "a name twice": ("x.toml", f"[mcp.x]\n{PROGRAM}\n[agent.x]\n{PROGRAM}\n", 2),
    "port 0": ("x.toml", f"[mcp.x]\n{PROGRAM}\nport = 0\n", 2),
    "port 70000": ("x.toml", f"[mcp.x]\n{PROGRAM}\nport = 70000\n", 2),
    "an empty name": ("x.toml", f'[mcp.""]\n{PROGRAM}\n', 2),
    "a name with an equals sign": ("x.toml", f'[mcp."a=b"]\n{PROGRAM}\n', 2),
    "a name with a newline": ("x.toml", f'[mcp."a\\nb"]\n{PROGRAM}\n', 2),
    "a name with a NUL": ("x.json", '{"mcpServers": {"a\\u0000b": {"command": "x"}}}', 2),
    "the reserved name": ("x.toml", f"[mcp.api]\n{PROGRAM}\n", 2),
    "a command of the wrong type": ("x.toml", "[mcp.x]\ncommand = 3\n", 2),
    "no services": ("x.toml", "", 2),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_configuration_starts_nothing(tmp_path: Path, birthmark_home: Path, case: str) -> None:
    name, text, code = BAD[case]
    file = tmp_path / name
    file.write_text(text)
    said = process("up", "-f", str(file))
    assert said.code == code
    assert said.err.startswith("birthmark: ")
    assert str(file) in said.err
    assert "Traceback" not in said.err
    assert not (birthmark_home / "registry.db").exists()
    assert not control_socket(birthmark_home).exists()


def test_a_file_that_is_not_there_starts_nothing(tmp_path: Path) -> None:
    said = process("up", "-f", str(tmp_path / "nosuch.toml"))
    assert (said.code, said.err) == (2, f"birthmark: {tmp_path}/nosuch.toml: there is no such file\n")


def test_a_service_that_the_file_does_not_name_starts_nothing(tmp_path: Path) -> None:
    file = write_services(tmp_path, {"echo": {"script": STDIO}})
    said = process("up", "-f", str(file), "ehco")
    assert said.code == 4
    assert said.err.endswith("birthmark: no service is called 'ehco'; there are: echo\n")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"command": "no-such-program-anywhere"}, "no-such-program-anywhere"),
        ({"command": "/usr"}, "/usr"),
        ({"command": sys.executable, "cwd": "/no/such/folder"}, "/no/such/folder"),
    ],
    ids=["a missing program", "a folder as program", "a working directory that is gone"],
)
def test_a_service_that_cannot_start_is_blocked_and_the_others_run(
    tmp_path: Path, values: dict[str, object], words: str
) -> None:
    file = write_services(tmp_path, {"bad": values, "echo": {"script": STDIO}})
    with up("-f", str(file)) as supervisor:
        supervisor.wait_line("echo: ready")
        supervisor.wait_line("bad: ")
        bad = services_of(process("ps", "--json"))["bad"]
        assert (bad["observed"], bad["pid"]) == ("blocked", None)
        assert words in str(bad["why"])
        supervisor.signal(signal.SIGTERM)
        assert supervisor.wait() == 0


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = write_services(tmp_path, {"echo": {"script": STDIO}})
    said = process("up", "-f", str(file), environ={"BIRTHMARK_HOME": str(tmp_path / "file" / "home")})
    assert said.code == 1
    assert said.err.startswith(f"birthmark: {tmp_path}/file/home: the state folder cannot be made")


# -- trust


def test_a_projects_file_starts_nothing_before_it_is_trusted(tmp_path: Path, birthmark_home: Path) -> None:
    (tmp_path / ".git").mkdir()
    file = write_services(tmp_path, {"echo": {"script": STDIO}})
    script = next(tmp_path.glob("*.py"))
    refused = process("up", cwd=tmp_path)
    assert refused.code == 5
    assert refused.err == (
        f"birthmark: {file} lies in a project and is not trusted yet; it would start:\n"
        f"    echo: {sys.executable} {script}\n"
        f"Read it, then say: birthmark up -f {file} --trust\n"
    )
    assert not (birthmark_home / "registry.db").exists()
    for words in (["--trust"], []):  # said once, it is remembered
        with up(*words, cwd=tmp_path) as supervisor:
            supervisor.wait_line("echo: ready")
    file.write_text(file.read_text() + "\n")
    assert process("up", cwd=tmp_path).code == 5


@pytest.mark.parametrize(("answer", "starts"), [("y", True), ("n", False), ("", False)])
def test_a_person_at_a_terminal_is_asked_once(tmp_path: Path, answer: str, starts: bool) -> None:
    import pty

    (tmp_path / ".git").mkdir()
    write_services(tmp_path, {"echo": {"script": STDIO}})
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.chdir(tmp_path)
            os.execv(sys.executable, [sys.executable, "-m", "birthmark", "up"])
        finally:
            os._exit(99)
    said = b""
    try:
        os.set_blocking(terminal, False)
        said = read_until(terminal, b"[y/N]")
        os.write(terminal, f"{answer}\n".encode())
        if starts:
            said += read_until(terminal, b"echo: ready")
            os.write(terminal, b"\x03")
            said += read_until(terminal, b"all stopped")
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(terminal)
    assert b"It would start:" in said
    assert code == (0 if starts else 5)


def read_until(fd: int, words: bytes) -> bytes:
    """Read a terminal until the words have come; each wait is bounded."""
    import select

    said = b""
    while words not in said:
        assert select.select([fd], [], [], 20)[0], said
        try:
            part = os.read(fd, 4096)
        except OSError as err:  # a terminal whose other side has gone
            raise AssertionError(f"it ended before it said {words!r}: {said!r}") from err
        assert part, said
        said += part
    return said
