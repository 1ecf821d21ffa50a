"""The source read as text and syntax trees, once; what the checks in this folder look at."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "src/birthmark"
NAME: Final = "birthmark"


@dataclass(frozen=True, slots=True)
class Module:
    """One source file under its dotted name."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def room(self) -> str:
        """Return the part below `birthmark` that it belongs to: `core`, `errors`, or `` for the front door."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else ""

    def at(self, node: ast.AST) -> str:
        """Return where a node is, for a message."""
        return f"{self.path.relative_to(ROOT)}:{getattr(node, 'lineno', '?')}"


@dataclass(frozen=True, slots=True)
class Import:
    """One name that one module imports, written out: `birthmark.core.identity`, `os`."""

    module: Module
    target: str
    where: str

    @property
    def top(self) -> str:
        return self.target.split(".")[0]

    @property
    def room(self) -> str:
        """Return our room that is imported; `` for the front door. For imports of ours only."""
        parts = self.target.split(".")
        return parts[1] if len(parts) > 1 else ""


@cache
def modules() -> tuple[Module, ...]:
    """Return every module of the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = [NAME, *path.relative_to(PACKAGE).with_suffix("").parts]
        if parts[-1] == "__init__":
            del parts[-1]
        found.append(Module(".".join(parts), path, ast.parse(path.read_text(encoding="utf-8"), str(path))))
    return tuple(found)


@cache
def imports() -> tuple[Import, ...]:
    """Return every import of the package, those inside functions and `if TYPE_CHECKING` included."""
    return tuple(found for module in modules() for found in imports_of(module))


def imports_of(module: Module) -> Iterator[Import]:
    known = {each.name for each in modules()}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, module.at(node))
        elif isinstance(node, ast.ImportFrom):
            base = absolute(module, node)
            for alias in node.names:
                # `from birthmark.platforms import linux` imports a module, `… import load` does not.
                deeper = f"{base}.{alias.name}"
                yield Import(module, deeper if deeper in known else base, module.at(node))


def absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = module.name.split(".")
    if module.path.name != "__init__.py":
        del package[-1]
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, *([node.module] if node.module else [])])


def functions(module: Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield every node with the dotted name of the function or class it stands in; `` at the top."""

    def walk(node: ast.AST, inside: str) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            yield inside, child
            deeper = inside
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                deeper = f"{inside}.{child.name}".lstrip(".")
            yield from walk(child, deeper)

    return walk(module.tree, "")


def docstrings(module: Module) -> set[int]:
    """Return the ids of the string nodes that are documentation: bare strings standing as statements."""
    return {
        id(node.value)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
