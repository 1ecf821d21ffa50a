"""Our own file: keys, policies, imports and overlays. Decisions with values, no process is started."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from birthmark.config.load import load_files
from birthmark.config.model import (
    Backoff,
    EnvProfile,
    Intensity,
    LogPolicy,
    ReadyKind,
    ReadySpec,
    Restart,
    SupervisorSettings,
    Transport,
)
from birthmark.core.markers import ChildKind
from birthmark.core.policies import StopPolicy
from birthmark.errors import ConfigError
from tests.config.loading import load, refusal, service, write


def own(folder: Path, text: str) -> Path:
    return write(folder / "birthmark.toml", text)


def test_a_service_that_says_nothing_has_the_documented_policies(tmp_path: Path) -> None:
    (spec,) = load(own(tmp_path, '[mcp.time]\ncommand = "uvx"\nargs = ["mcp-server-time"]\n')).services
    assert (spec.name, spec.kind, spec.command) == ("time", ChildKind.MCP, ("uvx", "mcp-server-time"))
    assert (spec.transport, spec.port, spec.port_range, spec.url) == (Transport.STDIO, None, None, None)
    assert spec.stop == StopPolicy(
        stdin_grace_s=2.0, term_grace_s=5.0, settle_s=5.0, stop_signal=signal.SIGTERM
    )
    assert spec.restart is Restart.ON_FAILURE
    assert spec.backoff == Backoff(first_s=0.5, cap_s=60.0, jitter=0.2)
    assert spec.intensity == Intensity(restarts=5, within_s=60.0, stable_s=30.0)
    assert spec.ready == ReadySpec(kind=ReadyKind.PROCESS, deadline_s=120.0, interval_s=10.0, timeout_s=5.0)
    assert spec.logs == LogPolicy(file_bytes=10 * 2**20, files=5, age_s=14 * 86400.0, total_bytes=100 * 2**20)
    assert (spec.env_profile, spec.enabled, spec.cwd) == (EnvProfile.DEFAULT, True, tmp_path)
    assert (spec.source, spec.line) == (str(tmp_path / "birthmark.toml"), 1)


def test_every_policy_can_be_said_by_a_service(tmp_path: Path) -> None:
    text = """
        [agent.echo]
        command = ["python3", "-m", "echo", "--port", "{port}"]
        cwd = "work"
        port = "8900-8999"
        url = "http://127.0.0.1:{port}/a2a"
        env = { MODE = "test" }
        env_from = ["LANGUAGE"]
        env_profile = "minimal"
        env_drop = ["MY_SESSION"]
        restart = "always"
        backoff = "1s"
        backoff_cap = "2m"
        backoff_jitter = 0.5
        restarts = 3
        restarts_within = "1m 30s"
        stable_after = "1h"
        stdin_grace = "0s"
        term_grace = "500ms"
        settle = "1.5s"
        stop_signal = "SIGINT"
        ready = "http"
        ready_path = "/health"
        ready_deadline = "10s"
        ready_interval = "1s"
        ready_timeout = "2s"
        log_size = "1MiB"
        log_files = 2
        log_age = "1d"
        log_total = "3MB"
        enabled = false
    """
    (spec,) = load(own(tmp_path, text)).services
    assert (spec.kind, spec.transport, spec.enabled) == (ChildKind.AGENT, Transport.HTTP, False)
    assert (spec.port, spec.port_range, spec.url) == (None, (8900, 8999), "http://127.0.0.1:{port}/a2a")
    assert (spec.cwd, spec.env, spec.env_from) == (tmp_path / "work", {"MODE": "test"}, ("LANGUAGE",))
    assert (spec.env_profile, spec.env_drop) == (EnvProfile.MINIMAL, ("MY_SESSION",))
    assert (spec.restart, spec.backoff) == (Restart.ALWAYS, Backoff(first_s=1.0, cap_s=120.0, jitter=0.5))
    assert spec.intensity == Intensity(restarts=3, within_s=90.0, stable_s=3600.0)
    assert spec.stop == StopPolicy(
        stdin_grace_s=0.0, term_grace_s=0.5, settle_s=1.5, stop_signal=signal.SIGINT
    )
    assert spec.ready == ReadySpec(
        kind=ReadyKind.HTTP, path="/health", deadline_s=10.0, interval_s=1.0, timeout_s=2.0
    )
    assert spec.logs == LogPolicy(file_bytes=2**20, files=2, age_s=86400.0, total_bytes=3_000_000)


def test_what_a_service_says_wins_over_the_defaults(tmp_path: Path) -> None:
    text = """
        [defaults]
        term_grace = "1s"
        settle = "1s"
        env = { A = "default", B = "default" }
        [mcp.x]
        command = "x"
        settle = "9s"
        env = { B = "own" }
    """
    (spec,) = load(own(tmp_path, text)).services
    assert (spec.stop.term_grace_s, spec.stop.settle_s) == (1.0, 9.0)
    assert spec.env == {"A": "default", "B": "own"}


def test_the_supervisors_own_settings_are_read(tmp_path: Path) -> None:
    text = '[supervisor]\nshutdown = "30s"\nports = "9000-9010"\n[mcp.x]\ncommand = "x"\nport = "auto"\n'
    config = load(own(tmp_path, text))
    assert config.supervisor == SupervisorSettings(shutdown_s=30.0, ports=(9000, 9010))
    assert config.services[0].port_range == (9000, 9010)


def test_a_picked_port_is_below_the_ephemeral_range(tmp_path: Path) -> None:
    (spec,) = load(own(tmp_path, '[mcp.x]\ncommand = "x"\nport = "auto"\n')).services
    assert (spec.port_range, spec.transport, spec.ready.kind) == (
        (20000, 29999),
        Transport.HTTP,
        ReadyKind.TCP,
    )


def test_a_loopback_url_of_a_command_names_its_port(tmp_path: Path) -> None:
    text = '[mcp.x]\ncommand = "x"\nurl = "http://127.0.0.1:8931/mcp"\n[mcp.y]\ncommand = "y"\nurl = "http://lan:1/mcp"\n'
    config = load(own(tmp_path, text))
    assert service(config, "x").port == 8931
    assert service(config, "y").port is None


def test_an_agent_without_a_port_speaks_to_nobody_unless_it_says_so(tmp_path: Path) -> None:
    text = '[agent.x]\ncommand = "x"\n[agent.y]\ncommand = "y"\ntransport = "stdio"\n'
    config = load(own(tmp_path, text))
    assert service(config, "x").transport is Transport.NONE
    assert service(config, "y").transport is Transport.STDIO


def test_a_log_pattern_alone_means_ready_by_log(tmp_path: Path) -> None:
    (spec,) = load(own(tmp_path, '[mcp.x]\ncommand = "x"\nready_pattern = "listening on \\\\d+"\n')).services
    assert (spec.ready.kind, spec.ready.pattern) == (ReadyKind.LOG, r"listening on \d+")


# -- imports and overlays ------------------------------------------------------

HOST = '{"mcpServers": {"time": {"command": "uvx", "args": ["time"], "env": {"A": "host", "B": "host"}}}}'


def test_policy_is_laid_over_an_imported_server_by_name(tmp_path: Path) -> None:
    write(tmp_path / "project/.mcp.json", HOST)
    text = 'import = ["project/.mcp.json"]\n[mcp.time]\nrestart = "always"\nenv = { B = "ours" }\n'
    config = load(own(tmp_path, text))
    (spec,) = config.services
    assert (spec.command, spec.restart, spec.env) == (
        ("uvx", "time"),
        Restart.ALWAYS,
        {"A": "host", "B": "ours"},
    )
    assert (spec.cwd, spec.source, spec.line) == (
        tmp_path / "project",
        str(tmp_path / "project/.mcp.json"),
        1,
    )
    assert [source.path.name for source in config.sources] == ["birthmark.toml", ".mcp.json"]
    assert {source.root.name for source in config.sources} == {"birthmark.toml"}


def test_an_overlay_with_a_command_of_its_own_takes_no_arguments_from_the_host(tmp_path: Path) -> None:
    write(tmp_path / ".mcp.json", HOST)
    (spec,) = load(own(tmp_path, 'import = [".mcp.json"]\n[agent.time]\ncommand = "./time"\n')).services
    assert (spec.command, spec.kind) == (("./time",), ChildKind.AGENT)


def test_an_overlay_gives_an_imported_server_its_port_and_address(tmp_path: Path) -> None:
    host = '{"mcpServers": {"x": {"type": "stdio", "command": "x", "args": ["--port", "${port}"]}}}'
    write(tmp_path / ".mcp.json", host)
    text = 'import = [".mcp.json"]\n[mcp.x]\nport = 8931\nurl = "http://127.0.0.1:{port}/mcp"\n'
    (spec,) = load(own(tmp_path, text)).services
    assert (spec.port, spec.url, spec.transport) == (8931, "http://127.0.0.1:{port}/mcp", Transport.HTTP)
    assert spec.command == ("x", "--port", "${port}")


def test_the_same_server_in_two_imported_files_is_taken_once(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        write(tmp_path / name, HOST)
    config = load(own(tmp_path, 'import = ["a.json", "b.json"]\n'))
    assert [spec.name for spec in config.services] == ["time"]
    assert config.warnings == (
        f"{tmp_path}/b.json:1: time says the same as {tmp_path}/a.json:1; that one is used",
    )


def test_imported_references_start_at_the_folder_of_their_own_file(tmp_path: Path) -> None:
    write(tmp_path / "p/.mcp.json", '{"mcpServers": {"x": {"command": "${workspaceFolder}/x"}}}')
    (spec,) = load(own(tmp_path, 'import = ["p/.mcp.json"]\n')).services
    assert spec.command == (f"{tmp_path}/p/x",)


def test_a_name_in_two_files_is_refused_with_both_places(tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", HOST)
    b = write(tmp_path / "b.toml", '\n[agent.time]\ncommand = "x"\n')
    with pytest.raises(ConfigError) as caught:
        load_files([a, b], environ={})
    assert str(caught.value) == (
        f"{b}:2: agent.time: another file names a service 'time' too: {a}:1. Rename one of them, or leave one file away"
    )


def test_a_file_given_twice_is_read_once(tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", HOST)
    assert len(load_files([file, tmp_path / "x/../a.json"], environ={}).services) == 1


# -- what is refused -----------------------------------------------------------

X = '[mcp.x]\ncommand = "x"\n'
NEEDS_PORT = 'mcp.x.ready: x: ready by {} needs a port. Add port = "auto", or a number'
REFUSED = {
    "unknown key": (X + 'restrat = "always"', "3: mcp.x.restrat: an unknown key. Did you mean 'restart'?"),
    "unknown table": ("[mpc.x]\n", "1: mpc: an unknown key. Did you mean 'mcp'?"),
    "unknown default": (
        '[defaults]\nterm_grase = "1s"',
        "2: defaults.term_grase: an unknown key. Did you mean 'term_grace'?",
    ),
    "unknown setting": (
        "[supervisor]\nport = 1",
        "2: supervisor.port: an unknown key. Did you mean 'ports'?",
    ),
    "bare number": (X + "term_grace = 10", '3: mcp.x.term_grace: 10 has no unit. Write "10s" or "10ms"'),
    "no unit": (
        X + 'term_grace = "10"',
        '3: mcp.x.term_grace: \'10\' is no length of time. Write for example "500ms", "10s", "2m" or "1h"',
    ),
    "negative": (
        X + 'term_grace = "-1s"',
        '3: mcp.x.term_grace: \'-1s\' is no length of time. Write for example "500ms", "10s", "2m" or "1h"',
    ),
    "a time of day": (
        X + "term_grace = 10:00:00",
        '3: mcp.x.term_grace: this is a date or a time; a length of time such as "10s" is expected',
    ),
    "for ever": (X + 'term_grace = "99999d"', "3: mcp.x.term_grace: longer than ten years"),
    "port 0": (X + "port = 0", "3: mcp.x.port: 0 is no port: 1 to 65535 is expected"),
    "port 70000": (X + "port = 70000", "3: mcp.x.port: 70000 is no port: 1 to 65535 is expected"),
    "port true": (
        X + "port = true",
        '3: mcp.x.port: this is true or false; a port, a range such as "8900-8999", or "auto" is expected',
    ),
    "port as text": (
        X + 'port = "8931"',
        "3: mcp.x.port: '8931' is no range of ports. Write for example \"8900-8999\"",
    ),
    "range beyond": (X + 'port = "1-70000"', "3: mcp.x.port: out of range: ports are 1 to 65535"),
    "range backwards": (X + 'port = "9-1"', '3: mcp.x.port: 9 is beyond 1. Write "1-9"'),
    "restart unknown": (
        X + 'restart = "allways"',
        "3: mcp.x.restart: 'allways' is not known. Did you mean 'always'?",
    ),
    "stop signal": (
        X + 'stop_signal = "TREM"',
        "3: mcp.x.stop_signal: 'TREM' is no signal to stop with. Did you mean 'TERM'?",
    ),
    "http without port": (X + 'ready = "http"', "3: " + NEEDS_PORT.format("http")),
    "tcp without port": (X + 'ready = "tcp"', "3: " + NEEDS_PORT.format("tcp")),
    "log without pattern": (
        X + 'ready = "log"',
        '3: mcp.x.ready: no pattern to look for. Add ready_pattern = "listening on"',
    ),
    "pattern": (
        X + 'ready_pattern = "("',
        "3: mcp.x.ready_pattern: not a regular expression: missing ), unterminated subpattern at position 0",
    ),
    "path": (
        X + 'port = 1\nready_path = "health"',
        '4: mcp.x.ready_path: a path begins with a slash. Write "/health"',
    ),
    "size": (
        X + 'log_size = "10"',
        "3: mcp.x.log_size: '10' is no size. Write for example \"10MiB\"; units: B, KiB, MiB, GiB, kB, MB, GB",
    ),
    "files": (X + "log_files = 0", "3: mcp.x.log_files: out of range: 1 to 1000000 is expected"),
    "jitter": (X + "backoff_jitter = 2", "3: mcp.x.backoff_jitter: out of range: 0 to 1 is expected"),
    "cap": (
        X + 'backoff = "9s"\nbackoff_cap = "1s"',
        "4: mcp.x.backoff_cap: shorter than the first pause of 9 s",
    ),
    "lone template": (
        X + 'args = ["${port}"]',
        '3: mcp.x.args: x: ${port} without a port. Add port = "auto", or a number',
    ),
    "remote template": (
        '[mcp.x]\nurl = "http://h:{port}/"',
        "2: mcp.x.url: a port to be leased, and no command to lease it for. Write the port itself",
    ),
    "address with a newline": (
        '[mcp.x]\nurl = "http://h/\\n"',
        '2: mcp.x.url: this is no address. Write for example "http://127.0.0.1:8931/mcp"',
    ),
    "both kinds": (
        X + '[agent.x]\ncommand = "y"',
        "3: agent.x: 'x' is already the name of an agent or MCP server, on {file}:1. "
        "A name is unique across kinds; rename one of them",
    ),
    "twice": (X + "[mcp.x]\n", "3: not valid TOML: Cannot declare ('mcp', 'x') twice"),
    "no such import": ('import = ["gone.json"]', "1: import[0]: {folder}/gone.json: there is no such file"),
    "import a number": ("import = [1]", "1: import[0]: this is a number; a string is expected"),
    "imports itself": (
        'import = ["birthmark.toml"]',
        "1: import[0]: {file} is read already. Name each file once",
    ),
    "nothing to overlay": (
        '[mcp.x]\nrestart = "always"',
        "1: mcp.x: neither a command nor a url, and no imported file has a server of that name. "
        'Add command = "…", or import = ["…"] at the top of birthmark.toml',
    ),
    "mcp no table": ("mcp = 3", "1: mcp: this is a number; a table is expected"),
    "service no table": (
        '[mcp]\nx = "npx"',
        "2: mcp.x: this is a string; a table is expected. A service is a table with a name: [mcp.NAME]",
    ),
    "empty command": ('[mcp.x]\ncommand = ""', "2: mcp.x.command: this is empty"),
    "syntax": ("[mcp.x]\ncommand = \n", "2: not valid TOML: Invalid value"),
    "not finished": ('[mcp.x]\ncommand = "x', "2: not valid TOML: Unterminated string"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_named_with_its_line_and_the_way_out(tmp_path: Path, case: str) -> None:
    text, sentence = REFUSED[case]
    file = own(tmp_path, text)
    expected = sentence.replace("{file}", file.name).replace("{folder}/", "")
    assert refusal(file) == f"birthmark.toml:{expected}"


def test_an_import_that_slips_names_the_nearest_imported_server(tmp_path: Path) -> None:
    write(tmp_path / ".mcp.json", HOST)
    file = own(tmp_path, 'import = [".mcp.json"]\n[mcp.tiem]\nrestart = "always"\n')
    assert refusal(file).endswith("no imported file has a server of that name. Did you mean 'time'?")


def test_a_fault_inside_an_imported_file_is_named_there(tmp_path: Path) -> None:
    write(tmp_path / ".mcp.json", '{"mcpServers":\n oops}')
    file = own(tmp_path, 'import = [".mcp.json"]\n')
    assert refusal(file) == ".mcp.json:2: not valid JSON: a value is expected here"


def test_our_own_file_is_not_imported(tmp_path: Path) -> None:
    own(tmp_path / "other", '[mcp.x]\ncommand = "x"\n')
    assert refusal(own(tmp_path, 'import = ["other/birthmark.toml"]\n')) == (
        "birthmark.toml:1: import[0]: other/birthmark.toml is no host's file. "
        "Import hosts' files only; give both of ours with -f"
    )


def test_a_missing_file_an_empty_one_a_folder_and_yaml_are_told_apart(tmp_path: Path) -> None:
    assert refusal(tmp_path / "gone.toml") == "gone.toml: there is no such file"
    assert refusal(write(tmp_path / "a.toml", " \n")) == (
        "a.toml: the file is empty. Name a service in it, or leave the file away"
    )
    (tmp_path / "folder").mkdir()
    assert refusal(tmp_path / "folder") == "folder: this is a folder. Name the file in it"
    assert refusal(write(tmp_path / "a.yaml", "mcpServers: {}")) == (
        "a.yaml: YAML is not read. Write a birthmark.toml, or an mcpServers file in JSON"
    )
    assert refusal(tmp_path / "a\0b") == "a\0b: cannot be read: its name holds a NUL"


def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(b'{\n"a": "\xff"}')
    assert refusal(file) == "a.json:2: the file is not UTF-8. Save it as UTF-8"
    file.write_bytes("{}".encode("utf-16"))
    assert refusal(file) == "a.json:1: the file is UTF-16. Save it as UTF-8"


def test_a_file_without_a_suffix_is_told_by_its_first_character(tmp_path: Path) -> None:
    assert load(write(tmp_path / "a", HOST)).services[0].name == "time"
    assert load(write(tmp_path / "b", "// servers\n" + HOST)).services[0].name == "time"
    assert load(write(tmp_path / "c", X)).services[0].name == "x"
