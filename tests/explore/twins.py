"""Copies of small machines, several times faster than ``copy.deepcopy``."""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import Enum, EnumMeta
from types import FunctionType
from typing import Any, TypeVar

T = TypeVar("T")

_SHARED = {int, str, bytes, bool, float, type(None), type, tuple, frozenset}
_SHARED |= {EnumMeta, FunctionType}
_SLOTS: dict[type, tuple[str, ...]] = {}


def twin_of(thing: T) -> T:
    """A copy that shares only what cannot change.

    Tuples count as unchangeable, and no object may be reached in two ways: what was
    shared inside ``thing`` is not shared inside the copy.
    """
    kind: Any = type(thing)
    shared = _SHARED
    if kind in shared:
        return thing
    if kind is dict or kind is OrderedDict:
        twin = kind(thing)
        for key, value in twin.items():
            if type(value) not in shared:
                twin[key] = twin_of(value)
        return twin  # type: ignore[no-any-return]
    if kind is list or kind is deque:
        if not thing:
            return kind()  # type: ignore[no-any-return]
        return kind([one if type(one) in shared else twin_of(one) for one in thing])  # type: ignore[no-any-return, attr-defined]
    if kind is set:
        return kind(thing)  # type: ignore[no-any-return]
    if isinstance(thing, Enum | tuple):
        shared.add(kind)
        return thing
    twin = kind.__new__(kind)
    if hasattr(thing, "__dict__"):
        twin.__dict__.update(thing.__dict__)
        for name, value in thing.__dict__.items():
            if type(value) not in shared:
                twin.__dict__[name] = twin_of(value)
    names = _SLOTS.get(kind)
    if names is None:
        names = _SLOTS[kind] = tuple(
            name for one in kind.__mro__ for name in getattr(one, "__slots__", ())
        )
    for name in names:
        value = getattr(thing, name)
        setattr(twin, name, value if type(value) in shared else twin_of(value))
    return twin  # type: ignore[no-any-return]
