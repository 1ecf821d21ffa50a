"""`run`, as far as the list of commands and its completion need it."""

from __future__ import annotations

import click


@click.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": [],
    }
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def run(words: tuple[str, ...]) -> int:
    """Run one command; nothing of it outlives its client."""
    # The door answers `run` before click is loaded; this is for whoever comes through the group.
    from birthmark.keeper.front import main

    return main(list(words))
