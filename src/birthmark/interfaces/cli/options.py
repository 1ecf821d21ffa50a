"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import click

ACT_WITHIN_S: Final = 120.0
"""How long an act of the supervisor is waited for, unless it is said."""

_LONGEST_S: Final = 1e6
"""Eleven days: what is longer does not fit into a socket's time-out everywhere."""

_F = TypeVar("_F", bound=Callable[..., object])


def json_option(command: _F) -> _F:
    """Give a command the option every command has: --json, as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of words.")(command)


def _number(context: click.Context, parameter: click.Parameter, value: float) -> float:
    """Refuse what is neither below nor above anything."""
    if value != value:
        raise click.BadParameter("not a number", context, parameter)
    return value


def timeout_option(command: _F) -> _F:
    """Give a command a bound for its waiting: --timeout, as `timeout_s`."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, min_open=True, max=_LONGEST_S),
        callback=_number,
        default=ACT_WITHIN_S,
        show_default=True,
        metavar="SECONDS",
        help="Wait no longer for the answer. What was asked for goes on; the exit code is 124.",
    )(command)
