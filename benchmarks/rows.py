"""The rows of the table by name, in the order in which they are printed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

from benchmarks.figures import Figure

Row = Callable[[bool], list[Figure]]

ROWS: Final = {
    "spawn": "spawning:idle",
    "spawn-large": "spawning:large",
    "spawn-busy": "spawning:busy",
    "orphans": "orphans:orphans",
    "watched": "orphans:watched",
    "identity": "identity:checks",
    "ports": "ports:holders",
    "stop": "stops:stops",
    "start": "starting:starts",
}


def row(name: str) -> Row:
    """Return the function that takes a row's figures; its argument is whether to be quick."""
    module, _, function = ROWS[name].partition(":")
    found: Row = getattr(import_module(f"benchmarks.{module}"), function)
    return found
