"""Spawn a child that hides one of its own, say who it is, stop all of it, and read the receipt.

python examples/spawn_and_stop.py
"""

from __future__ import annotations

import sys

from birthmark import ChildKind, Command, Spawner, Stdio, StopPolicy, mark_child, stop_set_now

SERVER = """
import os, signal
if os.fork() == 0:
    os.setsid()  # a worker in a session of its own: no signal to the server's group reaches it
    print("ready", flush=True)
signal.pause()
"""


def main() -> None:
    """Run the example."""
    command = Command(sys.executable, "-c", SERVER, stdout=Stdio.PIPE)
    mark_child(command, ChildKind.MCP, "example")
    with Spawner() as spawner:  # whatever happens in here, its children are gone at its end
        child = spawner.spawn_owned_supervised(command)
        assert child.stdout is not None
        child.stdout.readline()
        print(f"born: process {child.pid}, birth {child.birth}")
        print(f"proof: {child.proof()}")

        receipt = stop_set_now(
            child.identity, StopPolicy(term_grace_s=2.0), asked_by="example", held=child.pinned
        )
        for member in receipt.members:
            print(f"stopped: {member.pid}, found as {member.found.value}: {member.end}")
        print(f"the child's exit status: {child.wait(5.0)}")
        child.stdout.close()


if __name__ == "__main__":
    main()
