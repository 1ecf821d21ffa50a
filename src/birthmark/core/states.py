"""What should be, and what was last seen: two fields, neither derived from the other."""

from __future__ import annotations

from enum import Enum


class Desired(Enum):
    """What the user wants of a service."""

    UP = "up"
    DOWN = "down"


class Observed(Enum):
    """What we last saw of a service."""

    ABSENT = "absent"
    BLOCKED = "blocked"
    STARTING = "starting"
    READY = "ready"
    UNREADY = "unready"
    STOPPING = "stopping"
    EXITED = "exited"
    BACKOFF = "backoff"
    GAVE_UP = "gave_up"
    UNKNOWN = "unknown"
