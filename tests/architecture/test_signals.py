"""Who may signal, and who may look at the kernel. Read from the source, not run."""

from __future__ import annotations

import ast
import re
from typing import Final

from tests.architecture.reading import PACKAGE, ROOT, Module, docstrings, functions, modules

SIGNALLING: Final = {"kill", "killpg", "pidfd_send_signal", "TerminateProcess", "TerminateJobObject"}
"""Names that signal a process by number or descriptor, whoever provides them: os, signal, a C library."""
BY_OBJECT: Final = {"send_signal", "terminate"}
"""Methods of process objects (subprocess, psutil, asyncio) that signal; `kill` is in the first set."""
KERNEL: Final = {"waitid", "pidfd_open", *SIGNALLING}
KERNEL_FILES: Final = re.compile(r"^/proc/(?!self/fd/)|cgroup\.kill")
"""Files about processes. A path through a descriptor of our own is about no process."""

DOORS: Final = {
    "birthmark.platforms.posix": {"deliver", "_send"},
    "birthmark.platforms.windows": {"deliver"},
}
"""The one function that signals, once for each family of systems; `_send` is its step, called by nobody else."""

THROUGH_THE_DOOR: Final = {("birthmark.interfaces.demo.play", "house.kill")}
"""Methods of our own with such a name, which go through `deliver` themselves."""


def questions(module: Module) -> set[int]:
    """Return the ids of the functions' names in calls with the literal signal 0."""
    return {
        id(node.func)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and len(node.args) > 1
        and isinstance(node.args[1], ast.Constant)
        and node.args[1].value == 0
    }


def signals(module: Module) -> list[tuple[str, str]]:
    """Return (function, place) of everything in the module that signals or could be called to.

    A call with the literal signal 0 is none: it asks and delivers nothing.
    """
    asking = questions(module)
    found = []
    for function, node in functions(module):
        name = ""
        if isinstance(node, ast.Attribute) and id(node) not in asking:
            name = "" if (module.name, ast.unparse(node)) in THROUGH_THE_DOOR else node.attr
        elif isinstance(node, ast.ImportFrom) and node.module in ("os", "signal", "_signal", "posix"):
            name = next((alias.name for alias in node.names if alias.name in SIGNALLING), "")
        if name in SIGNALLING | BY_OBJECT:
            found.append((function.split(".")[0], f"{module.at(node)}: {name}"))
    return found


def test_one_function_signals() -> None:
    wrong = [
        place
        for module in modules()
        for function, place in signals(module)
        if function not in DOORS.get(module.name, ())
    ]
    assert wrong == []


def test_the_step_that_signals_is_taken_by_that_function_only() -> None:
    def names_it(module: Module, node: ast.AST) -> bool:
        return (
            (isinstance(node, ast.Name) and node.id == "_send" and module.name in DOORS)
            or (
                isinstance(node, ast.Attribute)
                and node.attr == "_send"
                and ast.unparse(node.value) == "posix"
            )
            or (
                isinstance(node, ast.ImportFrom)
                and node.module in DOORS
                and any(alias.name == "_send" for alias in node.names)
            )
        )

    callers = {
        (module.name, function)
        for module in modules()
        for function, node in functions(module)
        if names_it(module, node) and id(node) not in questions(module)
    }
    assert callers == {("birthmark.platforms.posix", "deliver")}


def test_the_one_function_is_there_and_signals() -> None:
    """Otherwise the tests above would pass on a tree in which nothing is found at all."""
    posix = next(module for module in modules() if module.name == "birthmark.platforms.posix")
    assert {"pidfd_send_signal", "kill", "killpg"} <= {place.split(": ")[1] for _, place in signals(posix)}


def test_the_native_spawner_ends_only_a_child_nobody_was_told_of() -> None:
    """Its one function for that holds a child of its own, not yet reaped, whose birth was never reported."""
    comment = re.compile(r"/\*.*?\*/|//[^\n]*|^#[^\n]*", re.DOTALL | re.MULTILINE)
    allowed = re.compile(r"^static void kill_unclaimed\(.*?^}", re.DOTALL | re.MULTILINE)
    call = re.compile(r"\b(?:kill|killpg|tgkill|tkill|sigqueue|SYS_pidfd_send_signal|SYS_\w*kill)\b")
    wrong = [
        f"{path.relative_to(ROOT)}: {found.group()}"
        for path in PACKAGE.rglob("*.[ch]")
        for found in call.finditer(allowed.sub("", comment.sub("", path.read_text())))
    ]
    assert wrong == []


def test_only_platforms_speak_to_the_kernel_about_pids() -> None:
    wrong = [
        f"{module.at(node)}: {node.attr}"
        for module in modules()
        if module.room != "platforms"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr in KERNEL
        if (module.name, ast.unparse(node)) not in THROUGH_THE_DOOR
    ]
    assert wrong == []


def test_only_platforms_read_procfs() -> None:
    wrong = []
    for module in modules():
        if module.room == "platforms":
            continue
        documentation = docstrings(module)
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Constant) or id(node) in documentation:
                continue
            text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
            if isinstance(text, str) and KERNEL_FILES.search(text):
                wrong.append(f"{module.at(node)}: {text!r}")
    assert wrong == []


def test_nothing_is_ended_by_name_or_through_a_shell() -> None:
    words = re.compile(r"\b(p" + r"kill|kill" + r"all|os\.system|os\.popen)\b")
    wrong = [
        f"{path.relative_to(ROOT)}: {found.group()}"
        for folder in ("src", "workshop", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("*.py")
        for found in words.finditer(path.read_text())
    ]
    wrong += [
        f"{module.at(node)}: a shell"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.keyword)
        and node.arg == "shell"
        and not (isinstance(node.value, ast.Constant) and node.value.value is False)
    ]
    assert wrong == []
