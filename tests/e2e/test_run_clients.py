"""Real clients in front of `birthmark run`: whatever ladder they climb, nothing is left, and nobody waits longer.

The clients are the official Python SDK, Node's child_process as the TypeScript SDK and several hosts use it, and
the orders of signals hosts were seen to send. The table in docs/run.md was taken with the same server.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from birthmark.testing import puppet, wait_exited
from tests.e2e.fronts import STAYS, command, environment, pinned, until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="`birthmark run` needs Linux's subreaper"),
    pytest.mark.slow,  # the clients' own patience: two seconds and two seconds again
]

SERVER: Final = """\
place = sys.argv[2]
helper = os.fork()
if helper == 0:
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2): os.dup2(null, fd)
    while True: signal.pause()
open(place, "w").write(f"{os.getpid()} {helper}\\n")
mode = sys.argv[1]
if mode == "deaf":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
if mode == "polite":
    while os.read(0, 4096): pass
    os._exit(0)
"""
"""Script: a server with one helper in a session of its own; leaves at the end of its input, at SIGTERM, or never."""

NODE: Final = """\
const { spawn } = require("node:child_process");
const [how, ...words] = process.argv.slice(1);
const child = spawn(words[0], words.slice(1), { stdio: ["pipe", "pipe", "inherit"] });
const sleep = ms => new Promise(done => setTimeout(done, ms));
let gone = false;
child.on("exit", () => { gone = true; });
process.stdin.once("data", async () => {
  const send = async (sig, ms) => { if (!gone) { child.kill(sig); await until(ms); } };
  const until = async ms => { for (let t = 0; t < ms && !gone; t += 10) await sleep(10); };
  if (how === "sdk") { child.stdin.end(); await until(2000); await send("SIGTERM", 2000); await send("SIGKILL", 2000); }
  if (how === "int-term") { await send("SIGINT", 100); await send("SIGTERM", 400); await send("SIGKILL", 2000); }
  if (how === "term") { await send("SIGTERM", 4000); }
  if (how === "crash") { process.kill(process.pid, "SIGKILL"); }
  process.stdout.write("T" + JSON.stringify(gone) + "\\n");
  process.exit(0);
});
"""

PYTHON_SDK: Final = """\
import anyio
from mcp.client.stdio import StdioServerParameters, stdio_client
async def main():
    how, program, *words = sys.argv[1:]
    server = StdioServerParameters(command=program, args=words, env=dict(os.environ))
    async with stdio_client(server):
        await anyio.to_thread.run_sync(sys.stdin.readline)
        if how == "crash": os.kill(os.getpid(), signal.SIGKILL)
        if how == "hard exit": os._exit(0)
    tell(True)
anyio.run(main)
"""


def words_of(mode: str, folder: Path) -> tuple[list[str], Path]:
    """Return a command that runs the server under `birthmark run`, and the file in which it names its processes."""
    place = folder / "born"
    return [*command(SERVER + STAYS), mode, str(place)], place


def born(place: Path) -> list[int]:
    """Wait for the server's and the helper's pid."""
    until(lambda: place.exists() and place.read_text().endswith("\n"))
    return [int(pid) for pid in place.read_text().split()]


@pytest.mark.parametrize("mode", ["polite", "obeys", "deaf"])
@pytest.mark.parametrize("how", ["close", "hard exit", "crash"])
def test_the_python_sdk_leaves_nothing(how: str, mode: str, tmp_path: Path) -> None:
    words, place = words_of(mode, tmp_path)
    with puppet(PYTHON_SDK, argv=[how, *words], env=environment()) as client:
        pids = born(place)
        with pinned(pids[0]) as server, pinned(pids[1]) as helper:
            client.say("go")
            if how == "close":
                assert client.hear(within_s=15) is True
            wait_exited(server, within_s=10)
            wait_exited(helper, within_s=10)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is missing")
@pytest.mark.parametrize("mode", ["polite", "obeys", "deaf"])
@pytest.mark.parametrize("how", ["sdk", "int-term", "term", "crash"])
def test_a_node_host_leaves_nothing(how: str, mode: str, tmp_path: Path) -> None:
    words, place = words_of(mode, tmp_path)
    with subprocess.Popen(
        ["node", "-e", NODE, how, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        pids = born(place)
        with pinned(pids[0]) as server, pinned(pids[1]) as helper:
            client.stdin.write(b"go\n")
            client.stdin.flush()
            if how != "crash":
                assert client.stdout.readline() == b"Ttrue\n"
            client.wait(15)
            wait_exited(server, within_s=10)
            wait_exited(helper, within_s=10)
