"""What a command loads before it does anything. Each test starts a real interpreter and looks at what is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LOOP = ("asyncio", "anyio", "trio")
STACK = ("starlette", "uvicorn", "h11")

REPORT = """
import sys
names = " ".join(sorted(sys.modules))  # before anything the report itself needs
import os
os.write(int(os.environ["REPORT_FD"]), names.encode())
"""


def loaded(program: str, *arguments: str) -> set[str]:
    """Run the program in a new interpreter; return the names of all modules that are loaded at its end."""
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", program + REPORT, *arguments],
            env={**os.environ, "REPORT_FD": str(writing)},
            pass_fds=[writing],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        os.close(writing)
        writing = -1
        assert done.returncode == 0, done.stderr
        with open(reading, closefd=False) as report:
            return set(report.read().split())
    finally:
        os.close(reading)
        if writing != -1:
            os.close(writing)


COMMAND = """
from birthmark.interfaces.cli.entry import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


def test_importing_birthmark_loads_nothing_that_is_heavy() -> None:
    heavy = {*LOOP, *STACK, "click", "msgspec", "sqlite3", "psutil", "ctypes", "rich", "mcp"}
    assert loaded("import birthmark") & heavy == set()


def test_the_module_behind_run_loads_neither_click_nor_a_loop_nor_a_database() -> None:
    heavy = {*LOOP, *STACK, "click", "sqlite3", "msgspec", "rich", "mcp"}
    assert loaded("import birthmark.keeper.front") & heavy == set()


def test_run_loads_neither_click_nor_a_loop_nor_a_database() -> None:
    heavy = {*LOOP, *STACK, "click", "sqlite3", "msgspec", "rich", "mcp"}
    assert loaded(COMMAND, "run", "--help") & heavy == set()


@pytest.mark.parametrize("command", ["ps", "explain", "ports", "orphans", "stop", "down", "logs"])
def test_a_short_command_loads_neither_a_loop_nor_the_http_stack(command: str) -> None:
    assert loaded(COMMAND, command, "--help") & {*LOOP, *STACK, "mcp"} == set()


def test_the_version_loads_neither_a_loop_nor_the_http_stack() -> None:
    assert loaded(COMMAND, "--version") & {*LOOP, *STACK, "mcp", "sqlite3"} == set()


def test_the_report_sees_what_is_loaded() -> None:
    """Otherwise the tests above would pass on an empty report."""
    assert {"asyncio", "json"} <= loaded("import asyncio, json")
