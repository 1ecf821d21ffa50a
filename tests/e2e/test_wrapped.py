"""A client with a wrapped file: the official SDK starts what stands there, it answers, and nothing outlives the client."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Final

import pytest

from birthmark.core.outcomes import Basis, Warrant
from birthmark.platforms import load
from birthmark.testing import puppet, wait_exited
from tests.e2e.fronts import environment, pinned
from tests.interfaces.running import process

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="`birthmark run` needs Linux's subreaper"),
    pytest.mark.slow,  # a client and a server, each with the SDK to load
]

SERVER: Final = """\
import os, signal, sys
from mcp.server.mcpserver import MCPServer
server = MCPServer("facts")
helper = os.fork()
if helper == 0:
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2): os.dup2(null, fd)
    while True: signal.pause()
@server.tool()
def facts() -> str:
    import json
    env = {name: os.environ.get(name) for name in ("FACT", "PYTHONPATH")}
    return json.dumps({"pid": os.getpid(), "helper": helper, "args": sys.argv[1:], "cwd": os.getcwd(), "env": env})
server.run("stdio")
"""
"""A server of the SDK's, with one helper in a session of its own, that tells what it was given."""

CLIENT: Final = """\
import anyio
from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
async def main():
    entry = json.load(open(sys.argv[1]))["mcpServers"]["facts"]
    given = StdioServerParameters(command=entry["command"], args=entry["args"], env=entry["env"], cwd=sys.argv[2])
    async with stdio_client(given) as (reads, writes), ClientSession(reads, writes) as session:
        await session.initialize()
        answer = await session.call_tool("facts", {})
        tell(json.loads(answer.content[0].text))
        await anyio.to_thread.run_sync(sys.stdin.readline)
anyio.run(main)
"""
"""Script of a client: starts the server of its file, tells its answer, and stays."""


def test_a_server_from_a_wrapped_file_gets_what_it_got_and_is_gone_after_its_client(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    work = tmp_path / "work"
    work.mkdir()
    arguments = ["--", "--name", "", "a b", "${X}", "ü"]
    entry = {
        "command": sys.executable,
        "args": [str(tmp_path / "server.py"), *arguments],
        "env": {"FACT": "1", "PYTHONPATH": "/nowhere", "BIRTHMARK_HOME": environment()["BIRTHMARK_HOME"]},
    }
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"facts": entry}}, indent=2))
    done = process("wrap", "--yes", str(file))
    assert done.code == 0, done.err
    front = json.loads(file.read_text())["mcpServers"]["facts"]
    assert front["args"][: len(front["args"]) - len(entry["args"])] == (
        ["-I", "-m", "birthmark", "run", "--name", "facts", "--", sys.executable]
    )
    with puppet(CLIENT, argv=[str(file), str(work)], env=environment()) as client:
        told = client.hear(within_s=40)  # two interpreters load the SDK, a second or more each
        assert isinstance(told, dict)
        with pinned(told.pop("pid")) as server, pinned(told.pop("helper")) as helper:
            assert told == {
                "args": arguments,
                "cwd": str(work),
                "env": {"FACT": "1", "PYTHONPATH": "/nowhere"},
            }
            load().deliver(client.pinned, signal.SIGKILL, Warrant(basis=Basis.CHILD, asked_by="a test"))
            wait_exited(server, within_s=10)
            wait_exited(helper, within_s=10)
