"""Field case E5: a lock that was left over names our own pid."""

from __future__ import annotations

import pytest

from tests.field.staging import in_pid_namespace


@pytest.mark.root
@pytest.mark.namespaces
def test_e5_as_pid_1_a_stale_lock_that_names_pid_1_locks_nobody_out() -> None:
    script = """
import os
from birthmark.children.installation import open_installation
from birthmark.supervisor.locking import LOCK_FILE, InstallationLock
installation = open_installation()
(installation.locks / LOCK_FILE).write_text("1\\n")
InstallationLock.acquire(installation).release()
print(os.getpid(), "started")
"""
    assert in_pid_namespace(script).split() == ["1", "started"]
