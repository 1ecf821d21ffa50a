"""The face of each error: what the shell gets to see of it, and what HTTP does.

The exit codes, the same for every command but `run` (which ends as its child did):

    0    done
    1    failed
    2    usage, or a configuration that cannot be used
    3    not running
    4    unknown, or no supervisor
    5    refused: not ours, or not trusted
    6    survivors
    124  time-out
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from birthmark import errors


class Exit(IntEnum):
    """What a command's exit code says."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_RUNNING = 3
    UNKNOWN = 4
    REFUSED = 5
    SURVIVORS = 6
    TIMED_OUT = 124


class Face(NamedTuple):
    """How one error looks from outside."""

    exit_code: Exit
    http_status: int


FACES: Final[Mapping[type[errors.SupervisionError], Face]] = {
    errors.ProcessGone: Face(Exit.NOT_RUNNING, 410),
    errors.IdentityMismatch: Face(Exit.REFUSED, 409),
    errors.NotPermitted: Face(Exit.REFUSED, 403),
    errors.NotSignalable: Face(Exit.REFUSED, 403),
    errors.SignalFailed: Face(Exit.FAILED, 500),
    errors.SpawnFailed: Face(Exit.FAILED, 500),
    errors.SpawnerClosed: Face(Exit.FAILED, 503),
    errors.ChildrenAlive: Face(Exit.SURVIVORS, 409),
    errors.StopTimedOut: Face(Exit.SURVIVORS, 504),
    errors.LookFailed: Face(Exit.UNKNOWN, 503),
    errors.Unsupported: Face(Exit.FAILED, 501),
    errors.WorkerLost: Face(Exit.FAILED, 503),
    errors.PortHeld: Face(Exit.REFUSED, 409),
    errors.GaveUp: Face(Exit.FAILED, 409),
    errors.ConfigError: Face(Exit.USAGE, 422),
    errors.NotTrusted: Face(Exit.REFUSED, 403),
    errors.NotConfirmed: Face(Exit.REFUSED, 403),
    errors.NotReplaced: Face(Exit.FAILED, 500),
    errors.InstallationLocked: Face(Exit.FAILED, 409),
    errors.InstallationBroken: Face(Exit.FAILED, 500),
    errors.SupervisorUnreachable: Face(Exit.UNKNOWN, 503),
    errors.UnknownService: Face(Exit.UNKNOWN, 404),
    errors.RegistryUnavailable: Face(Exit.FAILED, 503),
    errors.RecordConflict: Face(Exit.FAILED, 409),
    errors.RecordUndecodable: Face(Exit.FAILED, 500),
}

PLAIN: Final = Face(Exit.FAILED, 500)
"""The face of what has none: a defect of ours, or of the machine."""


def face_of(error: BaseException) -> Face:
    """Return the error's face; a subclass without one of its own shows its nearest ancestor's."""
    for kind in type(error).__mro__:
        if kind in FACES:
            return FACES[kind]
    return PLAIN


def error_called(name: str) -> type[errors.SupervisionError] | None:
    """Return the error with that name, or None: how a client finds the face of an error it was sent."""
    return next((kind for kind in FACES if kind.__name__ == name), None)
