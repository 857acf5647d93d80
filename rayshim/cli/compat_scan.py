"""Finds which names of Ray a program uses, and what rayshim makes of each.

The program is read, not run: aliases of imports are followed, attributes of values are
not (a method of an unknown object cannot be told from any other).
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayshim.cli.compat_notes import DIFFERENT, REFUSED

SUPPORTED, OTHER, NOT_SUPPORTED, MISSING = (
    "supported",
    "different",
    "refused",
    "missing",
)
#: From the best to the worst.
STATES = (SUPPORTED, OTHER, NOT_SUPPORTED, MISSING)


@dataclass(slots=True)
class Use:
    """A name of Ray in a program."""

    #: As in ``ray.util.queue.Queue``.
    name: str
    #: Where it is written, ``file:line``, at most a few.
    places: list[str] = field(default_factory=list)
    #: Keywords that it is called with.
    keywords: set[str] = field(default_factory=set)
    state: str = SUPPORTED
    note: str = ""

    def row(self) -> dict[str, str]:
        """For a table."""
        return {
            "name": self.name,
            "state": self.state,
            "where": ", ".join(self.places),
            "note": self.note,
        }


class _Finder(ast.NodeVisitor):
    """Collects the uses of one module."""

    def __init__(self, path: Path, uses: dict[str, Use]) -> None:
        self._path = path
        self._uses = uses
        #: Name in the program -> name of Ray's.
        self._aliases: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> None:
        """``import ray.x as y``."""
        for alias in node.names:
            if alias.name == "ray" or alias.name.startswith("ray."):
                name = alias.name if alias.asname else "ray"
                self._aliases[alias.asname or "ray"] = name
                if alias.name != "ray":
                    self._note(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """``from ray.x import y``."""
        module = node.module or ""
        if node.level or (module != "ray" and not module.startswith("ray.")):
            return
        for alias in node.names:
            if alias.name == "*":
                self._note(module, node)
                continue
            name = f"{module}.{alias.name}"
            self._aliases[alias.asname or alias.name] = name
            self._note(name, node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """``ray.x.y``: the longest chain."""
        name = self._name(node)
        if name is None:
            self.generic_visit(node)
        else:
            self._note(name, node)

    def visit_Name(self, node: ast.Name) -> None:
        """``y`` after an import of it."""
        name = self._aliases.get(node.id)
        if name is not None and name != "ray":
            self._note(name, node)

    def visit_Call(self, node: ast.Call) -> None:
        """Keywords of a call of a name of Ray's."""
        name = self._name(node.func)
        if name is not None:
            use = self._note(name, node)
            use.keywords |= {one.arg for one in node.keywords if one.arg}
            for part in (*node.args, *node.keywords):
                self.visit(part)
        else:
            self.generic_visit(node)

    def _name(self, node: ast.expr) -> str | None:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._aliases:
            return None
        return ".".join([self._aliases[node.id], *reversed(parts)])

    def _note(self, name: str, node: ast.AST) -> Use:
        use = self._uses.setdefault(name, Use(name))
        place = f"{self._path.name}:{getattr(node, 'lineno', 0)}"
        if place not in use.places and len(use.places) < 3:
            use.places.append(place)
        return use


def scan(paths: list[Path]) -> list[Use]:
    """What programs use of Ray, worst first.

    Args:
        paths: files, or folders whose ``*.py`` files are read.

    Raises:
        SyntaxError: a file is no Python.
        OSError: it cannot be read.
    """
    uses: dict[str, Use] = {}
    for path in _files(paths):
        tree = ast.parse(path.read_bytes(), filename=str(path))
        _Finder(path, uses).visit(tree)
    for use in uses.values():
        _judge(use)
    return sorted(uses.values(), key=lambda use: (-STATES.index(use.state), use.name))


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(path.rglob("*.py"))
        else:
            yield path


def _judge(use: Use) -> None:
    parts = use.name.split(".")
    beginnings = [".".join(parts[: i + 1]) for i in reversed(range(len(parts)))]
    for name in beginnings:
        if name in REFUSED:
            use.state, use.note = NOT_SUPPORTED, REFUSED[name]
            return
    found, thing = _resolve(parts)
    if not found:
        use.state = MISSING
        use.note = thing
        return
    unknown = _unknown_keywords(thing, use.keywords)
    if unknown:
        use.state = NOT_SUPPORTED
        use.note = f"without the parameter {', '.join(sorted(unknown))}"
        return
    for keyword in sorted(use.keywords):
        note = REFUSED.get(f"{use.name}({keyword})")
        if note:
            use.state, use.note = NOT_SUPPORTED, f"{keyword}: {note}"
            return
    for name in beginnings:
        if name in DIFFERENT:
            use.state, use.note = OTHER, DIFFERENT[name]
            return


def _resolve(parts: list[str]) -> tuple[bool, Any]:
    """The thing of a name; or False, and why there is none."""
    thing: Any = importlib.import_module("rayshim")
    for index, part in enumerate(parts[1:], 1):
        module = ".".join(["rayshim", *parts[1 : index + 1]])
        try:
            thing = getattr(thing, part)
            continue
        except AttributeError:
            pass
        except ImportError as error:
            return False, f"needs a package that is not installed: {error}"
        if not inspect.ismodule(thing):
            owner = ".".join(parts[:index])
            return False, f"{owner} has no {part}"
        try:
            thing = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name == module:
                return False, f"there is no {'.'.join(parts[: index + 1])}"
            return False, f"needs the package {error.name}, which is not installed"
        except Exception as error:
            return False, f"{type(error).__name__}: {error}"
    return True, thing


def _unknown_keywords(thing: Any, keywords: set[str]) -> set[str]:
    try:
        parameters = inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return set()
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return set()
    return keywords - parameters.keys()
