"""Field cases, environment: what a service inherits, and what a missing program says. Real children where one is named."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from birthmark.children.command import Command, Stdio
from birthmark.children.spawning import Spawner
from birthmark.config.environ import child_environ
from birthmark.config.load import load_files
from birthmark.config.model import ServiceSpec
from birthmark.config.programs import resolve_command
from birthmark.errors import SpawnFailed

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the base list of POSIX")

TELLER = "import json, os\nos.write(1, json.dumps(dict(os.environ)).encode())\n"
"""A program that prints its environment and ends."""

PARENT: Mapping[str, str] = {
    "HOME": "/home/ada",
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "FAKE_API_KEY": "hunter2",
    "CLAUDECODE": "1",
    "BIRTHMARK_BIRTH": "0" * 32,
}
BASE: Mapping[str, str] = {"HOME": "/home/ada", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


def written(folder: Path, policy: str = "") -> ServiceSpec:
    """Return the service of a file that starts the teller."""
    file = folder / "birthmark.toml"
    file.write_text(
        f"[mcp.teller]\ncommand = {json.dumps([sys.executable, '-c', TELLER])}\n{policy}", encoding="utf-8"
    )
    (spec,) = load_files([file], environ=PARENT).services
    return spec


def told(spec: ServiceSpec) -> dict[str, str]:
    """Start the service with its environment and return the one it prints."""
    environ = child_environ(spec, PARENT)
    program = resolve_command(spec, environ)
    with Spawner() as spawner:
        child = spawner.spawn_owned_supervised(
            Command(program, *spec.command[1:], env=environ, cwd=spec.cwd, stdout=Stdio.PIPE)
        )
        assert child.stdout is not None
        printed = b""
        while chunk := child.stdout.read(65536):  # end-of-file: it has ended; the runner bounds the test
            printed += chunk
        child.wait(5)
        child.close()
    environ = json.loads(printed)
    # What the interpreter itself adds in the C locale is not inherited.
    return {name: value for name, value in environ.items() if name not in {"LC_CTYPE", "PYTHONUTF8"}}


def test_j1_a_key_in_our_environment_reaches_no_service(tmp_path: Path) -> None:
    assert told(written(tmp_path)) == BASE


def test_j1_a_key_reaches_the_service_that_asks_for_it_and_no_text_about_it(tmp_path: Path) -> None:
    spec = written(tmp_path, "env = { KEY = '${FAKE_API_KEY}' }\nenv_from = ['FAKE_API_KEY']\n")
    assert told(spec) == {**BASE, "KEY": "hunter2", "FAKE_API_KEY": "hunter2"}
    assert "hunter2" not in f"{spec!r} {spec.shown_env()}"


def test_j2_the_base_is_as_safe_for_a_service_with_variables_of_its_own(tmp_path: Path) -> None:
    assert told(written(tmp_path, "env = { MODE = 'test' }\n")) == {**BASE, "MODE": "test"}


@pytest.mark.parametrize("profile", ["minimal", "default", "inherit"])
def test_j3_an_outer_sessions_marker_and_our_own_are_not_handed_on(tmp_path: Path, profile: str) -> None:
    environ = told(written(tmp_path, f"env_profile = '{profile}'\n"))
    assert not {"CLAUDECODE", "BIRTHMARK_BIRTH"} & environ.keys()
    assert environ.items() >= {"HOME": "/home/ada", "PATH": "/usr/bin:/bin"}.items()


def test_j3_the_list_of_markers_is_the_services_to_set(tmp_path: Path) -> None:
    policy = "env_profile = 'inherit'\nenv_drop = ['FAKE_*']\n"
    assert told(written(tmp_path, policy)) == {**BASE, "CLAUDECODE": "1"}


def test_j4_a_program_outside_of_a_desktops_path_is_named_with_where_it_is(tmp_path: Path) -> None:
    shim = tmp_path / ".nvm/versions/node/v24.1.0/bin/npx"
    shim.parent.mkdir(parents=True)
    shim.write_text("#!/bin/sh\n")
    shim.chmod(0o755)
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"x": {"command": "npx"}}}')
    (spec,) = load_files([tmp_path / ".mcp.json"], environ={}).services
    path = f"{tmp_path}/bin:{tmp_path}/sbin"
    with pytest.raises(SpawnFailed) as caught:
        resolve_command(spec, child_environ(spec, {"HOME": str(tmp_path), "PATH": path}))
    assert str(caught.value) == (
        f"could not start 'npx': search: No such file or directory [ENOENT]; searched PATH={path}; it is in "
        f"{shim.parent}: write the whole path as the command, or add that folder to PATH in the service's env"
    )


def test_j4_a_path_set_per_service_is_the_one_that_is_searched(tmp_path: Path) -> None:
    shim = tmp_path / "tools/npx"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\n")
    shim.chmod(0o755)
    file = tmp_path / "birthmark.toml"
    file.write_text(f"[mcp.x]\ncommand = 'npx'\nenv = {{ PATH = '{tmp_path}/tools:${{PATH}}' }}\n")
    (spec,) = load_files([file], environ=PARENT).services
    assert resolve_command(spec, child_environ(spec, PARENT)) == shim
