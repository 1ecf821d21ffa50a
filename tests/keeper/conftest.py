"""Keepers are Linux's: no other kernel lets a process keep its descendants. Elsewhere their modules do not import."""

from __future__ import annotations

import sys

collect_ignore = (
    []
    if sys.platform == "linux"
    else ["test_keeper.py", "test_kill_matrix.py", "test_protocol.py", "test_set.py"]
)
