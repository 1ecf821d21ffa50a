"""Files of hosts as they are, one fixture a host; decisions with values, no process is started."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from birthmark.config.model import Transport
from tests.config.loading import FIXTURES, load, refusal, service, write

TOKEN = {"TOKEN": "hunter2"}


def test_claude_codes_project_file_gives_its_command_and_its_remote_server() -> None:
    config = load(FIXTURES / "claude-code/.mcp.json", TOKEN)
    time, docs = service(config, "time"), service(config, "docs")
    assert time.command == ("uvx", "mcp-server-time", "--local-timezone=Europe/Berlin")
    assert time.written == ("uvx", "mcp-server-time", "--local-timezone=${ZONE:-Europe/Berlin}")
    assert time.env == {"GITHUB_TOKEN": "hunter2"}
    assert time.secrets == {"GITHUB_TOKEN"}
    assert (time.transport, time.request_timeout_s, time.line) == (Transport.STDIO, 30.0, 3)
    assert time.cwd == FIXTURES / "claude-code"
    assert (docs.command, docs.url, docs.transport) == ((), "https://docs.example/mcp", Transport.HTTP)
    assert docs.remote
    assert config.warnings == ()


def test_claude_desktops_file_starts_where_it_lies() -> None:
    (spec,) = load(FIXTURES / "claude-desktop/claude_desktop_config.json").services
    assert spec.command == ("npx", "-y", "@modelcontextprotocol/server-filesystem", "/srv/notes")
    assert spec.line == 4


def test_a_users_own_file_starts_in_the_home(tmp_path: Path) -> None:
    for place in (".config/Claude/claude_desktop_config.json", ".claude.json", ".cursor/mcp.json"):
        file = write(tmp_path / place, '{"mcpServers": {"x": {"command": "x"}}}')
        assert load(file, home=tmp_path).services[0].cwd == tmp_path


def test_cursors_file_means_the_project_above_its_folder() -> None:
    config = load(FIXTURES / "cursor/.cursor/mcp.json", TOKEN)
    search = service(config, "search")
    assert search.command == ("python", f"{FIXTURES}/cursor/search.py")
    assert search.env == {"REGION": "eu", "API_KEY": "hunter2"}
    assert search.secrets == {"REGION", "API_KEY"}
    assert search.cwd == FIXTURES / "cursor"
    assert service(config, "remote").transport is Transport.HTTP


def test_vs_codes_file_may_hold_comments_and_trailing_commas() -> None:
    config = load(FIXTURES / "vscode/.vscode/mcp.json")
    memory = service(config, "memory")
    assert memory.command == ("npx", "-y", "@modelcontextprotocol/server-memory")
    assert memory.env == {"MEMORY_FILE_PATH": f"{FIXTURES}/vscode/memory.json"}
    assert (memory.line, memory.cwd) == (5, FIXTURES / "vscode")
    assert service(config, "socket").url == "unix:///run/server.sock#/mcp"
    assert config.warnings == ()


def test_the_copilots_local_servers_are_stdio_servers() -> None:
    (spec,) = load(FIXTURES / "copilot/.copilot/mcp-config.json").services
    assert (spec.transport, spec.cwd, spec.request_timeout_s) == (Transport.STDIO, Path("/srv"), 5.0)


def test_geminis_relative_folder_starts_at_the_project() -> None:
    config = load(FIXTURES / "gemini/.gemini/settings.json")
    assert service(config, "git").cwd == FIXTURES / "gemini/repo"
    assert service(config, "git").request_timeout_s == 600.0
    assert service(config, "web").url == "https://web.example/mcp"


def test_codexs_table_is_read_in_seconds_and_without_expansion() -> None:
    config = load(FIXTURES / "codex/.codex/config.toml")
    sqlite, linear = service(config, "sqlite"), service(config, "linear")
    assert sqlite.command == ("uvx", "mcp-server-sqlite", "--db-path", "${NOT_EXPANDED}")
    assert (sqlite.env, sqlite.env_from) == ({"MODE": "ro"}, ("TOKEN",))
    assert (sqlite.ready.deadline_s, sqlite.request_timeout_s, sqlite.line) == (20.5, 90.0, 4)
    assert (linear.remote, linear.enabled) == (True, False)


def test_windsurfs_server_url_and_disabled_are_understood() -> None:
    config = load(FIXTURES / "windsurf/mcp_config.json")
    assert service(config, "figma").url == "https://figma.example/mcp"
    assert service(config, "notes").enabled is False


def test_zeds_context_servers_are_servers() -> None:
    (spec,) = load(FIXTURES / "zed/settings.json").services
    assert (spec.name, spec.command) == ("postgres", ("postgres-mcp", "--read-only"))


def test_clines_and_roos_time_outs_are_seconds() -> None:
    cline = load(FIXTURES / "cline/cline_mcp_settings.json")
    roo = load(FIXTURES / "roo/.roo/mcp.json")
    assert service(cline, "browser").request_timeout_s == 60.0
    assert (roo.services[0].request_timeout_s, roo.services[0].cwd) == (15.0, FIXTURES / "roo")


def test_opencodes_command_is_an_array() -> None:
    config = load(FIXTURES / "opencode/opencode.jsonc")
    everything = service(config, "everything")
    assert everything.command == ("npx", "-y", "@modelcontextprotocol/server-everything")
    assert everything.env == {"MODE": "test"}
    assert service(config, "hosted").enabled is False


def test_opencodes_second_version_keeps_servers_one_deeper(tmp_path: Path) -> None:
    file = write(
        tmp_path / "opencode.json", '{"mcp": {"servers": {"x": {"command": ["x", "y"], "disabled": true}}}}'
    )
    (spec,) = load(file).services
    assert (spec.command, spec.enabled) == (("x", "y"), False)


def test_fastmcps_servers_may_stand_at_the_root_and_an_unknown_key_is_only_mentioned() -> None:
    config = load(FIXTURES / "fastmcp/servers.json")
    assert [spec.name for spec in config.services] == ["weather", "assistant"]
    assert config.warnings == (
        f"{FIXTURES}/fastmcp/servers.json:2: weather: 'colour' is not known here and left alone.",
    )


def test_null_means_not_set_as_pydantic_ai_has_it() -> None:
    (spec,) = load(FIXTURES / "pydantic-ai/mcp.json").services
    assert (spec.command, spec.env) == (("deno", "run", "server.ts"), {})


def test_a_variable_that_is_null_is_taken_from_ours_and_a_file_is_read() -> None:
    config = load(FIXTURES / "mcp-hub/hub.json")
    (spec,) = config.services
    assert spec.env == {"CERT": "certificate"}
    assert spec.secrets == {"CERT"}
    assert spec.env_from == ("TOKEN",)


def test_a_time_out_of_an_unknown_host_is_left_alone_and_mentioned() -> None:
    config = load(FIXTURES / "mcp-hub/hub.json")
    assert config.services[0].request_timeout_s is None
    (warning,) = config.warnings
    assert "'timeout' is left alone: its unit differs by host" in warning


def test_every_host_has_a_fixture_that_is_read_without_a_change(tmp_path: Path) -> None:
    copy = shutil.copytree(FIXTURES, tmp_path / "fixtures")
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    read = [load(path, TOKEN) for path in before if path.suffix in {".json", ".jsonc", ".toml"}]
    assert len(read) == 15
    assert all(config.services for config in read)
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("word", ["http", "streamable-http", "streamableHttp", "streamable_http", "sse"])
def test_every_spelling_of_a_remote_transport_is_one(tmp_path: Path, word: str) -> None:
    file = write(
        tmp_path / "a.json", f'{{"mcpServers": {{"x": {{"type": "{word}", "url": "http://h/mcp"}}}}}}'
    )
    assert load(file).services[0].transport is Transport.HTTP


def test_a_slip_of_the_pen_in_a_hosts_file_is_mentioned_with_the_nearest_key(tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", '{"mcpServers": {"x": {"command": "x",\n "agrs": ["y"]}}}')
    config = load(file)
    assert config.services[0].command == ("x",)
    assert config.warnings == (f"{file}:2: x: 'agrs' is not known here and left alone. Did you mean 'args'?",)


def test_a_command_and_a_url_in_a_hosts_file_is_a_stdio_server(tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", '{"mcpServers": {"x": {"command": "x", "url": "http://h/mcp"}}}')
    config = load(file)
    assert (config.services[0].transport, config.services[0].url) == (Transport.STDIO, None)
    assert "the url is left alone" in config.warnings[0]


def test_the_servers_of_single_projects_in_claude_codes_user_file_are_mentioned(tmp_path: Path) -> None:
    text = '{"mcpServers": {}, "projects": {"/srv": {"mcpServers": {"x": {"command": "x"}}}}}'
    config = load(write(tmp_path / ".claude.json", text))
    assert config.services == ()
    assert config.warnings == (f"{tmp_path}/.claude.json:1: the servers of single projects are not taken",)


def test_a_switched_off_server_needs_no_variables(tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.json", '{"mcpServers": {"x": {"command": "x", "args": ["${GONE}"], "disabled": true}}}'
    )
    assert load(file).services[0].enabled is False


REFUSED = {
    "number in env": (
        '{"mcpServers": {"x": {"command": "x",\n"env": {\n"PORT": 8080}}}}',
        "a.json:3: mcpServers.x.env.PORT: this is a number; a string is expected. "
        "Put it in quotes: variables hold text only",
    ),
    "bool in env": (
        '{"mcpServers": {"x": {"command": "x", "env": {"A": true}}}}',
        "a.json:1: mcpServers.x.env.A: this is true or false; a string is expected. "
        "Put it in quotes: variables hold text only",
    ),
    "args no array": (
        '{"mcpServers": {"x": {"command": "x", "args": "y"}}}',
        "a.json:1: mcpServers.x.args: this is a string; an array is expected",
    ),
    "argument no string": (
        '{"mcpServers": {"x": {"command": "x", "args": ["a",\n 3]}}}',
        "a.json:2: mcpServers.x.args[1]: this is a number; a string is expected",
    ),
    "server no table": (
        '{"mcpServers": {"x": "npx"}}',
        "a.json:1: mcpServers.x: this is a string; a table is expected",
    ),
    "servers no table": ('{"mcpServers": []}', "a.json:1: mcpServers: a table of servers is expected"),
    "twice": (
        '{"mcpServers": {"x": {"command": "x"},\n\n"x": {"command": "y"}}}',
        "a.json:3: 'x' stands twice in one object: on lines 1 and 3",
    ),
    "nothing to start": (
        '{"mcpServers": {\n"x": {"args": ["y"]}}}',
        'a.json:2: mcpServers.x.args: arguments without a command. Add command = "…"',
    ),
    "empty server": (
        '{"mcpServers": {"x": {}}}',
        "a.json:1: mcpServers.x: neither a command nor a url. Name the program under the key command",
    ),
    "empty command": (
        '{"mcpServers": {"x": {"command": " "}}}',
        "a.json:1: mcpServers.x.command: this is empty",
    ),
    "empty array": (
        '{"mcpServers": {"x": {"command": []}}}',
        "a.json:1: mcpServers.x.command: this is empty. Name a program",
    ),
    "NUL in command": (
        r'{"mcpServers": {"x": {"command": "a\u0000b"}}}',
        "a.json:1: mcpServers.x.command: a NUL character, which no argument and no variable can hold",
    ),
    "half a pair": (
        r'{"mcpServers": {"x": {"command": "\ud800"}}}',
        "a.json:1: mcpServers.x.command: not valid Unicode: half of a surrogate pair",
    ),
    "empty name": (
        '{"mcpServers": {"": {"command": "x"}}}',
        'a.json:1: mcpServers."": the service name is empty',
    ),
    "name with =": (
        '{"mcpServers": {"a=b": {"command": "x"}}}',
        "a.json:1: mcpServers.\"a=b\": the service name 'a=b' holds '=', which no name may hold",
    ),
    "name with newline": (
        r'{"mcpServers": {"a\nb": {"command": "x"}}}',
        r"a.json:1: mcpServers.'a\nb': the service name 'a\nb' holds '\n', which no name may hold",
    ),
    "name with NUL": (
        r'{"mcpServers": {"a\u0000": {"command": "x"}}}',
        r"a.json:1: mcpServers.'a\x00': the service name 'a\x00' holds '\x00', which no name may hold",
    ),
    "the reserved name": (
        '{"mcpServers": {"api": {"command": "x"}}}',
        "a.json:1: mcpServers.api: 'api' is reserved for the API server; choose another service name",
    ),
    "variable with =": (
        '{"mcpServers": {"x": {"command": "x", "env": {"A=B": "c"}}}}',
        "a.json:1: mcpServers.x.env.\"A=B\": 'A=B' cannot name a variable: it is empty or holds '='",
    ),
    "no address": (
        '{"mcpServers": {"x": {"url": "example.com"}}}',
        'a.json:1: mcpServers.x.url: this is no address. Write for example "http://127.0.0.1:8931/mcp"',
    ),
    "port 70000": (
        '{"mcpServers": {"x": {"url": "http://h:70000/"}}}',
        "a.json:1: mcpServers.x.url: this is no address: its host or port is not valid",
    ),
    "disabled no bool": (
        '{"mcpServers": {"x": {"command": "x", "disabled": "yes"}}}',
        "a.json:1: mcpServers.x.disabled: this is a string; true or false is expected",
    ),
    "no servers": (
        '{"mcpserver": {"x": 1}}',
        "a.json:1: mcpserver: no servers in it. Did you mean 'mcpServers'?",
    ),
    "nothing known": (
        '{"theme": "dark"}',
        'a.json: no servers in it. A host\'s file looks like {"mcpServers": {"NAME": {"command": "…"}}}',
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_named_with_its_line_and_the_way_out(tmp_path: Path, case: str) -> None:
    text, sentence = REFUSED[case]
    assert refusal(write(tmp_path / "a.json", text)) == sentence


def test_a_server_that_already_runs_under_us_is_taken_out_of_its_wrapper(tmp_path: Path) -> None:
    text = """{"mcpServers": {"x": {"command": "/opt/python", "args":
        ["-I", "-m", "birthmark", "run", "--name", "x", "--", "npx", "-y", "${SERVER:-server}"]}}}"""
    (spec,) = load(write(tmp_path / ".mcp.json", text)).services
    assert spec.command == ("npx", "-y", "server")
    assert spec.written == ("npx", "-y", "${SERVER:-server}")
    assert spec.notes == (
        "it already ran under `birthmark run`; under a supervisor that wrapper is left out",
    )
