"""Reap what falls to us: as a subreaper, or as PID 1, we are the last parent of escaped descendants."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from birthmark.core.markers import is_tag
from birthmark.errors import LookFailed
from birthmark.platforms import load


class OrphanReaper:
    """Reaps zombies that fell to this process, and counts them. Never touches a child somebody waits for.

    A zombie is taken for fallen when its tag says that it descends from a birth of ours (the tag
    outlives the process until it is reaped) and it is no leader; as PID 1, all but leaders are.
    Children that other code in this process started carry no tag, or our own, and are left alone.
    """

    def __init__(self) -> None:
        self.reaped = 0
        self._leaders: set[int] = set()
        self._lock = threading.Lock()

    @contextmanager
    def birth_under_way(self) -> Iterator[set[int]]:
        """Hold reaping back during a spawn; add the newborn leader's pid to the set yielded.

        A child that dies before its pid is written down would be reaped here, and its status lost.
        """
        with self._lock:
            yield self._leaders

    def forget(self, pid: int) -> None:
        """Say that a leader has been reaped by its owner."""
        with self._lock:
            self._leaders.discard(pid)

    def reap(self) -> int:
        """Reap what has fallen to us and exited; returns how many. Does not block beyond a spawn."""
        if sys.platform != "linux":
            return 0
        from birthmark.platforms.linux import read_tag

        platform = load()
        count = 0
        with self._lock:
            own_tag = read_tag(os.getpid())
            try:
                children = platform.children_of(os.getpid())
            except LookFailed:
                return 0
            for pid in children:
                if pid in self._leaders or not platform.is_zombie(pid):
                    continue
                tag = read_tag(pid)
                fallen = tag is not None and is_tag(tag) and tag != own_tag
                if (fallen or os.getpid() == 1) and platform.reap(pid) is not None:
                    count += 1
        self.reaped += count
        return count
