"""What is going on, for whoever waits: on stderr, so that the table and the JSON stay clean."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
