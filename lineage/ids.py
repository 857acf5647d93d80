"""Ids: fixed-length byte strings with a type.

An id is opaque bytes, but the kinds that belong together nest, so that the job of an
object can be read off without a lookup::

    JobID        4   number of the job, little-endian
    ActorID     16   12 unique + 4 job
    TaskID      24    8 unique + 16 actor (of a normal task: 12 x 0xff + 4 job)
    ObjectID    28   24 task + 4 index, little-endian
    PlacementGroupID
                18   14 unique + 4 job

``UniqueID`` and its kinds (node, worker, function, actor class, cluster) are 28 bytes
without structure; a ``LeaseID`` is 16. All bytes 0xff mean *nil*: no such thing.

Two rules:

1. Equal ids have the same class and the same bytes; ids are immutable.
2. Derived ids depend on their arguments only. Random ones come from ``draw``, a
   function from a number of bytes to that many bytes; without it they come from the
   operating system, and that is the one place of this package with randomness.

Lengths and nesting are those that Ray documents for its ids (id specification in the
design documents of Ray 1.0), since users see them in hex.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import ClassVar, Self

#: A function from a number of bytes to that many random bytes.
Draw = Callable[[int], bytes]

_JOB_BYTES = 4
_ACTOR_UNIQUE_BYTES = 12
_TASK_UNIQUE_BYTES = 8
_INDEX_BYTES = 4
_NIL_ACTOR_UNIQUE = b"\xff" * _ACTOR_UNIQUE_BYTES
_NIL_TASK_UNIQUE = b"\xff" * _TASK_UNIQUE_BYTES


def _random_bytes(size_bytes: int, draw: Draw | None) -> bytes:
    if draw is None:
        from os import urandom

        draw = urandom
    return draw(size_bytes)


def _derive(size_bytes: int, *parts: bytes) -> bytes:
    """Hash parts, of which all but the last have a fixed length, to unique bytes."""
    return blake2b(b"".join(parts), digest_size=size_bytes).digest()


def _counter_bytes(counter: int) -> bytes:
    return counter.to_bytes(8, "little", signed=True)


class BaseID:
    """Common base of all ids.

    Args:
        id: exactly ``size()`` bytes.

    Raises:
        TypeError: ``id`` is not ``bytes``.
        ValueError: ``id`` has another length.

    >>> NodeID(bytes(28)) == NodeID.from_hex("00" * 28)
    True
    """

    __slots__ = ("_bytes",)

    #: Length of an id of this class, bytes.
    SIZE_BYTES: ClassVar[int] = 0

    _bytes: bytes

    def __init__(self, id: bytes) -> None:
        if type(id) is not bytes:
            raise TypeError(f"{type(self).__name__} needs bytes, got {type(id)}")
        if len(id) != self.SIZE_BYTES:
            raise ValueError(
                f"ID string needs to have length {self.SIZE_BYTES}, got {len(id)}: "
                f"not a {type(self).__name__}"
            )
        self._bytes = id

    @classmethod
    def from_binary(cls, id_bytes: bytes) -> Self:
        """Make an id of its bytes; raises like the constructor."""
        return cls(id_bytes)

    @classmethod
    def from_hex(cls, hex_id: str | bytes) -> Self:
        """Make an id of its hexadecimal text, as ``hex()`` gives it.

        Raises:
            TypeError: ``hex_id`` is neither text nor bytes.
            ValueError: it is not hexadecimal, or of another length. (Ray logs an
                error and returns the nil id, which then fails somewhere else.)
        """
        if isinstance(hex_id, bytes):
            hex_id = hex_id.decode("ascii", "replace")
        if not isinstance(hex_id, str):
            raise TypeError(f"expected hexadecimal text, {type(hex_id)} found")
        if len(hex_id) != 2 * cls.SIZE_BYTES:
            raise ValueError(
                f"hex string of a {cls.__name__} needs to have length "
                f"{2 * cls.SIZE_BYTES}, got {len(hex_id)}: {hex_id[:80]!r}"
            )
        return cls(bytes.fromhex(hex_id))

    @classmethod
    def nil(cls) -> Self:
        """Return the id of nothing: all bits set."""
        return cls(b"\xff" * cls.SIZE_BYTES)

    @classmethod
    def size(cls) -> int:
        """Return the length in bytes."""
        return cls.SIZE_BYTES

    def is_nil(self) -> bool:
        """Return whether this is the id of nothing."""
        return self._bytes == b"\xff" * self.SIZE_BYTES

    def binary(self) -> bytes:
        """Return the bytes."""
        return self._bytes

    def hex(self) -> str:
        """Return the bytes as lower-case hexadecimal text."""
        return self._bytes.hex()

    def redis_shard_hash(self) -> int:
        """Return an unsigned 64-bit hash that is the same in every process."""
        return _murmur64a(self._bytes)

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._bytes == other._bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._bytes.hex()})"

    def __reduce__(self) -> tuple[type[Self], tuple[bytes]]:
        return type(self), (self._bytes,)


class _RandomID(BaseID):
    """An id that may be drawn at random as a whole."""

    __slots__ = ()

    @classmethod
    def from_random(cls, draw: Draw | None = None) -> Self:
        """Make a random id.

        Args:
            draw: source of random bytes; the operating system if left out.
        """
        return cls(_random_bytes(cls.SIZE_BYTES, draw))


class UniqueID(_RandomID):
    """28 bytes without structure."""

    __slots__ = ()
    SIZE_BYTES = 28


class NodeID(UniqueID):
    """Names a node (one life of it)."""

    __slots__ = ()


class WorkerID(UniqueID):
    """Names a process that owns references: a driver or an executor."""

    __slots__ = ()


class FunctionID(UniqueID):
    """Names an exported function."""

    __slots__ = ()


class ActorClassID(UniqueID):
    """Names an exported actor class."""

    __slots__ = ()


class ClusterID(UniqueID):
    """Names a cluster (one life of its head's journal)."""

    __slots__ = ()


class LeaseID(_RandomID):
    """Names a lease; the requester makes it, so that a request may be repeated."""

    __slots__ = ()
    SIZE_BYTES = 16


class JobID(BaseID):
    """Names a job: one driver from ``init`` to ``shutdown``.

    >>> JobID.from_int(258)
    JobID(02010000)
    """

    __slots__ = ()
    SIZE_BYTES = _JOB_BYTES

    @classmethod
    def from_int(cls, value: int) -> Self:
        """Make the id of job number ``value``.

        Raises:
            AssertionError: ``value`` needs more than 32 bits.
            OverflowError: ``value`` is negative.
        """
        assert value < 2**32, "Maximum JobID integer is 2**32 - 1."
        return cls(value.to_bytes(_JOB_BYTES, "little"))

    def int(self) -> int:
        """Return the job's number."""
        return int.from_bytes(self._bytes, "little")


class ActorID(_RandomID):
    """Names an actor; the same in all its incarnations."""

    __slots__ = ()
    SIZE_BYTES = _ACTOR_UNIQUE_BYTES + _JOB_BYTES

    @classmethod
    def of(
        cls, job_id: JobID, parent_task_id: TaskID, parent_task_counter: int
    ) -> Self:
        """Derive the id of an actor.

        Args:
            job_id: job of the new actor.
            parent_task_id: task that creates it.
            parent_task_counter: which of that task's submissions this is.
        """
        _check_type(job_id, JobID)
        _check_type(parent_task_id, TaskID)
        unique = _derive(
            _ACTOR_UNIQUE_BYTES,
            b"actor",
            job_id.binary(),
            parent_task_id.binary(),
            _counter_bytes(parent_task_counter),
        )
        return cls(unique + job_id.binary())

    @classmethod
    def nil_of(cls, job_id: JobID) -> Self:
        """Return the actor part of a task that belongs to no actor."""
        return cls(_NIL_ACTOR_UNIQUE + job_id.binary())

    @property
    def job_id(self) -> JobID:
        """The job that created the actor.

        Raises:
            ValueError: this is the nil id.
        """
        _check_not_nil(self)
        return JobID(self._bytes[_ACTOR_UNIQUE_BYTES:])


class TaskID(BaseID):
    """Names a task; an actor's calls and its creation are tasks too."""

    __slots__ = ()
    SIZE_BYTES = _TASK_UNIQUE_BYTES + ActorID.SIZE_BYTES

    @classmethod
    def for_driver_task(cls, job_id: JobID) -> Self:
        """Return the task that the driver's main program counts as."""
        return cls(_NIL_TASK_UNIQUE + _NIL_ACTOR_UNIQUE + job_id.binary())

    @classmethod
    def for_fake_task(cls, job_id: JobID, draw: Draw | None = None) -> Self:
        """Make a random task id in a job, for objects that no task returned."""
        unique = _random_bytes(_TASK_UNIQUE_BYTES + _ACTOR_UNIQUE_BYTES, draw)
        return cls(unique + job_id.binary())

    @classmethod
    def for_normal_task(
        cls, job_id: JobID, parent_task_id: TaskID, parent_task_counter: int
    ) -> Self:
        """Derive the id of a task from its parent and its number there."""
        return cls._for_child(
            job_id, parent_task_id, parent_task_counter, ActorID.nil_of(job_id)
        )

    @classmethod
    def for_actor_task(
        cls,
        job_id: JobID,
        parent_task_id: TaskID,
        parent_task_counter: int,
        actor_id: ActorID,
    ) -> Self:
        """Derive the id of a call on an actor; ``job_id`` is the caller's job."""
        return cls._for_child(job_id, parent_task_id, parent_task_counter, actor_id)

    @classmethod
    def for_actor_creation_task(cls, actor_id: ActorID) -> Self:
        """Return the task that runs an actor's constructor."""
        _check_type(actor_id, ActorID)
        return cls(_NIL_TASK_UNIQUE + actor_id.binary())

    @classmethod
    def _for_child(
        cls, job_id: JobID, parent: TaskID, counter: int, actor_id: ActorID
    ) -> Self:
        _check_type(job_id, JobID)
        _check_type(parent, TaskID)
        _check_type(actor_id, ActorID)
        unique = _derive(
            _TASK_UNIQUE_BYTES,
            b"task",
            job_id.binary(),
            parent.binary(),
            actor_id.binary(),
            _counter_bytes(counter),
        )
        return cls(unique + actor_id.binary())

    def actor_id(self) -> ActorID:
        """Return the actor whose call this is; nil but for the job in plain tasks."""
        return ActorID(self._bytes[_TASK_UNIQUE_BYTES:])

    def job_id(self) -> JobID:
        """Return the job; of an actor's call, the job that created the actor.

        Raises:
            ValueError: this is the nil id.
        """
        _check_not_nil(self)
        return JobID(self._bytes[-_JOB_BYTES:])


class ObjectID(BaseID):
    """Names an object: the task that made it and a number from 1 up.

    The reference that users hold is a subclass; this one has no life of its own.
    """

    __slots__ = ()
    SIZE_BYTES = TaskID.SIZE_BYTES + _INDEX_BYTES

    @classmethod
    def of(cls, task_id: TaskID, index: int) -> Self:
        """Return the id of object number ``index`` (from 1) that a task makes."""
        _check_type(task_id, TaskID)
        return cls(task_id.binary() + index.to_bytes(_INDEX_BYTES, "little"))

    @classmethod
    def from_random(cls, draw: Draw | None = None) -> Self:
        """Make a random id with index 0, which belongs to no task that ever ran."""
        return cls(_random_bytes(TaskID.SIZE_BYTES, draw) + bytes(_INDEX_BYTES))

    def task_id(self) -> TaskID:
        """Return the task that made the object."""
        return TaskID(self._bytes[: TaskID.SIZE_BYTES])

    def job_id(self) -> JobID:
        """Return the job; raises ``ValueError`` for the nil id."""
        return self.task_id().job_id()

    def index(self) -> int:
        """Return the object's number within its task."""
        return int.from_bytes(self._bytes[TaskID.SIZE_BYTES :], "little")


class PlacementGroupID(_RandomID):
    """Names a placement group."""

    __slots__ = ()
    SIZE_BYTES = 14 + _JOB_BYTES

    @classmethod
    def of(cls, job_id: JobID, draw: Draw | None = None) -> Self:
        """Make a random id in a job."""
        _check_type(job_id, JobID)
        return cls(_random_bytes(cls.SIZE_BYTES - _JOB_BYTES, draw) + job_id.binary())


def _check_type(value: BaseID, wanted: type[BaseID]) -> None:
    assert isinstance(value, wanted), f"expected a {wanted.__name__}, got {value!r}"


def _check_not_nil(value: BaseID) -> None:
    if value.is_nil():
        raise ValueError(f"{type(value).__name__} is nil")


def _murmur64a(data: bytes) -> int:
    """Hash with MurmurHash64A, seed 0 (A. Appleby's public-domain algorithm)."""
    mask = 0xFFFFFFFFFFFFFFFF
    multiplier = 0xC6A4A7935BD1E995
    state = (len(data) * multiplier) & mask
    whole = len(data) & ~7
    for start in range(0, whole, 8):
        word = int.from_bytes(data[start : start + 8], "little")
        word = (word * multiplier) & mask
        word ^= word >> 47
        state ^= (word * multiplier) & mask
        state = (state * multiplier) & mask
    if whole != len(data):
        state ^= int.from_bytes(data[whole:], "little")
        state = (state * multiplier) & mask
    state ^= state >> 47
    state = (state * multiplier) & mask
    return state ^ (state >> 47)
