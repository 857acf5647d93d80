"""Serializers that users register for their own classes.

A registration belongs to the process that made it. What it pickles carries the
deserializer along, so that any process can read it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import lru_cache
from typing import Any

Reducer = Callable[[Any], "tuple[Callable[..., Any], tuple[Any, ...]]"]

#: class -> function in the manner of ``copyreg``; looked up by exact class. One
#: registry for the process, as for ``copyreg``: picklers have no session.
REDUCERS: dict[type, Reducer] = {}


class _Registered:
    """Pickles an instance as its deserializer and what the serializer made of it."""

    __slots__ = ("_blob", "_deserializer", "_serializer")

    def __init__(
        self, serializer: Callable[[Any], Any], deserializer: Callable[[Any], Any]
    ) -> None:
        self._serializer = serializer
        self._deserializer = deserializer
        #: The pickled deserializer: made once, since a lambda costs 0.1 ms.
        self._blob: bytes | None = None

    def __call__(self, value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self._blob is None:
            import cloudpickle

            self._blob = cloudpickle.dumps(self._deserializer)
        return restore, (self._blob, self._serializer(value))


@lru_cache(maxsize=256)
def _deserializer_of(blob: bytes) -> Callable[[Any], Any]:
    loaded: Callable[[Any], Any] = pickle.loads(blob)
    return loaded


def restore(blob: bytes, payload: Any) -> Any:
    """Rebuilds an instance; pickles refer to this function by its name."""
    return _deserializer_of(blob)(payload)


def register_serializer(
    cls: type,
    *,
    serializer: Callable[[Any], Any],
    deserializer: Callable[[Any], Any],
) -> None:
    """Uses own functions to serialize instances of a class.

    They apply to instances of exactly this class, not of its subclasses, wherever
    they occur in values and arguments that this process serializes. Built-in types
    that pickle writes itself (numbers, strings, lists, dictionaries) are not
    affected when they are nested.

    Args:
        cls: the class.
        serializer: takes an instance and returns something that can be pickled.
        deserializer: takes what ``serializer`` returned, in whatever process reads
            the value, and returns the instance.

    Example:
        >>> class Celsius:
        ...     def __init__(self, degrees):
        ...         self.degrees = degrees
        >>> register_serializer(
        ...     Celsius,
        ...     serializer=lambda value: value.degrees,
        ...     deserializer=lambda degrees: Celsius(degrees),
        ... )
        >>> deregister_serializer(Celsius)
    """
    REDUCERS[cls] = _Registered(serializer, deserializer)


def deregister_serializer(cls: type) -> None:
    """Forgets the functions registered for a class, if there are any."""
    REDUCERS.pop(cls, None)
