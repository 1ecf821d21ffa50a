"""What a user gets: the built files, installed where the source tree is out of reach.

Each installation takes its dependencies from the package registry, at the versions of dev.lock.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
NATIVE: Final = "birthmark/_native/spawn.abi3.so"
MADE: Final = shutil.ignore_patterns(
    ".git",
    ".venv*",
    ".envs",
    "build",
    "dist",
    "node_modules",
    "*.egg-info",
    "*.so",
    "__pycache__",
    "*_cache",
    ".hypothesis",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

has_compiler: Final = sys.platform == "linux" and shutil.which("cc") is not None


def run(*command: str | Path, cwd: Path, compiler: bool = True) -> str:
    """Run a command that has to succeed; return what it printed."""
    # PYTHONPATH and our own switches would let the source tree, or a choice of the caller's, back in.
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "BIRTHMARK_"))
    }
    if not compiler:
        kept["CC"] = shutil.which("false") or "false"
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=kept,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("packaging")
    yield place
    shutil.rmtree(place, ignore_errors=True)  # several environments: too much to keep for a look


@pytest.fixture(scope="module")
def sdist(place: Path) -> Path:
    """Build the source distribution from a copy, so that nothing is written into the tree."""
    tree = place / "tree"
    shutil.copytree(ROOT, tree, ignore=MADE)
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", place / "sdist", cwd=tree)
    (found,) = (place / "sdist").glob("*.tar.gz")
    return found


def wheel_from(sdist: Path, place: Path, *, compiler: bool) -> Path:
    """Build a wheel from nothing but the source distribution."""
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    (tree,) = (path for path in place.iterdir() if path.is_dir())
    command = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", place)
    run(*command, cwd=tree, compiler=compiler)
    (found,) = place.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def native_wheel(sdist: Path, place: Path) -> Path:
    if not has_compiler:
        pytest.skip("no C compiler here, or not Linux: there is no native wheel to build")
    (place / "native").mkdir()
    return wheel_from(sdist, place / "native", compiler=True)


@pytest.fixture(scope="module")
def pure_wheel(sdist: Path, place: Path) -> Path:
    (place / "pure").mkdir()
    return wheel_from(sdist, place / "pure", compiler=False)


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def install(what: Path, folder: Path, *, compiler: bool) -> Path:
    """Install a file into an empty environment; return the folder of its programs."""
    folder.mkdir()
    run(sys.executable, "-m", "venv", folder / "env", cwd=folder)
    programs = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    pins = re.findall(r"^([\w.-]+==[^\s;\\]+)", (ROOT / "dev.lock").read_text(), re.MULTILINE)
    (folder / "pins.txt").write_text("\n".join(pins))
    pip = (programs / "python", "-m", "pip", "install", "--disable-pip-version-check", "--quiet")
    run(*pip, "--constraint", folder / "pins.txt", what, cwd=folder, compiler=compiler)
    return programs


def assert_it_works(programs: Path, folder: Path, *, native: bool) -> None:
    """Run the command and look where it came from."""
    assert "Usage" in run(programs / "birthmark", "--help", cwd=folder)
    assert "0.1.0" in run(programs / "birthmark", "--version", cwd=folder)
    look = (
        "import birthmark, pathlib; here = pathlib.Path(birthmark.__file__).parent; "
        f"print(here, (here.parent / {NATIVE!r}).exists())"
    )
    where, has_native = run(programs / "python", "-I", "-c", look, cwd=folder).rsplit(maxsplit=1)
    assert Path(where).resolve().is_relative_to(folder.resolve())
    assert has_native == str(native)


def test_the_wheel_is_one_for_every_python_from_3_11_on(native_wheel: Path) -> None:
    assert re.fullmatch(r"birthmark-0\.1\.0-cp311-abi3-linux_\w+\.whl", native_wheel.name)
    assert NATIVE in names(native_wheel)


def test_a_wheel_built_without_a_compiler_is_pure_and_says_so(pure_wheel: Path) -> None:
    assert pure_wheel.name == "birthmark-0.1.0-py3-none-any.whl"
    assert not any(name.endswith(".so") for name in names(pure_wheel))


def test_the_wheel_holds_every_module_and_no_c(pure_wheel: Path) -> None:
    source = ROOT / "src"
    wanted = {
        path.relative_to(source).as_posix()
        for pattern in ("*.py", "*.pyi", "*.sql", "py.typed")
        for path in (source / "birthmark").rglob(pattern)
    }
    found = names(pure_wheel)
    assert wanted - found == set()
    assert not any(name.endswith((".c", ".h")) for name in found)
    assert {"LICENSE", "NOTICE"} <= {name.rsplit("/")[-1] for name in found}


def test_the_source_distribution_holds_what_its_own_tests_need(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        "dev",
        "dev.lock",
        ".ci/run",
        "LICENSE",
        "tests/conftest.py",
        "workshop/environment.py",
        "setup.py",
    }
    assert wanted - found == set()


def test_the_native_wheel_works_in_an_empty_environment(native_wheel: Path, place: Path) -> None:
    folder = place / "with-compiler"
    assert_it_works(install(native_wheel, folder, compiler=False), folder, native=True)


def test_the_source_distribution_installs_and_works_without_a_compiler(sdist: Path, place: Path) -> None:
    folder = place / "without-compiler"
    assert_it_works(install(sdist, folder, compiler=False), folder, native=False)
