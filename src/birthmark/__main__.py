"""`python -m birthmark`."""

import sys

# With -m and without -I the working directory comes first: a file there must not stand in for a module of ours.
if not sys.flags.isolated and not getattr(sys.flags, "safe_path", False) and sys.path:
    del sys.path[0]

from birthmark.interfaces.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
