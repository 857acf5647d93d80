"""What the pull machine hears and says; see :mod:`rayshim.lineage.pulls`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """A file that holds the object on another node."""

    #: Hex id of the node.
    node: str
    #: File name in that node's store.
    name: str


@dataclass(frozen=True, slots=True)
class Making:
    """One making of a value: its primary file and how its bytes lie in every copy.

    A value that was lost and made again may lie differently, so that bytes of two
    makings are never mixed.
    """

    #: Node and file name of the primary.
    primary: str
    #: Bytes to fetch: the end of the last part, > 0.
    size_bytes: int
    #: Size of the file.
    capacity: int = 0
    #: As in a segment.
    layout: tuple[int, ...] = ()


# Events.


@dataclass(frozen=True, slots=True)
class PullAsked:
    """A process of this node needs the object here."""

    object_id: bytes
    asker: str
    making: Making
    #: Best one first.
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class RoomGiven:
    """The store reserved what ReserveRoom asked for."""

    object_id: bytes


@dataclass(frozen=True, slots=True)
class RoomRefused:
    """The store can make no room."""

    object_id: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class RangeArrived:
    """All bytes of a fetch are in the local file."""

    object_id: bytes
    fetch: int


@dataclass(frozen=True, slots=True)
class RangeBroken:
    """A fetch ended early; the first ``received_bytes`` of its range are good."""

    object_id: bytes
    fetch: int
    received_bytes: int
    reason: str
    #: The source says that it has no such file.
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """A fetch ended since its bytes cannot be kept here: no source would help."""

    object_id: bytes
    fetch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """An asker waits for the object no more."""

    object_id: bytes
    asker: str


@dataclass(frozen=True, slots=True)
class AskerGone:
    """The process of an asker ended."""

    asker: str


@dataclass(frozen=True, slots=True)
class CopyFreed:
    """The owner says that nobody refers to the object any more."""

    object_id: bytes


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is dead: what it held is gone."""

    node: str
    reason: str


# Commands.


@dataclass(frozen=True, slots=True)
class ReserveRoom:
    """Ask the store for room; answered by RoomGiven or RoomRefused."""

    object_id: bytes
    making: Making


@dataclass(frozen=True, slots=True)
class FetchRange:
    """Fetch bytes; answered by RangeArrived or RangeBroken, once."""

    object_id: bytes
    fetch: int
    source: Source
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StopFetches:
    """End these soon; each is still answered."""

    object_id: bytes
    fetches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SealCopy:
    """All bytes are here: name the file, pin it for the askers and tell them."""

    object_id: bytes
    askers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DropRoom:
    """Remove the unfinished file and its reservation."""

    object_id: bytes


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell an asker why there is no copy."""

    object_id: bytes
    asker: str
    reason: str
    #: Every source says that it has no such file, or is dead.
    is_gone: bool


Command = ReserveRoom | FetchRange | StopFetches | SealCopy | DropRoom | Refuse
