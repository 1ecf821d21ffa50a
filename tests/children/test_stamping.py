"""The API server's stamp: a real interpreter replaces its own image."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from birthmark import ChildKind, open_installation, owns, stop_owned
from birthmark.testing.puppet import puppet

REPORT = """
import json, os, sys
from birthmark import stamp_api_server
before = os.environ.get("COUNT", "0")
os.environ["COUNT"] = str(int(before) + 1)
result = stamp_api_server()
print(json.dumps({"result": result.value, "pid": os.getpid(), "argv": sys.argv, "count": os.environ["COUNT"],
    "flags": sys.flags.dev_mode, "orig": sys.orig_argv[1:], "home": os.environ.get("BIRTHMARK_HOME"),
    "marks": sorted(k for k in os.environ if k.startswith("BIRTHMARK_") and k != "BIRTHMARK_HOME")}))
"""


def run(tmp_path: Path, *arguments: str, **environ: str) -> dict[str, object]:
    script = tmp_path / "server.py"
    script.write_text(REPORT)
    process = subprocess.Popen(
        [sys.executable, "-X", "dev", str(script), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )
    text, _ = process.communicate(timeout=30)
    found: dict[str, object] = json.loads(text)
    assert found["pid"] == process.pid, "the pid stays"
    return found


def test_the_image_is_replaced_once_with_pid_flags_and_arguments_kept(tmp_path: Path) -> None:
    found = run(tmp_path, "one", "two words")
    assert found["result"] == "stamped"
    # Twice through the script: once unstamped, once stamped. Never a third time.
    assert found["count"] == "2"
    assert found["argv"] == [str(tmp_path / "server.py"), "one", "two words"]
    assert found["flags"] is True
    assert found["orig"] == ["-X", "dev", str(tmp_path / "server.py"), "one", "two words"]
    assert found["marks"] == ["BIRTHMARK_API", "BIRTHMARK_INSTALLATION"]
    assert found["home"] == os.environ["BIRTHMARK_HOME"]


def test_marks_of_an_outer_birth_do_not_survive_the_stamp(tmp_path: Path) -> None:
    found = run(tmp_path, BIRTHMARK_AGENT="outer", BIRTHMARK_BIRTH="a" * 32)
    assert found["marks"] == ["BIRTHMARK_API", "BIRTHMARK_INSTALLATION"]


def test_a_stamp_of_another_installation_is_replaced(tmp_path: Path) -> None:
    found = run(tmp_path, BIRTHMARK_API="api", BIRTHMARK_INSTALLATION="f" * 32)
    assert found["result"] == "stamped"
    assert found["count"] == "2"


def test_without_a_readable_environment_nothing_is_replaced(tmp_path: Path) -> None:
    script = tmp_path / "bare.py"
    script.write_text(REPORT.replace('os.environ.get("COUNT", "0")', '"0"'))
    done = subprocess.run(
        ["env", "-i", sys.executable, "-I", str(script)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["result"] == "unverifiable"
    assert found["count"] == "1"


@pytest.mark.anyio
async def test_a_stamped_server_is_identified_and_stopped_by_its_mark_alone() -> None:
    script = "import birthmark; birthmark.stamp_api_server(); ready(); obey()"
    with puppet(script, env=dict(os.environ)) as server:
        server.wait_ready()
        assert await owns(server.pid, ChildKind.API, "api")
        assert not await owns(server.pid, ChildKind.MCP, "other")
        outcome = await stop_owned(server.pid, ChildKind.API, "api", 5.0)
        assert type(outcome).__name__ == "Stopped"
        server.wait_tree_gone()


def test_an_exec_that_fails_is_an_os_error_and_the_process_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from birthmark import stamp_api_server

    open_installation()
    monkeypatch.setattr(sys, "executable", "/no/such/interpreter")
    with pytest.raises(FileNotFoundError):
        stamp_api_server()


@pytest.mark.anyio
async def test_a_stamped_server_is_stopped_alone_and_the_rest_of_its_pipeline_lives() -> None:
    script = """
import birthmark
birthmark.stamp_api_server()
if os.fork() == 0:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
    obey(); os._exit(0)
ready(); signal.pause()
"""
    with puppet(script, env=dict(os.environ)) as server:
        server.wait_ready()
        outcome = await stop_owned(server.pid, ChildKind.API, "api", 5.0)
        assert type(outcome).__name__ == "Stopped"
        server.wait_exited()
        server.ask()


def test_a_server_without_a_standard_output_is_stamped_too(tmp_path: Path) -> None:
    said = tmp_path / "said"
    code = f"import birthmark; open({str(said)!r}, 'w').write(birthmark.stamp_api_server().value)"
    subprocess.run(["sh", "-c", 'exec "$0" -c "$1" >&- 2>&-', sys.executable, code], check=True, timeout=20)
    assert said.read_text() == "stamped"
