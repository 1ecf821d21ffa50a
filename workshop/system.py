"""The programs of the system that tests want beside Python. None is needed to use birthmark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Final

from workshop.environment import say

WANTED: Final = {  # program: Debian package
    "lsof": "lsof",
    "ip": "iproute2",
    "ss": "iproute2",
    "unshare": "util-linux",
    "ps": "procps",
    "node": "nodejs",
    "npm": "npm",
}


def provide() -> None:
    """Install what is missing where that is possible, else name it; the tests concerned skip with a reason."""
    if sys.platform != "linux":
        return
    missing = sorted({package for program, package in WANTED.items() if shutil.which(program) is None})
    if not missing:
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        say(f"installing {' '.join(missing)} with apt-get")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
            done = subprocess.run(["apt-get", "-qq", *command], env=environment, check=False)
            if done.returncode != 0:
                say(f"apt-get {command[0]} failed with {done.returncode}; the tests that need it will skip")
                return
    else:
        say(f"missing here: {' '.join(missing)}; the tests that need them will skip (apt-get install them)")
