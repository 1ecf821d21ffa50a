"""The demo's configuration: a host's `.mcp.json` as it is, and a `birthmark.toml` beside it."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from birthmark.config.model import PICKED_PORTS
from birthmark.interfaces.demo.installing import Installed
from birthmark.interfaces.demo.telling import DemoFailed

TIME: Final = "time"
FETCH: Final = "fetch"
CLOCK: Final = "clock"
SERVICES: Final = (TIME, FETCH, CLOCK)

_AGENT: Final = "clock_agent.py"
_TRIES: Final = 200


@dataclass(frozen=True, slots=True)
class Wishes:
    """The files that were written, and the port of each service that has one."""

    toml: Path
    host_file: Path
    ports: Mapping[str, int]


def write(folder: Path, installed: Installed) -> Wishes:
    """Write the configuration and the agent into `folder`, with ports that are free now.

    Raises:
        DemoFailed: No port is free.
    """
    ports = dict(zip((TIME, CLOCK), free_ports(2), strict=True))
    host_file = folder / ".mcp.json"
    servers = {FETCH: {"command": "uvx", "args": ["mcp-server-fetch"]}}
    host_file.write_text(json.dumps({"mcpServers": servers}, indent=2) + "\n")
    (folder / _AGENT).write_text((resources.files(__package__) / f"{_AGENT}.txt").read_text())
    toml = folder / "birthmark.toml"
    toml.write_text(_toml(installed, ports))
    return Wishes(toml, host_file, ports)


def _toml(installed: Installed, ports: Mapping[str, int]) -> str:
    quoted = json.dumps  # a string of JSON is a string of TOML
    path = quoted(f"{installed.uvx.parent}:${{PATH}}")
    places = "\n".join(f"{name} = {quoted(value)}" for name, value in installed.environ.items())
    return f"""\
import = [".mcp.json"]

[mcp.{TIME}]    # a tree of four: uvx, the proxy it starts, the uvx that starts, the server
command = ["uvx", "mcp-proxy", "--pass-environment", "--port", "{{port}}", "--", "uvx", "mcp-server-time"]
port = {ports[TIME]}
url = "http://127.0.0.1:{{port}}/mcp"

[agent.{CLOCK}]
command = [{quoted(str(installed.python))}, {quoted(_AGENT)}, "--port", "{{port}}"]
port = {ports[CLOCK]}
ready_path = "/.well-known/agent-card.json"

[defaults.env]    # where this demo keeps what uvx starts
PATH = {path}
{places}
"""


def free_ports(count: int) -> list[int]:
    """Return ports of this host on which nobody listens now, from the range a supervisor picks from.

    Raises:
        DemoFailed: Not that many were found.
    """
    found: list[int] = []
    first, last = PICKED_PORTS
    for port in random.sample(range(first, last + 1), _TRIES):
        if len(found) == count:
            break
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # As servers do: a port whose last connections still linger is free for a listener.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    if len(found) < count:
        raise DemoFailed(f"of {_TRIES} ports tried between {first} and {last}, fewer than {count} were free")
    return found
