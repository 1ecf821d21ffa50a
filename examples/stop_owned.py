"""Stop a process by the pid that was written down, and see what is refused. Under trio it is the same code.

python examples/stop_owned.py
"""

from __future__ import annotations

import asyncio
import os
import sys

from birthmark import (
    ChildKind,
    Command,
    NotOurs,
    NotRunning,
    Stopped,
    mark_child,
    owns,
    spawn_supervised,
    stop_owned,
)


async def main() -> None:
    """Run the example."""
    command = mark_child(
        Command(sys.executable, "-c", "import signal; signal.pause()"), ChildKind.AGENT, "greeter"
    )
    pid = spawn_supervised(command)
    print(f"is {pid} our greeter? {await owns(pid, ChildKind.AGENT, 'greeter')}")

    # The recorded pid of something else: it may have been given to anybody since it was written down.
    for recorded in (os.getppid(), pid, pid):
        match await stop_owned(recorded, ChildKind.AGENT, "greeter", grace_s=2.0):
            case NotOurs(proof=proof):
                print(f"{recorded} was not touched: {proof}")
            case Stopped(termination=termination):
                print(f"{recorded} was stopped: {termination.value}")
            case NotRunning():
                print(f"{recorded} does not run")


if __name__ == "__main__":
    asyncio.run(main())
