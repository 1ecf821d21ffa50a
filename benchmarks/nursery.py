"""A process that spawns on demand, to be watched from outside: `python -m benchmarks.nursery INSTALLATION`.

Each line of stdin is an order: `spawn` starts the next child and writes a byte once its program runs, `end`
ends it and writes a byte. The births are numbered, so that the watcher knows them without being told.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from birthmark import BirthId

SERVICE: Final = "watched"
READY: Final = b"!"


def birth_number(number: int) -> BirthId:
    """Return the birth of the child with that number."""
    from birthmark import BirthId

    # The first digits are the tag, so the number stands there.
    return BirthId(f"{number + 1:08x}{'0' * 24}")


def main(installation: str) -> int:
    """Follow orders until stdin ends."""
    import birthmark

    with birthmark.Spawner() as spawner:
        child: birthmark.Child | None = None
        number = 0
        for order in sys.stdin:
            if order == "spawn\n":
                command = birthmark.mark_child(
                    birthmark.Command("/bin/sleep", "1000"),
                    birthmark.ChildKind.MCP,
                    SERVICE,
                    installation=birthmark.InstallationId(installation),
                    birth=birth_number(number),
                )
                child = spawner.spawn_owned_supervised(command)
                number += 1
            elif child is not None:
                os.kill(child.pid, signal.SIGKILL)
                child.wait()
                child.close()
            os.write(1, READY)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
