"""The kernel. The only rooms where a bare pid is looked at or signalled."""

from __future__ import annotations

import sys
from functools import lru_cache

from birthmark.platforms.contract import ProcessControl


@lru_cache(maxsize=1)
def load() -> ProcessControl:
    """Return the module that keeps the platform's promise on this machine."""
    if sys.platform == "linux":
        from birthmark.platforms import linux

        return linux
    if sys.platform == "darwin":
        from birthmark.platforms import darwin

        return darwin
    if sys.platform == "win32":
        from birthmark.platforms import windows

        return windows
    from birthmark.platforms import unsupported

    return unsupported
