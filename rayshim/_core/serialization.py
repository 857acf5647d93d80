"""Values to bytes and back: pickle protocol 5 with out-of-band buffers.

Plain pickle where it is safe and enough (0.25 us for a number), cloudpickle for the
rest (4 us at least): functions and classes of ``__main__`` must travel by value,
which plain pickle cannot do and does not notice. Large binary content leaves the
stream as buffers, so that it is copied once when stored and not at all when read.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
import threading
from collections.abc import Sequence
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, ClassVar

from .arrow_slices import reduce_array
from .arrow_slices import reducers as arrow_reducers
from .custom_serializers import REDUCERS

if TYPE_CHECKING:
    from cloudpickle import Pickler

#: Exact types whose values plain pickle writes, and that nobody can change.
IMMUTABLE = frozenset((int, float, str, bytes, bool, type(None)))
#: What a value of None is as a stream.
PICKLED_NONE = pickle.dumps(None, 5)
#: Exact types of containers that may take the fast path with such values.
_CONTAINERS = frozenset((tuple, list, dict))
#: Numpy dtype kinds that export buffers: bool, int, uint, float, complex, text.
_BUFFER_KINDS = frozenset("biufcSU")
#: From this size on bytes leave the stream: one copy less.
LARGE_BYTES = 100 * 1024
#: Elements, over all levels, that the fast path looks at; more costs more than it
#: saves.
_FEW_ELEMENTS = 64
_FEW_LEVELS = 3


class Collector(threading.local):
    """Where references met while pickling are gathered, for this thread.

    ``ObjectRef.__reduce__`` appends itself to ``refs``; when it is None the pickle
    was made outside of the system and its references must be pinned.
    """

    refs: list[Any] | None = None


collector = Collector()


class Serialized:
    """A value in serialized form."""

    __slots__ = ("buffers", "refs", "stream", "total_bytes")

    def __init__(
        self,
        stream: bytes,
        buffers: list[memoryview] | None = None,
        refs: list[Any] | None = None,
    ) -> None:
        #: The pickle stream.
        self.stream = stream
        #: Out-of-band buffers: C-contiguous views of bytes, in the stream's order.
        #: They view the value itself, which must not change until they are copied.
        self.buffers: list[memoryview] = [] if buffers is None else buffers
        #: The ObjectRefs inside the value, one entry for each occurrence met.
        self.refs: list[Any] = [] if refs is None else refs
        #: Size of the stream and all buffers.
        self.total_bytes = len(stream)
        for view in self.buffers:
            self.total_bytes += view.nbytes


class _LargeBytes:
    """Pickles bytes or a bytearray with its content out of band."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes | bytearray) -> None:
        self._value = value

    def __reduce__(self) -> tuple[type, tuple[pickle.PickleBuffer]]:
        return type(self._value), (pickle.PickleBuffer(self._value),)


def _is_plain(container: Any) -> bool:
    """Whether a small container holds immutable built-in values alone."""
    return _look_into(container, _FEW_ELEMENTS, _FEW_LEVELS) >= 0


def _look_into(container: Any, budget: int, levels: int) -> int:
    """What is left of the budget of elements, negative if they are not plain."""
    if type(container) is dict:
        budget = _look_at(container, budget, levels)
        return budget if budget < 0 else _look_at(container.values(), budget, levels)
    return _look_at(container, budget, levels)


def _look_at(values: Any, budget: int, levels: int) -> int:
    budget -= len(values)
    if budget < 0:
        return budget
    for value in values:
        kind = type(value)
        if kind in IMMUTABLE:
            continue
        if not levels or kind not in _CONTAINERS:
            return -1
        budget = _look_into(value, budget, levels - 1)
        if budget < 0:
            return budget
    return budget


def _is_plain_array(value: Any) -> bool:
    """Whether plain pickle can write a numpy array (its dtype holds no objects)."""
    numpy = sys.modules.get("numpy")
    return (
        numpy is not None
        and type(value) is getattr(numpy, "ndarray", None)
        and value.dtype.kind in _BUFFER_KINDS
        and value.dtype.metadata is None
    )


def serialize(value: Any) -> Serialized:
    """Serializes any value.

    Args:
        value: what to serialize. Large arrays inside are viewed, not copied.

    Returns:
        The stream, the buffers and the references inside.

    Raises:
        Exception: whatever pickling raised, unchanged.
    """
    kind = type(value)
    if kind not in REDUCERS:
        if kind in IMMUTABLE:
            if kind is not bytes or len(value) < LARGE_BYTES:
                return Serialized(pickle.dumps(value, 5))
            return _dump_plain(_LargeBytes(value))
        if kind in _CONTAINERS:
            if _is_plain(value):
                return Serialized(pickle.dumps(value, 5))
        elif kind is bytearray:
            return _dump_plain(_LargeBytes(value))
        elif _is_plain_array(value):
            return _dump_plain(value)
    return _dump(value)


def _dump_plain(value: Any) -> Serialized:
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(value, 5, buffer_callback=buffers.append)
    return Serialized(stream, [buffer.raw() for buffer in buffers])


def _dump(value: Any) -> Serialized:
    pickler_class = _pickler_class()
    buffers: list[pickle.PickleBuffer] = []
    refs: list[Any] = []
    # Saved, since a serializer of the user may store other values meanwhile.
    outer = collector.refs
    collector.refs = refs
    try:
        with io.BytesIO() as file:
            pickler_class(file, protocol=5, buffer_callback=buffers.append).dump(value)
            stream = file.getvalue()
    finally:
        collector.refs = outer
    return Serialized(stream, [buffer.raw() for buffer in buffers], refs)


def serialize_code(target: Any) -> tuple[bytes, list[Any]]:
    """Serialize a function or class by value, everything in one stream.

    Returns:
        The stream, and the references that it captured.
    """
    refs: list[Any] = []
    outer = collector.refs
    collector.refs = refs
    try:
        with io.BytesIO() as file:
            _pickler_class()(file, protocol=5).dump(target)
            return file.getvalue(), refs
    finally:
        collector.refs = outer


#: What cloudpickle calls every file, so that equal code gives equal bytes.
_NO_FILE = "<dynamic-code>"


def _reduce_code(code: CodeType) -> tuple[Any, tuple[Any, ...]]:
    """As cloudpickle, but with the file name, which tracebacks show."""
    import cloudpickle

    make, args = cloudpickle.Pickler.dispatch_table[CodeType](code)
    name = code.co_filename
    return make, tuple(name if part == _NO_FILE else part for part in args)


_pickler: type[Pickler] | None = None


def _pickler_class() -> type[Pickler]:
    """cloudpickle's pickler with the registered serializers, made at first use."""
    global _pickler
    if _pickler is None:
        import cloudpickle

        known = cloudpickle.Pickler.dispatch_table.maps[0]

        class ValuePickler(cloudpickle.Pickler):  # type: ignore[misc]  # untyped
            # A dict: the C pickler asks for each instance, and cloudpickle's
            # ChainMap would make that the larger part of pickling.
            dispatch_table: ClassVar[dict[type, Any]] = {}

            def reducer_override(self, obj: Any) -> Any:
                kind = type(obj)
                if kind in REDUCERS:
                    return REDUCERS[kind](obj)
                if kind is FunctionType or issubclass(kind, type):
                    return super().reducer_override(obj)
                return NotImplemented

            def dump(self, obj: Any) -> None:
                # Modules may have registered reducers since the last time.
                table = self.dispatch_table
                if "pyarrow" in sys.modules and reduce_array not in table.values():
                    table.update(arrow_reducers())
                table.update(copyreg.dispatch_table)
                table.update(known)
                table[CodeType] = _reduce_code
                super().dump(obj)

        _pickler = ValuePickler
    return _pickler


def deserialize(stream: bytes | memoryview, buffers: Sequence[Any] = ()) -> Any:
    """Rebuilds a value.

    Args:
        stream: the pickle stream.
        buffers: its buffers, in order. Arrays of the value view them; they are
            read-only if the buffers are.

    Raises:
        Exception: whatever unpickling raised, unchanged.
    """
    return pickle.loads(stream, buffers=buffers)
