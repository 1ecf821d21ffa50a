"""One row, in a process of its own: `python -m benchmarks.one ROW [--quick]`. Prints its figures as JSON."""

from __future__ import annotations

import json
import sys

from benchmarks.rows import row


def main(name: str, *, quick: bool) -> int:
    """Take one row and print it."""
    print(json.dumps([figure.to_dict() for figure in row(name)(quick)]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], quick="--quick" in sys.argv[2:]))
