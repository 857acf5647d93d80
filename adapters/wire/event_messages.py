"""What executors and owners tell of calls that ended, for tools.

A batch is encoded by who tells it and decoded by who looks at it: on the way, and in
the memory of a node, it is bytes.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from rayshim.adapters.wire.ask_messages import ProcessTold

#: ``CallEvent.kind``.
TASK, CREATION, METHOD = 0, 1, 2


class TaskEvents(Struct, array_like=True, tag=124):
    """Calls that have ended, to the raylet of who tells it."""

    count: int
    #: An ``EventBatch``.
    batch: bytes
    #: Whether it has values of environment variables, which may be secrets.
    has_values: bool = False


class CallEvent(Struct, array_like=True, gc=False):
    """One attempt at a call that has ended."""

    task_id: bytes
    name: str
    kind: int
    attempt: int
    #: "FINISHED" or "FAILED".
    state: str
    #: When it began to run and when it ended; since the epoch, 0: it never ran.
    start_s: float
    end_s: float
    #: The call that made it; empty for a driver.
    parent: bytes = b""
    actor_id: bytes = b""
    error_type: str = ""
    error_message: str = ""
    #: Of the function or method, where the call has another name.
    function: str = ""


#: A call that ran, as its executor notes it: (task id, name, attempt, when it began and
#: ended, the call that made it, key of the function or name of the method).
Noted = tuple[bytes, str, int, float, float, bytes, Any]


class ActorFacts(Struct, array_like=True):
    """What the calls of an actor have in common."""

    actor_id: bytes
    class_name: str
    #: Task id of the constructor.
    constructor: bytes
    #: What lists call the constructor.
    creation: str


class EventBatch(Struct, array_like=True):
    """Calls that one process tells of; :func:`events_of` gives them one by one."""

    node_id: str
    node_ip: str
    worker_id: bytes
    pid: int
    #: "executor" that ran them, or "owner" of what did not run.
    role: str
    #: What they had, while they ran.
    resources: dict[str, float]
    group: bytes
    env_vars: dict[str, str]
    #: Those of which more is said than that they returned a value.
    events: list[CallEvent]
    #: The others, as they were noted.
    ended: list[Noted] = []
    #: Added to the times in ``ended`` it gives seconds since the epoch.
    offset_s: float = 0.0
    #: Key -> name of the functions in ``ended``.
    names: dict[bytes, str] = {}
    #: None if the process is no actor.
    actor: ActorFacts | None = None


def event_of(batch: EventBatch, noted: Noted) -> CallEvent:
    """A call that returned a value, with what its batch says of all."""
    task_id, name, attempt, begun, ended, parent, function = noted
    kind, actor_id, actor = TASK, b"", batch.actor
    if actor is not None:
        kind, actor_id = METHOD, actor.actor_id
        if task_id == actor.constructor:
            kind, name = CREATION, actor.creation
        function = f"{actor.class_name}.{function!s}"
    elif isinstance(function, bytes):
        function = batch.names.get(function, "")
    return CallEvent(
        task_id,
        name,
        kind,
        attempt,
        "FINISHED",
        begun + batch.offset_s,
        ended + batch.offset_s,
        parent,
        actor_id,
        function="" if function == name else function,
    )


def events_of(batch: EventBatch) -> list[CallEvent]:
    """All calls of a batch."""
    return [*batch.events, *(event_of(batch, noted) for noted in batch.ended)]


class _Outline(Struct, array_like=True):
    """An ``EventBatch`` of which only what all calls share is decoded."""

    node_id: str
    node_ip: str
    worker_id: bytes
    pid: int
    role: str
    resources: Raw
    group: bytes
    env_vars: dict[str, str]
    events: Raw
    ended: Raw
    offset_s: float
    names: Raw
    actor: Raw


#: Stands in files for the value of an environment variable.
HIDDEN = "(not kept)"
_OUTLINE = msgspec.msgpack.Decoder(_Outline)


def without_values(batch: bytes) -> bytes:
    """A batch, encoded, with the names of environment variables alone."""
    outline = _OUTLINE.decode(batch)
    outline.env_vars = dict.fromkeys(outline.env_vars, HIDDEN)
    return msgspec.msgpack.encode(outline)


class LiveCall(Struct, array_like=True, gc=False):
    """One call that has not ended, as its owner or executor knows it."""

    task_id: bytes
    name: str
    kind: int
    attempt: int
    #: As in lists of tasks.
    state: str
    parent: bytes = b""
    actor_id: bytes = b""
    #: Of the executor that it was sent to.
    pid: int = 0
    #: Since the epoch; 0 before it runs.
    start_s: float = 0.0
    resources: dict[str, float] = {}
    group: bytes = b""
    labels: dict[str, str] = {}
    call_site: str = ""
    #: Of the function or method, where the call has another name.
    function: str = ""


class HeldObject(Struct, array_like=True, gc=False):
    """One reference that a process holds."""

    object_id: bytes
    #: Bytes; -1 while it is not known.
    size_bytes: int
    #: As in lists of objects.
    task_status: str
    attempt: int
    reference_type: str
    call_site: str
    #: Address of the owner; empty where it is the process itself.
    owner: str
    #: Uses inside the process.
    local: int
    #: Addresses of those that it was lent to.
    borrowers: list[str] = []
    #: Hex ids of nodes with copies in their stores.
    nodes: list[str] = []
    #: Name of the call that makes or made it, where it is known.
    made_by: str = ""


class CallsTold(Struct, array_like=True):
    """What a node answers to the question ``calls``."""

    #: Calls that it let go of, as there were too many.
    dropped: int
    #: ``EventBatch`` each, the oldest first.
    batches: list[bytes]
    #: Of each process a list of ``LiveCall``.
    processes: list[ProcessTold]
