"""What the tests of layout and layering know about the source tree."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Package name -> its folder in the checkout.
SOURCE_FOLDERS = {
    "rayshim": ROOT / "rayshim",
    "rayshim.adapters": ROOT / "adapters",
    "rayshim.k8s": ROOT / "k8s",
    "rayshim.lineage": ROOT / "lineage",
}


@dataclass(frozen=True, slots=True)
class Import:
    """One name that a module imports."""

    name: str
    line: int
    #: Whether it runs when the module is imported.
    at_import_time: bool


def modules() -> dict[str, Path]:
    """Every module of the project: full name -> file, links not followed."""
    found: dict[str, Path] = {}
    for package, folder in SOURCE_FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):  # rglob does not enter links
            parts = path.relative_to(folder).with_suffix("").parts
            if any(
                one.startswith("_site") for one in parts
            ):  # data, see pyproject.toml
                continue
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join((package, *parts))] = path
    return found


def imports_of(name: str, path: Path) -> Iterator[Import]:
    """What a module imports, relative names made absolute."""
    tree = ast.parse(path.read_text(), str(path))
    yield from _imports_below(tree, _package_of(name, path), at_import_time=True)


def _package_of(name: str, path: Path) -> str:
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def _imports_below(
    node: ast.AST, package: str, *, at_import_time: bool
) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        runs = at_import_time
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            runs = False
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            runs = False
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, runs)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                parents = package.split(".")[
                    : len(package.split(".")) - child.level + 1
                ]
                base = ".".join([*parents, *filter(None, [child.module])])
            for alias in child.names:
                yield Import(f"{base}.{alias.name}", child.lineno, runs)
        yield from _imports_below(child, package, at_import_time=runs)


def is_below(name: str, packages: set[str] | frozenset[str]) -> bool:
    """Whether a dotted name is one of `packages` or inside one."""
    return any(name == p or name.startswith(p + ".") for p in packages)


def project_table() -> dict[str, object]:
    """The parsed pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())
