"""Which file a command means. Real folders and files; no process is started."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest

from birthmark.config.model import ServiceSpec
from birthmark.config.programs import resolve_command
from birthmark.core.service import ServiceName
from birthmark.errors import SpawnFailed

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX's rights and paths")


def program(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def spec(command: str, cwd: Path) -> ServiceSpec:
    return ServiceSpec(name=ServiceName("x"), command=(command,), cwd=cwd)


def failure(command: str, cwd: Path, **environ: str) -> SpawnFailed:
    with pytest.raises(SpawnFailed) as caught:
        resolve_command(spec(command, cwd), environ)
    return caught.value


def test_the_first_of_the_childs_path_that_can_be_executed_is_taken(tmp_path: Path) -> None:
    program(tmp_path / "a/tool", 0o644)
    (tmp_path / "b/tool").mkdir(parents=True)
    found = program(tmp_path / "c/tool")
    program(tmp_path / "d/tool")
    path = ":".join(f"{tmp_path}/{name}" for name in ["gone", "a", "b", "c", "d"])
    assert resolve_command(spec("tool", tmp_path), {"PATH": path}) == found


def test_a_relative_part_of_path_starts_at_the_childs_folder(tmp_path: Path) -> None:
    found = program(tmp_path / "bin/tool")
    assert resolve_command(spec("tool", tmp_path), {"PATH": "bin"}) == found
    assert resolve_command(spec("tool", tmp_path / "bin"), {"PATH": ""}) == found


def test_a_command_with_a_slash_starts_at_the_childs_folder(tmp_path: Path) -> None:
    found = program(tmp_path / "bin/tool")
    assert resolve_command(spec("./bin/tool", tmp_path), {}) == found
    assert resolve_command(spec(str(found), Path("/")), {}) == found


def test_a_link_is_not_followed_since_programs_look_at_their_name(tmp_path: Path) -> None:
    program(tmp_path / "busybox")
    (tmp_path / "ls").symlink_to("busybox")
    assert resolve_command(spec("ls", tmp_path), {"PATH": str(tmp_path)}) == tmp_path / "ls"


def test_a_missing_program_names_the_path_that_was_searched(tmp_path: Path) -> None:
    error = failure("no-such-tool", tmp_path, PATH=f"{tmp_path}/a:{tmp_path}/b", HOME=str(tmp_path))
    assert str(error) == (
        "could not start 'no-such-tool': search: No such file or directory [ENOENT]; "
        f"searched PATH={tmp_path}/a:{tmp_path}/b"
    )


def test_arguments_written_into_the_command_are_recognised(tmp_path: Path) -> None:
    assert failure("npx -y server", tmp_path, PATH="/nowhere").hint == (
        "its name holds spaces: if what follows the first is arguments, put them into args"
    )


def test_without_a_path_the_systems_own_is_searched(tmp_path: Path) -> None:
    assert resolve_command(spec("sh", tmp_path), {}).name == "sh"
    assert failure("no-such-tool", tmp_path).searched == "/bin:/usr/bin"


@pytest.mark.parametrize(
    "folder", [".local/bin", ".nvm/versions/node/v24.1.0/bin", ".volta/bin", ".cargo/bin"]
)
def test_a_well_known_folder_that_has_the_program_is_named(tmp_path: Path, folder: str) -> None:
    program(tmp_path / folder / "some-tool")
    error = failure("some-tool", tmp_path, PATH="/nowhere", HOME=str(tmp_path))
    assert error.hint == (
        f"it is in {tmp_path}/{folder}: write the whole path as the command, "
        "or add that folder to PATH in the service's env"
    )


def test_a_folder_as_program_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "tool").mkdir()
    for error in (failure("./tool", tmp_path), failure("tool", tmp_path, PATH=str(tmp_path))):
        assert error.errno == errno.EISDIR
        assert error.hint == f"{tmp_path}/tool is a folder; name the program in it"


def test_a_program_that_may_not_be_executed_is_named(tmp_path: Path) -> None:
    program(tmp_path / "tool", 0o644)
    for error in (failure("./tool", tmp_path), failure("tool", tmp_path, PATH=str(tmp_path))):
        assert error.errno == errno.EACCES
        assert error.hint == f"{tmp_path}/tool is not executable for this user"


def test_a_missing_program_with_a_slash_is_not_searched(tmp_path: Path) -> None:
    error = failure("./gone", tmp_path, PATH="/bin")
    assert (error.errno, error.step, error.searched, error.hint) == (
        errno.ENOENT,
        "exec",
        None,
        f"there is no {tmp_path}/gone",
    )


def test_a_working_directory_that_is_gone_is_named_before_the_program(tmp_path: Path) -> None:
    program(tmp_path / "file")
    gone, file = failure("sh", tmp_path / "gone", PATH="/bin"), failure("sh", tmp_path / "file", PATH="/bin")
    assert (gone.step, gone.errno, gone.hint) == (
        "cwd",
        errno.ENOENT,
        f"its working directory {tmp_path}/gone is missing",
    )
    assert (file.step, file.errno) == ("cwd", errno.ENOTDIR)


def test_a_name_with_nul_starts_nothing(tmp_path: Path) -> None:
    assert failure("a\0b", tmp_path).errno == errno.EINVAL


def test_a_remote_server_has_no_program(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="x has no command: it is a remote server"):
        resolve_command(ServiceSpec(name=ServiceName("x"), url="http://h/"), {})
