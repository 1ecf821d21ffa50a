"""Field case K5: a start copies nothing of a large host. The kernel counts the page faults a copy would cost."""

from __future__ import annotations

import resource

from birthmark import Command, ExitStatus, Spawner

PAGE = resource.getpagesize()
PAGES = 16 * 1024


def test_k5_a_start_from_a_host_with_much_memory_copies_none_of_it() -> None:
    ballast = bytearray(PAGES * PAGE)

    def touch() -> int:
        """Write to every page; return the page faults that took."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for at in range(0, len(ballast), PAGE):
            ballast[at] = (ballast[at] + 1) % 256
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    touch()
    with Spawner() as spawner:
        assert spawner.spawn_owned_supervised(Command("/bin/true")).wait(5) == ExitStatus(code=0)
        touch()
        for _ in range(3):
            child = spawner.spawn_owned_supervised(Command("/bin/true"))
            # After a fork that shares pages copy-on-write, each write would fault once.
            assert touch() < PAGES // 8
            assert child.wait(5) == ExitStatus(code=0)
            child.close()
