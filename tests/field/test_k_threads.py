"""Field cases: spawning from a threaded host, and a successor that binds while children live."""

from __future__ import annotations

import ast
import os
import signal
import socket
import threading
from pathlib import Path

import birthmark
from birthmark import Command, ExitStatus, Spawner
from birthmark.testing.puppet import puppet

SOURCE = Path(birthmark.__file__).parent


def test_k1_k2_two_hundred_services_start_while_twenty_threads_log_and_import() -> None:
    import importlib
    import logging

    stop = threading.Event()
    logger = logging.getLogger("field")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False

    def busy() -> None:
        while not stop.is_set():
            logger.warning("busy")
            importlib.reload(importlib.import_module("colorsys"))

    threads = [threading.Thread(target=busy) for _ in range(20)]
    for thread in threads:
        thread.start()
    try:
        with Spawner() as spawner:
            children = [spawner.spawn_owned_supervised(Command("/bin/true")) for _ in range(200)]
            stop.set()
            for child in children:
                assert child.wait(30) == ExitStatus(code=0)
                child.close()
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)


def test_k1_k2_no_python_runs_between_fork_and_exec() -> None:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.keyword) and node.arg == "preexec_fn"), path


def test_k4_a_successor_binds_while_the_children_of_the_first_live() -> None:
    script = """
import socket
from birthmark import Command, Spawner, Stdio
server = socket.create_server(("127.0.0.1", 0))
server.set_inheritable(True)
code = "import sys; sys.stdin.read()"
child = Spawner().spawn_owned_supervised(
    Command(sys.executable, "-c", code, stdin=0, stdout=Stdio.INHERIT, parent_death=None))
tell(server.getsockname()[1])
sys.stdin.readline()
"""
    with puppet(script) as first:
        port = first.hear_pid()
        os.kill(first.pid, signal.SIGKILL)
        first.wait_exited()
        with socket.create_server(("127.0.0.1", port)):
            pass
