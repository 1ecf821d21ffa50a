"""Names for commands nobody named: values only."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from birthmark.core.service import ServiceName
from birthmark.keeper.naming import service_name_for


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("npx -y @modelcontextprotocol/server-filesystem /tmp", "server-filesystem"),
        ("npx -y @modelcontextprotocol/server-filesystem@1.2.3 /tmp", "server-filesystem"),
        ("npx --package=@scope/pkg tool", "tool"),
        ("npm exec -- some-server@latest", "some-server"),
        ("/usr/bin/npx some-server", "some-server"),
        ("uvx mcp-server-time --local-timezone UTC", "mcp-server-time"),
        ("uvx mcp-server-time@latest", "mcp-server-time"),
        ("uvx --from git+https://github.com/some/where tool-name", "tool-name"),
        ("uv tool run mcp-server-git", "mcp-server-git"),
        ("uv run --directory /srv/weather weather.py", "weather"),
        ("uv --version", "uv"),
        ("pipx run --spec mcp-proxy mcp-proxy", "mcp-proxy"),
        ("python -m mcp_server_time", "mcp_server_time"),
        ("python3.12 -I -m mcp_server.__main__ x", "mcp_server"),
        ("python /srv/weather/server.py", "weather"),
        ("python server.py", "server"),
        ("python -c pass", "python"),
        ("node /srv/my-server/build/index.js", "my-server"),
        ("node --import tsx /srv/my-server/src/index.ts", "my-server"),
        ("node", "node"),
        ("docker run -i --rm -e TOKEN ghcr.io/github/github-mcp-server:v1", "github-mcp-server"),
        ("docker ps", "docker"),
        ("env A=b npx server-x", "server-x"),
        ("timeout -k 1 5 server-x", "server-x"),
        ("sh -c 'exec thing'", "sh"),
        ("/opt/tools/bin/gemini --acp", "gemini"),
        ("./start.sh", "start"),
        ("bunx server-x", "server-x"),
        ("api", "api-command"),
        ("a=b", "a_b"),
    ],
)
def test_a_command_is_named_after_what_it_runs(command: str, name: str) -> None:
    assert service_name_for(shlex.split(command)) == name


@given(st.lists(st.text(st.characters(exclude_characters="\0"))))
def test_every_command_gets_a_valid_name(words: list[str]) -> None:
    assert isinstance(service_name_for(words), ServiceName)
