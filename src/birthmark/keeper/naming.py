"""A name for a command nobody named: what it really runs, seen through the launchers in front of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from birthmark.core.service import API_SERVER_SERVICE, ServiceName

# Launchers, and those of their options that take a value of their own in the next word.
_LAUNCHERS: Final[dict[str, frozenset[str]]] = {
    "npx": frozenset({"-p", "--package", "-w", "--workspace", "-c", "--call"}),
    "bunx": frozenset({"-p", "--package"}),
    "pnpx": frozenset(),
    "uvx": frozenset({"--from", "--with", "-p", "--python", "--index", "--index-url", "--directory", "--env-file"}),
    "pipx": frozenset({"--spec", "--python", "--index-url"}),
    "env": frozenset({"-u", "--unset", "-C", "--chdir"}),
    "nice": frozenset({"-n"}),
    "nohup": frozenset(),
    "setsid": frozenset(),
    "stdbuf": frozenset({"-i", "-o", "-e"}),
    "timeout": frozenset({"-s", "--signal", "-k", "--kill-after"}),
    "docker": frozenset({
        "-e", "--env", "--env-file", "-v", "--volume", "--mount", "--name", "-p", "--publish", "--network", "-w",
        "--workdir", "-u", "--user", "--entrypoint", "-l", "--label", "--add-host", "-m", "--memory", "--cpus",
    }),
}  # fmt: skip
_LAUNCHERS["podman"] = _LAUNCHERS["docker"]
_UV_RUN: Final = frozenset(
    {"--with", "--directory", "--project", "-p", "--python", "--env-file", "--extra", "--group"}
)

# Launchers' sub-commands that come before the program.
_VERBS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "npm": (("exec",), ("x",), ("run",)),
    "pnpm": (("dlx",), ("exec",), ("run",)),
    "yarn": (("dlx",), ("exec",), ("run",)),
    "bun": (("x",), ("run",)),
    "deno": (("run",),),
    "uv": (("tool", "run"), ("run",)),
    "poetry": (("run",),),
    "pipx": (("run",),),
    "docker": (("run",),),
    "podman": (("run",),),
}
_INTERPRETERS: Final = frozenset({
    "python", "python2", "python3", "pypy3", "node", "nodejs", "deno", "bun", "ruby", "perl", "php", "java",
    "sh", "bash", "dash", "zsh", "tsx", "ts-node",
})  # fmt: skip
_INTERPRETER_VALUES: Final = frozenset({
    "-W", "-X", "-r", "--require", "--import", "--loader", "-I", "-cp", "-classpath", "--env-file",
})  # fmt: skip

# Files every project has: the folder above says more.
_EVERYWHERE: Final = frozenset({
    "index", "main", "server", "app", "cli", "start", "run", "dist", "build", "src", "lib", "bin", "out",
    "__main__", "node_modules", ".venv", "venv", "scripts", "Scripts",
})  # fmt: skip
_SUFFIXES: Final = (
    ".py",
    ".js",
    ".mjs",
    ".cjs",
    ".ts",
    ".mts",
    ".sh",
    ".rb",
    ".pl",
    ".php",
    ".jar",
    ".exe",
    ".pyz",
)


def service_name_for(command: Sequence[str]) -> ServiceName:
    """Return a service name for the command; always a valid one."""
    words = [word for word in command if word]
    return _as_name(_through(words) if words else "command")


def _through(words: list[str]) -> str:
    # Each round takes one launcher off, so there are at most as many as words.
    for _ in range(len(words)):
        program = _stem(words[0])
        rest = words[1:]
        if program in _VERBS:
            valued = _UV_RUN if program == "uv" else _LAUNCHERS.get(program, frozenset())
            verb = next((verb for verb in _VERBS[program] if tuple(rest[: len(verb)]) == verb), None)
            if verb is not None:
                rest = _after_options(rest[len(verb) :], valued)
                if rest and program in ("docker", "podman"):
                    return _image(rest[0])
            elif program not in _INTERPRETERS:
                return program
        elif program in _LAUNCHERS:
            rest = _after_options(rest, _LAUNCHERS[program])
            if program == "env":
                rest = _after_assignments(rest)
            elif program == "timeout":
                rest = rest[1:]
        elif not _is_interpreter(program):
            return _meaning(words[0])
        if _is_interpreter(program):
            if "-m" in rest and not any(word in _EVALUATES for word in rest[: rest.index("-m")]):
                module = rest[rest.index("-m") + 1 :]
                return module[0].removesuffix(".__main__") if module else program
            if any(word in _EVALUATES for word in rest[:1]):
                return program
            rest = _after_options(rest, _INTERPRETER_VALUES)
            return _meaning(rest[0]) if rest else program
        if not rest:
            return program
        words = rest
    return _stem(words[0])


_EVALUATES: Final = frozenset({"-c", "-e", "--eval", "-p", "--print"})


def _is_interpreter(program: str) -> bool:
    return program in _INTERPRETERS or program.rstrip("0123456789.") in ("python", "pypy")


def _after_options(words: list[str], valued: frozenset[str]) -> list[str]:
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        if words[at] == "--":
            return words[at + 1 :]
        at += 2 if words[at] in valued else 1
    return words[at:]


def _after_assignments(words: list[str]) -> list[str]:
    at = 0
    while at < len(words) and "=" in words[at]:
        at += 1
    return words[at:]


def _meaning(path: str) -> str:
    """Return the most telling part of a program's path or a package's name."""
    if "/" in path and not path.startswith("@"):
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        for part in reversed(parts):
            stem = _without_suffix(part)
            if stem not in _EVERYWHERE:
                return stem
        return _without_suffix(parts[-1]) if parts else path
    return _package(path)


def _package(name: str) -> str:
    """Take the scope and the version off: ``@scope/name@1.2``, ``name[extra]==1.2``, ``git+https://…/name``."""
    name = name.rsplit("/", 1)[-1]
    head = name[1:].partition("@")[0]
    name = name[:1] + head
    for mark in ("[", "==", ">", "<", "~", "#"):
        name = name.partition(mark)[0]
    return _without_suffix(name.removesuffix(".git"))


def _image(reference: str) -> str:
    return reference.rsplit("/", 1)[-1].partition("@")[0].partition(":")[0]


def _stem(path: str) -> str:
    return _without_suffix(path.rstrip("/").rsplit("/", 1)[-1])


def _without_suffix(name: str) -> str:
    for suffix in _SUFFIXES:
        if name.endswith(suffix) and name != suffix:
            return name[: -len(suffix)]
    return name


def _as_name(text: str) -> ServiceName:
    kept = "".join(c if c.isprintable() and c != "=" else "_" for c in text).strip()
    # The reserved name is the API server's.
    if not kept or kept == API_SERVER_SERVICE:
        kept = f"{kept}-command".lstrip("-")
    return ServiceName(kept)
