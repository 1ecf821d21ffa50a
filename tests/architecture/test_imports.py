"""Which way imports go. Read from the source, not run."""

from __future__ import annotations

import ast
import sys
import tomllib
from typing import Final

from tests.architecture.reading import NAME, PACKAGE, ROOT, Import, imports, modules

FLOORS: Final = ("core", "platforms", "children", "keeper", "supervisor", "interfaces")
"""From the ground up. Everyone may import what is below, skipping floors; nobody what is beside or above."""
BESIDE: Final = ("registry", "config")
"""Beside the keeper: these know values and errors only, and are used from the supervisor up."""

MAY_IMPORT: Final[dict[str, set[str]]] = {
    **{floor: {*FLOORS[: height + 1], "errors"} for height, floor in enumerate(FLOORS)},
    **{room: {room, "core", "errors"} for room in BESIDE},
    "core": {"core"},
    "errors": {"core"},
    "_native": {"_native"},
    "testing": {"testing", *FLOORS, *BESIDE, "errors"},
    "": {*FLOORS, "errors"},
    "__main__": {"keeper", "interfaces"},
}
for above in ("supervisor", "interfaces"):
    MAY_IMPORT[above] |= {*BESIDE}
MAY_IMPORT["platforms"] |= {"_native"}

COMPUTES: Final = {
    "__future__", "abc", "base64", "bisect", "collections", "contextlib", "dataclasses", "datetime", "difflib", "enum",
    "functools", "graphlib", "hashlib", "heapq", "ipaddress", "itertools", "math", "operator", "re", "shlex",
    "signal", "string", "struct", "sys", "types", "typing", "unicodedata", "uuid",
}  # fmt: skip
"""What core may use of the standard library: what computes. Time, files and processes arrive as arguments."""


def ours() -> list[Import]:
    return [each for each in imports() if each.top == NAME]


def test_every_room_stands_in_the_drawing() -> None:
    assert {module.room for module in modules()} - set(MAY_IMPORT) == set()


def test_imports_go_down_only() -> None:
    wrong = [
        f"{each.where}: {each.module.room or NAME} imports {each.target}"
        for each in ours()
        # The front door holds the version beside the public names, and is loaded before any room anyway.
        if each.room and each.room not in MAY_IMPORT.get(each.module.room, set())
    ]
    assert wrong == []


def test_only_platforms_import_the_native_spawner() -> None:
    wrong = [
        each.where
        for each in ours()
        if each.room == "_native" and each.module.room not in ("platforms", "_native")
    ]
    assert wrong == []


def test_nothing_imports_testing() -> None:
    wrong = [each.where for each in ours() if each.room == "testing" and each.module.room != "testing"]
    assert wrong == []


def test_core_imports_only_what_computes() -> None:
    wrong = [
        f"{each.where}: {each.target}"
        for each in imports()
        if each.module.room == "core" and each.top not in COMPUTES | {NAME}
    ]
    assert wrong == []


def test_core_takes_only_constants_of_the_interpreter_from_sys() -> None:
    wrong = [
        f"{module.at(node)}: sys.{node.attr}"
        for module in modules()
        if module.room == "core"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sys"
        if node.attr not in ("byteorder", "maxsize")
    ]
    assert wrong == []


def test_core_and_platforms_never_wait_for_an_event_loop() -> None:
    wrong = [
        f"{each.where}: {each.target}"
        for each in imports()
        if each.module.room in ("core", "platforms", "_native", "keeper")
        and each.top in ("asyncio", "anyio", "trio")
    ]
    wrong += [
        module.at(node)
        for module in modules()
        if module.room in ("core", "platforms", "_native")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.AsyncFunctionDef | ast.Await)
    ]
    assert wrong == []


def declared() -> set[str]:
    """Return the names of what pyproject.toml says is needed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {})
    lines = [*project["dependencies"], *(each for extra in extras.values() for each in extra)]
    # The name is what stands before the first character that no name has.
    return {"".join(c if c.isalnum() else " " for c in each).split()[0] for each in lines}


def test_every_import_from_outside_is_a_declared_dependency() -> None:
    names = declared()
    wrong = [
        f"{each.where}: {each.target}"
        for each in imports()
        if each.top not in sys.stdlib_module_names and each.top not in names | {NAME}
    ]
    assert wrong == []


def test_every_declared_dependency_is_imported() -> None:
    assert declared() - {each.top for each in imports()} == set()


def test_every_folder_with_source_is_a_package() -> None:
    """So that names are found the same way in the tree, in a wheel and by the type checker."""
    folders = {path.parent for pattern in ("*.py", "*.c") for path in PACKAGE.rglob(pattern)}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []
