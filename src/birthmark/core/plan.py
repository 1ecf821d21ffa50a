"""The way from what is seen to what should be: one row for every pair of states."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from birthmark.core.states import Desired, Observed


class Action(Enum):
    """What one round of reconciling does about one service."""

    NOTHING = "nothing"
    START = "start"
    STOP = "stop"
    WAIT = "wait"
    LOOK_AGAIN = "look_again"
    CONSULT_POLICY = "consult_policy"


PLAN: Final[Mapping[tuple[Desired, Observed], Action]] = {
    (Desired.UP, Observed.ABSENT): Action.START,
    (Desired.UP, Observed.BLOCKED): Action.WAIT,
    (Desired.UP, Observed.STARTING): Action.NOTHING,
    (Desired.UP, Observed.READY): Action.NOTHING,
    (Desired.UP, Observed.UNREADY): Action.NOTHING,
    # What was asked to stop ends first; the next round starts it anew.
    (Desired.UP, Observed.STOPPING): Action.WAIT,
    # Whether an exit is followed by a start is the restart policy's business.
    (Desired.UP, Observed.EXITED): Action.CONSULT_POLICY,
    (Desired.UP, Observed.BACKOFF): Action.WAIT,
    (Desired.UP, Observed.GAVE_UP): Action.NOTHING,
    # Acting on a guess can kill a stranger; asking again costs one round.
    (Desired.UP, Observed.UNKNOWN): Action.LOOK_AGAIN,
    (Desired.DOWN, Observed.ABSENT): Action.NOTHING,
    (Desired.DOWN, Observed.BLOCKED): Action.NOTHING,
    (Desired.DOWN, Observed.STARTING): Action.STOP,
    (Desired.DOWN, Observed.READY): Action.STOP,
    (Desired.DOWN, Observed.UNREADY): Action.STOP,
    (Desired.DOWN, Observed.STOPPING): Action.WAIT,
    (Desired.DOWN, Observed.EXITED): Action.NOTHING,
    (Desired.DOWN, Observed.BACKOFF): Action.STOP,
    (Desired.DOWN, Observed.GAVE_UP): Action.NOTHING,
    (Desired.DOWN, Observed.UNKNOWN): Action.LOOK_AGAIN,
}
