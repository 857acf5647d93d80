"""Own serializers for classes, and serializing outside of a session."""

from __future__ import annotations

import pickle
from typing import Any

from rayshim._core.custom_serializers import (
    deregister_serializer,
    register_serializer,
)

__all__ = [
    "StandaloneSerializationContext",
    "deregister_serializer",
    "register_serializer",
]


class StandaloneSerializationContext:
    """Serializes values as the object store does, without a session.

    Example:
        >>> context = StandaloneSerializationContext()
        >>> serialized = context.serialize({"a": [1, 2]})
        >>> context.deserialize(serialized)
        {'a': [1, 2]}
    """

    def serialize(self, value: Any) -> Any:
        """A value in serialized form: a stream, and views of its large buffers."""
        from rayshim._core import serialization

        return serialization.serialize(value)

    def deserialize(self, serialized: Any) -> Any:
        """The value again."""
        return pickle.loads(serialized.stream, buffers=serialized.buffers)
