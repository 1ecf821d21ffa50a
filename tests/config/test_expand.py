"""References in values. Values and a few small files; no process is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from birthmark.config.model import ServiceSpec
from tests.config.loading import load, refusal, service, write

ENVIRON = {"TOKEN": "hunter2", "EMPTY": "", "HOME": "/home/ada", "ODD": "a$b${c}", "RAW": "\udcff"}


def argument(folder: Path, written: str, environ: Mapping[str, str] = ENVIRON) -> str:
    """Return what one argument becomes."""
    file = write(folder / "birthmark.toml", f"[mcp.x]\ncommand = 'x'\nargs = ['{written}']\n")
    return load(file, environ).services[0].command[1]


@pytest.mark.parametrize(
    ("written", "expanded"),
    [
        ("${TOKEN}", "hunter2"),
        ("a${TOKEN}b${TOKEN}", "ahunter2bhunter2"),
        ("${env:TOKEN}", "hunter2"),
        ("${TOKEN:-other}", "hunter2"),
        ("${GONE:-other}", "other"),
        ("${GONE:-}", ""),
        ("${GONE:-a:-b}", "a:-b"),
        ("${env:GONE:-other}", "other"),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY}", ""),
        ("${userHome}/x", "/home/ada/x"),
        ("${ODD}", "a$b${c}"),
        ("${RAW}", "\udcff"),
        ("$TOKEN pa$$word $1 $", "$TOKEN pa$$word $1 $"),
        ("$${TOKEN}", "${TOKEN}"),
        ("{port}{TOKEN}", "{port}{TOKEN}"),
    ],
)
def test_references_are_replaced_and_bare_dollars_left_alone(
    tmp_path: Path, written: str, expanded: str
) -> None:
    assert argument(tmp_path, written) == expanded


def test_the_workspace_is_the_folder_of_the_file(tmp_path: Path) -> None:
    assert argument(tmp_path, "${workspaceFolder}${/}a") == f"{tmp_path}/a"
    assert argument(tmp_path, "${workspaceFolderBasename}") == tmp_path.name


def test_a_files_content_is_taken_without_its_last_newline(tmp_path: Path) -> None:
    write(tmp_path / "key", "secret \n\n")
    assert argument(tmp_path, "${file:key}") == "secret \n"
    assert argument(tmp_path, f"${{file:{tmp_path}/key}}") == "secret \n"


@pytest.mark.skipif(sys.platform == "win32", reason="FIFOs are POSIX's")
def test_a_reference_to_a_fifo_waits_for_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for policy in ("args = ['${file:pipe}']", "env_file = 'pipe'"):
        file = write(tmp_path / "a.toml", f"[mcp.x]\ncommand = 'x'\n{policy}\n")
        assert refusal(file).endswith("the file pipe cannot be read: it is no regular file")


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (
            "${GONE}",
            "x: the variable GONE is not set. Set it, write ${GONE:-default}, or leave it as it stands with --allow-unset",
        ),
        (
            "${env:GONE}",
            "x: the variable GONE is not set. Set it, write ${GONE:-default}, or leave it as it stands with --allow-unset",
        ),
        (
            "${input:key}",
            "x: ${input:key} asks a person in an editor, and here nobody asks. "
            "Set a variable and write ${VAR} in a birthmark.toml that imports this file",
        ),
        ("${file:gone}", "x: the file {folder}/gone cannot be read: No such file or directory"),
        ("${file:.}", "x: the file {folder} cannot be read: it is a folder"),
        ("${file:}", "x: an empty path"),
        (
            "${TOKEN",
            "x: a reference that begins with ${ and does not end, or has another one inside. "
            "Close it with }, or write $${ for the characters themselves",
        ),
        (
            "${GONE:-${TOKEN}}",
            "x: a reference that begins with ${ and does not end, or has another one inside. "
            "Close it with }, or write $${ for the characters themselves",
        ),
        (
            "${command:pick}",
            "x: ${command:pick} is no reference known here. Known are ${VAR}, ${VAR:-default}, ${env:VAR}, "
            "${file:PATH}, ${workspaceFolder}, ${userHome}; write $${ for the characters themselves",
        ),
    ],
)
def test_a_reference_to_nothing_names_service_key_line_and_variable(
    tmp_path: Path, written: str, problem: str
) -> None:
    file = write(tmp_path / "birthmark.toml", f"[mcp.x]\ncommand = 'x'\nargs = ['{written}']\n")
    sentence = refusal(file, ENVIRON).replace(f"file {tmp_path} ", "file {folder} ")
    assert sentence == f"birthmark.toml:3: mcp.x.args[0]: {problem.replace('{folder}/', '')}"


def test_unset_variables_may_be_allowed_and_then_stand_as_written(tmp_path: Path) -> None:
    file = write(tmp_path / "birthmark.toml", "[mcp.x]\ncommand = 'x'\nargs = ['${GONE}']\n")
    assert load(file, allow_unset=True).services[0].command == ("x", "${GONE}")


def test_command_url_cwd_and_variables_are_expanded_too(tmp_path: Path) -> None:
    text = """
        [mcp.x]
        command = "${BIN}/x"
        cwd = "${PLACE}"
        url = "http://${HOST}:1/${PLACE}"
        env = { A = "${PLACE}" }
    """
    (spec,) = load(
        write(tmp_path / "a.toml", text), {"BIN": "/opt", "PLACE": "there", "HOST": "lan"}
    ).services
    assert (spec.command, spec.cwd, spec.url) == (("/opt/x",), tmp_path / "there", "http://lan:1/there")
    assert (spec.written, spec.written_url) == (("${BIN}/x",), "http://${HOST}:1/${PLACE}")


def test_a_program_that_vanishes_with_its_variable_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", "[mcp.x]\ncommand = '${EMPTY}'\n")
    assert refusal(file, ENVIRON) == (
        "a.toml:2: mcp.x.command: the program's name is empty once its variables are replaced"
    )


# -- secrets -------------------------------------------------------------------


def secretive(folder: Path) -> ServiceSpec:
    write(folder / "key", "from-file")
    write(folder / "vars", "FROM_ENV_FILE='in vars'\n\n# comment\nexport B=2\n")
    text = """
        [mcp.x]
        command = "x"
        args = ["--token=${TOKEN}"]
        url = "http://127.0.0.1:1/?key=${TOKEN}"
        env_file = "vars"
        [mcp.x.env]
        PLAIN = "visible"
        B = "visible"
        TOOLS = "${HOME}/tools"
        REFERRED = "${TOKEN}"
        READ = "${file:key}"
        MY_API_KEY = "literal"
        DB_PASSWORD = "literal"
        MONKEY = "visible"
    """
    return load(write(folder / "a.toml", text), ENVIRON).services[0]


def test_what_comes_from_outside_or_is_called_a_secret_is_one(tmp_path: Path) -> None:
    spec = secretive(tmp_path)
    assert spec.secrets == {"REFERRED", "READ", "MY_API_KEY", "DB_PASSWORD", "FROM_ENV_FILE"}
    assert spec.env["FROM_ENV_FILE"] == "in vars"
    assert spec.shown_env()["REFERRED"] == spec.shown_env()["READ"] == "*****"
    assert spec.shown_env()["TOOLS"] == "/home/ada/tools"


def test_a_services_repr_tells_no_secret(tmp_path: Path) -> None:
    shown = repr(secretive(tmp_path))
    for secret in ("hunter2", "from-file", "literal", "in vars"):
        assert secret not in shown
    assert "--token=${TOKEN}" in shown


def test_an_error_about_a_variable_does_not_repeat_its_value(tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", '{"mcpServers": {"x": {"command": "x", "env": {"A": 31337}}}}')
    assert "31337" not in refusal(file)


def test_a_line_of_a_variables_file_that_is_none_is_named_and_not_repeated(tmp_path: Path) -> None:
    write(tmp_path / "vars", "A=1\nhunter2\n")
    file = write(tmp_path / "a.toml", "[mcp.x]\ncommand = 'x'\nenv_file = 'vars'\n")
    assert refusal(file) == "vars:2: not of the form NAME=value"


def test_a_missing_variables_file_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", "[mcp.x]\ncommand = 'x'\nenv_file = 'gone'\n")
    assert (
        refusal(file) == "a.toml:3: mcp.x.env_file: the file gone cannot be read: No such file or directory"
    )


def test_variables_of_ours_in_a_file_are_left_out_and_mentioned(tmp_path: Path) -> None:
    text = "[mcp.x]\ncommand = 'x'\nenv = { BIRTHMARK_BIRTH = 'forged', A = '1' }\n"
    config = load(write(tmp_path / "a.toml", text))
    assert service(config, "x").env == {"A": "1"}
    assert config.warnings == (
        f"{tmp_path}/a.toml:1: x: BIRTHMARK_BIRTH is left out: variables that begin with BIRTHMARK_ are ours alone",
    )
