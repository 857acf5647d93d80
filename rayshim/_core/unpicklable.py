"""Why a value cannot be pickled, and what makes a function large.

Both walk from a value to what it refers to, in the words of the program: "closure
variable 'lock' of function 'f'", "attribute 'pool' of Worker", "key 'a'". Only used
when something went wrong or is about to, so clarity goes before speed; the number of
values that are tried is bounded all the same.
"""

from __future__ import annotations

import builtins
import functools
import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

#: How deep and how far the search goes before it names what it has.
MAX_LEVELS = 12
MAX_TRIES = 400
#: Captured values that a size report names.
_REPORTED = 3

#: Gives the error of pickling a value, or None.
Try = Callable[[Any], Exception | None]


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that a value refers to."""

    #: In words, with its holder: "attribute 'lock' of Box".
    words: str
    #: The bare name: "lock".
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Culprit:
    """A value that does not pickle though all that it refers to does."""

    #: The way to it, from the value that was asked about; empty for that itself.
    path: tuple[Part, ...]
    value: Any
    #: What refers to it; None for the value that was asked about.
    parent: Any
    error: Exception


def describe_failure(value: Any, error: BaseException) -> str:
    """Say in one line where in a value pickling fails, and why.

    Args:
        value: what could not be serialized.
        error: what the attempt raised.

    Returns:
        Such as ``closure variable 'lock' of function 'f' -> _thread.lock: cannot
        pickle '_thread.lock' object``.
    """
    found = next(culprits(value, _serialization_error), None)
    if found is None:
        # It works now; what the attempt said is all there is.
        return f"{type_name(value)}: {_reason(error)}"
    steps = [part.words for part in found.path]
    return f"{' -> '.join([*steps, type_name(found.value)])}: {_reason(found.error)}"


def culprits(
    value: Any, attempt: Try, max_levels: int = MAX_LEVELS
) -> Iterator[Culprit]:
    """Find the innermost values that do not pickle.

    Args:
        value: where to begin.
        attempt: tries to pickle one value.
        max_levels: how many references to follow; what lies there counts as innermost.
    """
    error = attempt(value)
    if error is not None:
        yield from _Search(attempt, max_levels).below(value, None, (), error)


class _Search:
    def __init__(self, attempt: Try, max_levels: int) -> None:
        self._attempt = attempt
        self._max_levels = max_levels
        self._tries_left = MAX_TRIES
        #: Values on which the search was, kept alive so that ids stay theirs.
        self._seen: dict[int, Any] = {}

    def below(
        self, value: Any, parent: Any, path: tuple[Part, ...], error: Exception
    ) -> Iterator[Culprit]:
        self._seen[id(value)] = value
        is_found = False
        if len(path) < self._max_levels:
            for part in parts_of(value):
                if id(part.value) in self._seen or self._tries_left <= 0:
                    continue
                self._tries_left -= 1
                reason = self._attempt(part.value)
                if reason is not None:
                    is_found = True
                    yield from self.below(part.value, value, (*path, part), reason)
        if not is_found:
            yield Culprit(path, value, parent, error)


def parts_of(value: Any) -> Iterator[Part]:
    """What a value refers to and pickles along."""
    if isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, types.MethodType):
        yield Part(f"instance of method {value.__name__!r}", "self", value.__self__)
        yield Part(f"function of method {value.__name__!r}", "func", value.__func__)
    elif isinstance(value, functools.partial):
        yield Part("function of partial", "func", value.func)
        for index, argument in enumerate(value.args):
            yield Part(f"argument {index} of partial", str(index), argument)
        for name, argument in value.keywords.items():
            yield Part(f"argument {name!r} of partial", name, argument)
    elif isinstance(value, type):
        yield from _parts_of_class(value)
    elif isinstance(value, dict):
        for key, item in list(value.items()):
            yield Part(f"key {_short(key)}", str(key), item)
            if not isinstance(key, (str, int)):
                yield Part(f"the key {_short(key)} itself", str(key), key)
    elif isinstance(value, (list, tuple, deque)):
        for index, item in enumerate(list(value)):
            yield Part(f"element {index}", str(index), item)
    elif isinstance(value, (set, frozenset)):
        for item in list(value):
            yield Part(f"element {_short(item)}", _short(item), item)
    if not isinstance(value, (type, types.FunctionType, types.MethodType)):
        yield from _parts_of_instance(value)


def _parts_of_function(function: types.FunctionType) -> Iterator[Part]:
    owner = f"of function {function.__qualname__.rpartition('<locals>.')[2]!r}"
    for kind, name, value in captured_by(function):
        yield Part(f"{kind} {name!r} {owner}", name, value)
    for name, value in vars(function).items():
        yield Part(f"attribute {name!r} {owner}", name, value)


def captured_by(function: types.FunctionType) -> Iterator[tuple[str, str, Any]]:
    """What a function needs from outside: (kind, name, value)."""
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            yield "closure variable", name, cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__:
            value = function.__globals__[name]
            if not isinstance(value, types.ModuleType):
                yield "global variable", name, value
    yield from _defaults_of(function)


def _defaults_of(function: types.FunctionType) -> Iterator[tuple[str, str, Any]]:
    code = function.__code__
    defaults = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    for name, value in zip(names[len(names) - len(defaults) :], defaults, strict=True):
        yield "default of parameter", name, value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield "default of parameter", name, value


def _global_names(code: types.CodeType) -> set[str]:
    """Names that a function and those inside of it look up outside."""
    names = {name for name in code.co_names if not hasattr(builtins, name)}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def _parts_of_class(cls: type) -> Iterator[Part]:
    for name, member in list(vars(cls).items()):
        if isinstance(member, (staticmethod, classmethod)):
            member = member.__func__
        if isinstance(member, property):
            for function in (member.fget, member.fset, member.fdel):
                if function is not None:
                    yield Part(f"property {name!r} of {cls.__name__}", name, function)
        elif isinstance(member, types.FunctionType):
            yield Part(f"method {name!r} of {cls.__name__}", name, member)
        elif not name.startswith("__"):
            yield Part(f"attribute {name!r} of {cls.__name__}", name, member)


def _parts_of_instance(value: Any) -> Iterator[Part]:
    owner = type(value).__name__
    if _reduces_itself(type(value)):
        try:
            reduced = value.__reduce_ex__(5)
        except Exception:
            reduced = ()
        if isinstance(reduced, tuple):
            for words, part in zip(("arguments", "state"), reduced[1:3], strict=False):
                if part is not None:
                    yield Part(f"what {owner}.__reduce__ gives as {words}", words, part)
            return
    for name, member in list(getattr(value, "__dict__", {}).items()):
        yield Part(f"attribute {name!r} of {owner}", name, member)
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield Part(f"attribute {name!r} of {owner}", name, getattr(value, name))


def _reduces_itself(cls: type) -> bool:
    """Whether instances say on their own what is pickled of them."""
    for base in cls.__mro__[:-1]:
        if base.__module__ == "builtins":
            return False
        if {"__reduce__", "__reduce_ex__", "__getstate__"} & vars(base).keys():
            return True
    return False


def size_report(function: Any) -> str:
    """Say which captured values make a function or class large, largest first.

    Returns:
        Such as ``closure variable 'data' of function 'f' (ndarray, 80.0 MiB)``.
    """
    sizes = []
    for part in _captured_parts(function):
        size_bytes = pickled_size_bytes(part.value)
        if size_bytes:
            sizes.append((size_bytes, f"{part.words} ({_class_name(part.value)}"))
    sizes.sort(key=lambda item: -item[0])
    named = [f"{text}, {_mebibytes(size)})" for size, text in sizes[:_REPORTED]]
    if len(sizes) > _REPORTED:
        rest = sum(size for size, _ in sizes[_REPORTED:])
        named.append(f"{len(sizes) - _REPORTED} more ({_mebibytes(rest)})")
    return ", ".join(named) or "nothing from outside; its own code is that large"


def _captured_parts(function: Any) -> Iterator[Part]:
    for part in parts_of(function):
        if isinstance(function, type) and isinstance(part.value, types.FunctionType):
            yield from parts_of(part.value)
        else:
            yield part


def pickled_size_bytes(value: Any) -> int:
    """Bytes of a value in pickled form; 0 if it does not pickle."""
    from rayshim._core.serialization import serialize

    try:
        return serialize(value).total_bytes
    except Exception:
        return 0


def _mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"


def _serialization_error(value: Any) -> Exception | None:
    from rayshim._core.serialization import serialize

    try:
        serialize(value)
    except Exception as error:
        return error
    return None


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def type_name(value: Any) -> str:
    """Name functions and classes; of other values, their class."""
    if isinstance(value, types.FunctionType):
        return f"function {value.__qualname__!r}"
    if isinstance(value, type):
        return f"class {value.__qualname__!r}"
    return _class_name(value)


def _class_name(value: Any) -> str:
    cls = type(value)
    if cls.__module__ in ("builtins", "__main__"):
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        return type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
