"""A report on why a value cannot be sent to another process."""

from __future__ import annotations

import sys
import types
from typing import Any, TextIO

from rayshim._core.unpicklable import Culprit, captured_by, culprits, type_name


class FailureTuple:
    """A value that does not pickle, and where it was found.

    Args:
        obj: the value.
        path: the names that lead to it, outermost first.
        parent: what refers to it; None for the value that was asked about.
    """

    def __init__(self, obj: Any, path: tuple[str, ...], parent: Any) -> None:
        self.obj = obj
        self.path = path
        self.parent = parent

    @property
    def name(self) -> str:
        """Last name of the path."""
        return self.path[-1] if self.path else "unknown"

    def __repr__(self) -> str:
        return (
            f"FailTuple({self.name} [path={' -> '.join(self.path)}, obj={self.obj!r}, "
            f"parent={self.parent!r}])"
        )


def inspect_serializability(
    base_obj: Any,
    name: str | None = None,
    depth: int = 3,
    print_file: TextIO | None = None,
) -> tuple[bool, set[FailureTuple]]:
    """Print whether a value pickles, and if not, which parts of it do not.

    Args:
        base_obj: the value.
        name: what to call it in paths.
        depth: how many references to follow.
        print_file: where to print; standard output if left out.

    Returns:
        Whether it pickles, and the innermost parts that do not.

    Example:
        >>> import threading
        >>> lock = threading.Lock()
        >>> fine, failures = inspect_serializability({"a": lock})  # doctest: +ELLIPSIS
        =...
        >>> fine, [failure.path for failure in failures]
        (False, [('a',)])
    """
    out = _Report(sys.stdout if print_file is None else print_file)
    out.headline(f"Checking Serializability of {base_obj!r}")
    found = list(culprits(base_obj, _pickling_error, depth))
    if not found:
        return True, set()
    out.line(f"!!! FAIL serialization: {found[0].error}")
    if isinstance(base_obj, types.FunctionType):
        _list_captured(base_obj, out)
    failures = [_failure(culprit, name) for culprit in found]
    for culprit in found:
        way = " -> ".join(part.words for part in culprit.path) or "the value itself"
        out.line(f"    {way}: {type_name(culprit.value)}")
        out.line(f"    !!! FAIL serialization: {culprit.error}")
    out.rule()
    out.line("Variable:\n")
    for failure in failures:
        out.line(f"\t{failure}")
    out.line(
        "\nwas found to be non-serializable. Make it inside of the function or class "
        "that needs it\ninstead of outside, or leave it out of what is pickled "
        "(__getstate__, __reduce__)."
    )
    out.rule()
    return False, set(failures)


class _Report:
    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._rule = ""

    def line(self, text: str) -> None:
        print(text, file=self._file)

    def rule(self) -> None:
        self.line(self._rule)

    def headline(self, text: str) -> None:
        width = max(len(line) for line in text.splitlines())
        self._rule = "=" * min(80, width)
        self.rule()
        self.line(text)
        self.rule()


def _list_captured(function: types.FunctionType, out: _Report) -> None:
    kinds = {"global variable": "global", "closure variable": "nonlocal"}
    names: dict[str, list[str]] = {}
    for kind, name, _ in captured_by(function):
        names.setdefault(kind, []).append(name)
    for kind, word in kinds.items():
        if kind in names:
            out.line(
                f"Detected {len(names[kind])} {word} variables of "
                f"'{function.__qualname__}': {', '.join(names[kind])}"
            )


def _failure(culprit: Culprit, name: str | None) -> FailureTuple:
    names = ([] if name is None else [name]) + [part.name for part in culprit.path]
    return FailureTuple(culprit.value, tuple(names), culprit.parent)


def _pickling_error(value: Any) -> Exception | None:
    import cloudpickle

    try:
        cloudpickle.dumps(value)
    except Exception as error:
        return error
    return None
