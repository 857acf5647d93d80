"""Arguments of a call: what travels inline, what by reference, what is waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayshim._core.refs import ObjectRef
from rayshim._core.serialization import IMMUTABLE, Serialized, serialize
from rayshim._core.unpicklable import describe_failure
from rayshim.adapters.wire import messages as m
from rayshim.exceptions import RayError

if TYPE_CHECKING:
    from rayshim._core.peer import Peer

#: ``Dependency.position`` of the whole ``(args, kwargs)`` kept in the store.
ALL_ARGUMENTS = -2


class Encoded:
    """The arguments of one call, ready to be put into its spec."""

    __slots__ = ("buffers", "data", "dependencies", "nested")

    def __init__(self) -> None:
        self.data = b""
        self.buffers: tuple[bytes, ...] = ()
        #: (position, keyword, reference) of each value that must be known first.
        self.dependencies: list[tuple[int, str, ObjectRef]] = []
        #: References inside the arguments.
        self.nested: list[ObjectRef] = []


#: What a call without arguments has; never changed.
NOTHING = Encoded()


def encode(
    peer: Peer, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Encoded:
    """Encode arguments as they are now; later changes of them are not seen.

    Raises:
        TypeError: an argument cannot be pickled; the text leads to the culprit.
    """
    if not args and not kwargs:
        return NOTHING
    encoded = Encoded()
    plain = True
    for value in args:
        if type(value) not in IMMUTABLE:
            plain = False
            break
    if not plain or kwargs:
        args, kwargs = _replace_references(peer, encoded, args, kwargs)
    try:
        serialized = serialize((args, kwargs))
    except Exception as error:
        raise _explain(name, args, kwargs, error) from error
    encoded.nested = serialized.refs
    if serialized.total_bytes <= peer.settings.inline_limit_bytes:
        encoded.data = serialized.stream
        if serialized.buffers:
            encoded.buffers = tuple(map(bytes, serialized.buffers))
    else:
        encoded.dependencies.append((ALL_ARGUMENTS, "", _store(peer, serialized)))
    return encoded


def _replace_references(
    peer: Peer, encoded: Encoded, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    found = encoded.dependencies
    for position, value in enumerate(args):
        ref = _as_reference(peer, value)
        if ref is not None:
            found.append((position, "", ref))
    for key, value in kwargs.items():
        ref = _as_reference(peer, value)
        if ref is not None:
            found.append((-1, key, ref))
    if found:
        positions = {position for position, _, _ in found}
        keys = {key for _, key, _ in found}
        args = tuple(None if i in positions else v for i, v in enumerate(args))
        kwargs = {k: None if k in keys else v for k, v in kwargs.items()}
    return args, kwargs


def _as_reference(peer: Peer, value: Any) -> ObjectRef | None:
    if isinstance(value, ObjectRef):
        return value
    if isinstance(value, RayError):
        return peer.objects.put(value)  # fails the call, as a failed reference does
    return None


def _store(peer: Peer, serialized: Serialized) -> ObjectRef:
    return peer.objects.put_serialized(serialized)


def _explain(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> Exception:
    for value in [*args, *kwargs.values()]:
        try:
            serialize(value)
        except Exception as reason:
            text = describe_failure(value, reason)
            return TypeError(
                f"Could not serialize the argument {value!r} of {name}: {text}"
            )
    return TypeError(f"Could not serialize the arguments of {name}: {error}")


def has_lost(peer: Peer, encoded: Encoded) -> bool:
    """True if a value that was known when the call was queued is lost since."""
    entries = peer.objects.entries
    for dependency in encoded.dependencies:
        if entries[dependency[2]._bytes].value is None:
            return True
    return False


def fill(
    peer: Peer, spec: m.TaskSpec, encoded: Encoded, address: str
) -> list[tuple[bytes, int]]:
    """Put dependencies and nested references into a spec that goes to ``address``.

    Under the lock, and with every dependency known. An empty ``address`` means a
    process that is not known yet: nothing is lent, the caller keeps the references
    alive.

    Returns:
        The lends promised: (object id, lend number).
    """
    objects = peer.objects
    table = objects.table
    lends: list[tuple[bytes, int]] = []
    if encoded.dependencies:
        filled = []
        for position, keyword, ref in encoded.dependencies:
            payload = objects.entries[ref._bytes].value
            if payload.nested:
                payload = objects.relend(payload, address, promised=True)
                lends += [(n.object_id, n.lend) for n in payload.nested if n.lend]
            owner = ref._owner or peer.address
            lend = 0
            if payload.segment is not None and address and owner != address:
                lend = table.promise(ref._bytes)
                lends.append((ref._bytes, lend))
            filled.append(
                m.Dependency(ref._bytes, position, keyword, payload, owner, lend)
            )
        spec.dependencies = tuple(filled)
    if encoded.nested:
        nested = []
        for ref in encoded.nested:
            owner = ref._owner or peer.address
            lend = 0
            if address and owner != address and ref._bytes in objects.entries:
                lend = table.promise(ref._bytes)
                lends.append((ref._bytes, lend))
            nested.append(m.Nested(ref._bytes, owner, lend))
        spec.nested = tuple(nested)
    return lends


def brings_references(spec: m.TaskSpec) -> bool:
    """True if references came with a call, whose uses its executor has to count."""
    if spec.nested:
        return True
    for dependency in spec.dependencies:
        value = dependency.value
        if value.segment is not None or value.nested:
            return True
    return False
