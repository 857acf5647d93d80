"""Values of the simulated user code, and what travels of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rayshim.adapters.sim.objects import Objects


class Ref:
    """A reference in user code: as long as Python keeps it, it counts."""

    __slots__ = ("__weakref__", "object_id", "objects", "owner")

    def __init__(self, object_id: bytes, owner: str, objects: Objects) -> None:
        self.object_id = object_id
        self.owner = owner
        self.objects = objects

    def __del__(self) -> None:
        self.objects.ref_dropped(self.object_id)

    def __repr__(self) -> str:
        return f"Ref({self.object_id!r})"


class Mark(NamedTuple):
    """A reference inside a value that travels."""

    object_id: bytes
    owner: str


class Large(NamedTuple):
    """A value too large to travel inline: it lies in a node store."""

    content: Any


class Hole(NamedTuple):
    """The place of a top-level reference argument."""

    place: int


class Segment(NamedTuple):
    """Where a large value lies."""

    name: str
    #: Address of the raylet whose store holds it.
    raylet: str


class Nested(NamedTuple):
    """A reference that travels, and its lend number."""

    object_id: bytes
    owner: str
    lend: int


class Payload(NamedTuple):
    """A value as it travels: inline, in a segment, or an error."""

    kind: str  # "value", "segment", "error"
    data: Any = None
    nested: tuple[Nested, ...] = ()
    segment: Segment | None = None


class SimError(Exception):
    """A typed error that user code gets: ``kind`` names it."""

    def __init__(self, kind: str, text: str = "") -> None:
        super().__init__(kind, text)
        self.kind = kind
        self.text = text


def encode(value: Any, refs: list[Ref]) -> Any:
    """The value with marks in the place of references, which go to ``refs``."""
    if isinstance(value, Ref):
        refs.append(value)
        return Mark(value.object_id, value.owner)
    if isinstance(value, Large):
        return Large(encode(value.content, refs))
    if type(value) is tuple:
        return tuple([encode(one, refs) for one in value])
    return value


def decode(value: Any, objects: Objects, holes: list[Any] | None = None) -> Any:
    """The inverse of :func:`encode` in another process."""
    if isinstance(value, Mark):
        return objects.adopt(value.object_id, value.owner)
    if isinstance(value, Hole):
        assert holes is not None
        return holes[value.place]
    if isinstance(value, Large):
        return decode(value.content, objects, holes)
    if type(value) is tuple:
        return tuple([decode(one, objects, holes) for one in value])
    return value
