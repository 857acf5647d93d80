"""Finds the nodes in arguments, and puts values in their places.

Lists, tuples, dicts and sets are looked through as they are. Other objects are looked
through by pickling them with every node set aside, and rebuilt when there is one: so a
node is found in an attribute of a user's object, too. What cannot be pickled has none.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

from rayshim._core.refs import ObjectRef
from rayshim.actor import ActorClass, ActorHandle, ActorMethod
from rayshim.remote_function import RemoteFunction

#: These hold no node, or are no copy of themselves when they are pickled.
_LEAVES = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    memoryview,
    range,
    type,
    ObjectRef,
    ActorHandle,
    ActorClass,
    ActorMethod,
    RemoteFunction,
)


class NodeBase:
    """What is looked for in arguments."""


class _Replacer:
    """Walks through a value and gives a copy with its nodes replaced."""

    def __init__(self, visit: Callable[[Any], Any]) -> None:
        self._visit = visit
        self.found = False

    def replace(self, value: Any) -> Any:
        if isinstance(value, NodeBase):
            self.found = True
            return self._visit(value)
        kind = type(value)
        if kind in (list, set, frozenset):
            return kind([self.replace(item) for item in value])
        if kind is tuple:
            return tuple([self.replace(item) for item in value])
        if kind is dict:
            return {
                self.replace(key): self.replace(item) for key, item in value.items()
            }
        if isinstance(value, _LEAVES) or _is_plain_array(value):
            return value
        return self._replace_inside(value)

    def _replace_inside(self, value: Any) -> Any:
        aside: list[Any] = []
        nodes = 0

        class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # ships no types
            def persistent_id(self, item: Any) -> int | None:
                nonlocal nodes
                if isinstance(item, NodeBase):
                    nodes += 1
                elif not isinstance(item, _LEAVES[-5:]):
                    return None
                aside.append(item)
                return len(aside) - 1

        replacer = self

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, index: int) -> Any:
                item = aside[index]
                return replacer.replace(item) if isinstance(item, NodeBase) else item

        stream = io.BytesIO()
        try:
            Pickler(stream, protocol=5).dump(value)
        except Exception:  # whatever a user's reducer raises
            return value
        if not nodes:
            return value
        stream.seek(0)
        return Unpickler(stream).load()


def _is_plain_array(value: Any) -> bool:
    """Whether it is an array or a frame of numbers: large, and without objects."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and not getattr(dtype, "hasobject", True)


def replace_nodes(value: Any, visit: Callable[[Any], Any]) -> Any:
    """A copy of ``value`` with ``visit(node)`` in the place of each node.

    Containers are copied, what has no node in it is not.
    """
    return _Replacer(visit).replace(value)


def find_nodes(value: Any) -> list[Any]:
    """The nodes in ``value``, each once, as they come."""
    found: dict[int, Any] = {}

    def note(node: Any) -> Any:
        found.setdefault(id(node), node)
        return None

    # A set of nodes that become None is no matter here.
    _Replacer(note).replace(value)
    return list(found.values())


def iterate_nested(args: Iterator[Any]) -> Iterator[tuple[Any, int]]:
    """Arguments that are no node but have some in them, and how many."""
    for arg in args:
        if not isinstance(arg, NodeBase):
            count = len(find_nodes(arg))
            if count:
                yield arg, count
