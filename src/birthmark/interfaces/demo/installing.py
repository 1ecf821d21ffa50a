"""The servers' own environments, made once in the user's cache folder and used again ever after."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import platformdirs

from birthmark.interfaces.demo.telling import DemoFailed

SERVERS: Final[Mapping[str, tuple[str, ...]]] = {
    # mcp-proxy speaks version 1 of the MCP SDK and the servers version 2: one environment cannot hold both.
    "mcp-proxy": ("mcp-proxy==0.13.0", "mcp<2"),
    "mcp-server-time": ("mcp-server-time==2026.10.19", "mcp<3"),
    "mcp-server-fetch": ("mcp-server-fetch==2026.10.24", "mcp<3"),
}
"""The MCP servers by name: the requirement, and what its environment is held to beside it."""

AGENT: Final = ("a2a-sdk[http-server]==1.3.0", "uvicorn<1")
"""What the agent's environment holds."""

STEP_WITHIN_S: Final = 300.0
"""One installation; a slow line downloads some 20 MB."""
LOCK_WITHIN_S: Final = 600.0
_LOCK_EVERY_S: Final = 0.2
_STAMP: Final = "complete"


@dataclass(frozen=True, slots=True)
class Installed:
    """Where everything is: `uvx` starts the servers, `environ` has it find them, `python` runs the agent."""

    folder: Path
    uvx: Path
    python: Path
    environ: Mapping[str, str]


def cache_folder() -> Path:
    """Return the folder in which the demo keeps what it installed; it can be removed at any time."""
    return platformdirs.user_cache_path("birthmark", appauthor=False) / "demo"


def ensure_installed(say: Callable[[str], None], *, offline: bool) -> Installed:
    """Return the environments, made first if they are not there; `say` gets a line before each that is made.

    Raises:
        DemoFailed: One cannot be made (the package and the way out are named), or `offline` and it is missing.
    """
    cache = cache_folder()
    # Another Python, or other versions, are another folder: what an older birthmark runs from is left alone.
    wanted = json.dumps([SERVERS, AGENT, sys.version, sys.base_prefix], sort_keys=True)
    folder = cache / hashlib.sha256(wanted.encode()).hexdigest()[:12]
    if not (folder / _STAMP).exists() or _find_uv(cache) is None:
        if offline:
            names = ", ".join(["uv", *(requirement for requirement, *_ in [*SERVERS.values(), AGENT])])
            raise DemoFailed(
                f"--offline, and not all of this is installed in {cache}: {names}",
                ["Run `birthmark demo` once with the package registry in reach; after that it needs none."],
            )
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise DemoFailed(
                f"the servers cannot be kept in {cache}: {err.strerror}",
                ["XDG_CACHE_HOME names another place for it."],
            ) from err
        with _locked(cache, say):
            _install(folder, cache, say)
    uv = _find_uv(cache)
    if uv is None:
        raise DemoFailed("uv was installed and is not there", [f"Remove {cache} and try again."])
    python = folder / "agent" / "bin" / "python"
    return Installed(folder, uv.with_name("uvx"), python, {**_places(folder, cache), "UV_OFFLINE": "1"})


def _install(folder: Path, cache: Path, say: Callable[[str], None]) -> None:
    """Install what is missing.

    Raises:
        DemoFailed: It cannot be had.
    """
    uv = _find_uv(cache) or _install_uv(cache, say)
    if (folder / _STAMP).exists():
        return  # another demo has done it while we waited
    shutil.rmtree(folder, ignore_errors=True)  # half of one, from an attempt that was broken off
    folder.mkdir(parents=True)
    # A server's environment is its own: ours is not to be mistaken for it, and no PYTHONPATH reaches into it.
    outer = {
        name: value
        for name, value in os.environ.items()
        if name != "VIRTUAL_ENV" and not name.startswith("PYTHON")
    }
    environ = {**outer, **_places(folder, cache), "UV_NO_PROGRESS": "1"}
    for name, (requirement, *held) in SERVERS.items():
        say(f"installing {requirement} …")
        words = ["tool", "install", "--python", sys.executable, name]
        _uv(uv, words, environ, folder, requirement)
        # The version is a second step: a plain `uvx NAME` takes what was installed by that name without options.
        python = folder / "tools" / name / "bin" / "python"
        _uv(uv, ["pip", "install", "--python", str(python), requirement, *held], environ, folder, requirement)
        # Started once without the registry, as the demo will: it has to work, and the next start is a warm one.
        code, output = _run(
            [str(uv.with_name("uvx")), name, "--help"], {**environ, "UV_OFFLINE": "1"}, folder
        )
        if code != 0:
            raise DemoFailed(f"{requirement} is installed and does not start", _last_of(output))
    say(f"installing {AGENT[0]} …")
    agent = folder / "agent"
    _uv(uv, ["venv", "--python", sys.executable, str(agent)], environ, folder, "the agent's environment")
    words = ["pip", "install", "--compile-bytecode", "--python", str(agent / "bin" / "python"), *AGENT]
    _uv(uv, words, environ, folder, AGENT[0])
    (folder / _STAMP).write_text(f"{sys.version}\n")


def _places(folder: Path, cache: Path) -> dict[str, str]:
    return {
        "UV_TOOL_DIR": str(folder / "tools"),
        "UV_TOOL_BIN_DIR": str(folder / "bin"),
        "UV_CACHE_DIR": str(cache / "uv-cache"),
    }


def _find_uv(cache: Path) -> Path | None:
    """Return a uv with uvx beside it: that of our environment, the user's own, or the demo's; None without any."""
    for uv in (Path(sys.executable).with_name("uv"), Path(shutil.which("uv") or "uv"), _own_uv(cache)):
        if (
            uv.is_absolute()
            and uv.with_name("uvx").exists()
            and _run([str(uv), "--version"], os.environ)[0] == 0
        ):
            return uv
    return None


def _own_uv(cache: Path) -> Path:
    return cache / "uv" / "bin" / "uv"


def _install_uv(cache: Path, say: Callable[[str], None]) -> Path:
    say("installing uv …")
    uv = _own_uv(cache)
    for words in (
        [sys.executable, "-I", "-m", "venv", "--clear", str(cache / "uv")],
        [str(uv.with_name("python")), "-I", "-m", "pip", "install", "--quiet", "--no-input", "uv"],
    ):
        code, output = _run(words, os.environ)
        if code != 0:
            raise _not_installed("uv", output, ["Or install uv yourself, by any way that puts it on PATH."])
    return uv


def _uv(uv: Path, words: Sequence[str], environ: Mapping[str, str], cwd: Path, what: str) -> None:
    """Run uv; where it fails, once more with the certificates of the system and the index that pip is set up for.

    Raises:
        DemoFailed: It failed again, or there was nothing else to try.
    """
    code, output = _run([str(uv), *words], environ, cwd)
    if code != 0 and (settings := _other_settings(environ, output)):
        code, output = _run([str(uv), *words], {**environ, **settings}, cwd)
    if code != 0:
        raise _not_installed(what, output)


def _other_settings(environ: Mapping[str, str], output: str) -> dict[str, str]:
    """Return what may help uv, which reads none of pip's settings, after it has failed with that output."""
    settings: dict[str, str] = {}
    if "certificate" in output:
        # One name or the other, by uv's age.
        settings = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"}
    if index := _index_of_pip(environ):
        settings["UV_DEFAULT_INDEX"] = index
    return settings


def _index_of_pip(environ: Mapping[str, str]) -> str | None:
    """Return the index that pip is set up for; None when it is the usual one, or uv has been told another."""
    if environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL"):
        return None
    if said := environ.get("PIP_INDEX_URL"):
        return said
    code, output = _run([sys.executable, "-I", "-m", "pip", "config", "get", "global.index-url"], environ)
    return output.strip() or None if code == 0 else None


def _run(words: Sequence[str], environ: Mapping[str, str], cwd: Path | None = None) -> tuple[int, str]:
    """Run a program that installs something; return its exit code and all it printed."""
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=STEP_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, f"{words[0]} had not ended after {STEP_WITHIN_S:g} s"
    except OSError as err:
        return 127, f"{words[0]}: {err.strerror}"
    return done.returncode, done.stdout


def _not_installed(what: str, output: str, more: Sequence[str] = ()) -> DemoFailed:
    out = "A package registry must be in reach once: HTTPS_PROXY, SSL_CERT_FILE, PIP_INDEX_URL and UV_DEFAULT_INDEX are heeded."
    return DemoFailed(f"{what} could not be installed", [*_last_of(output), out, *more])


def _last_of(output: str) -> list[str]:
    return [line.strip() for line in output.splitlines() if line.strip()][-6:]


@contextlib.contextmanager
def _locked(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Let one demo at a time install.

    Raises:
        DemoFailed: Another one goes on installing for too long.
    """
    import fcntl

    with open(folder / "lock", "w") as file:
        deadline = time.monotonic() + LOCK_WITHIN_S
        waited = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise DemoFailed(f"another demo is still installing into {folder}") from None
                if not waited:
                    say("waiting for another demo, which installs the servers …")
                waited = True
                # flock(2) offers no bounded wait.
                time.sleep(_LOCK_EVERY_S)
        yield
