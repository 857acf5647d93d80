"""Events as rows, in the columns of the event files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from rayshim.adapters.wire.event_messages import (
    CREATION,
    METHOD,
    TASK,
    CallEvent,
    EventBatch,
)

Row = dict[str, Any]

#: Columns of the files of calls, and the Arrow types of those that are no text; times
#: are seconds since the epoch, ids are hex.
CALL_COLUMNS = {
    "task_id": "",
    "attempt_number": "int32",
    "name": "",
    "function": "",
    "kind": "int8",
    "state": "",
    "job_id": "",
    "actor_id": "",
    "parent_task_id": "",
    "node_id": "",
    "node_ip": "",
    "worker_id": "",
    "worker_pid": "int64",
    "role": "",
    "start_s": "float64",
    "end_s": "float64",
    "error_type": "",
    "error_message": "",
    "resources": "",
    "placement_group_id": "",
    "env_vars": "",
}
#: Columns of dictionaries, which are JSON in the files.
JSON_COLUMNS = ("resources", "env_vars")
#: The same, of the files of the cluster.
CLUSTER_COLUMNS = {
    "time_s": "float64",
    "kind": "",
    "id": "",
    "state": "",
    "name": "",
    "node_id": "",
    "pid": "int64",
    "job_id": "",
    "message": "",
}
_BATCH = msgspec.msgpack.Decoder(EventBatch)
_CLUSTER = msgspec.msgpack.Decoder(list[tuple[Any, ...]])
_JOB_AT = 20


def call_rows(batch: bytes) -> list[Row]:
    """The rows of one batch of calls, as a process sent it."""
    columns = call_columns([batch])
    return [
        dict(zip(columns, values, strict=True))
        for values in zip(*columns.values(), strict=True)
    ]


def call_columns(batches: Iterable[bytes]) -> dict[str, list[Any]]:
    """The columns of the calls of some batches: less work than rows are."""
    columns: dict[str, list[Any]] = {name: [] for name in CALL_COLUMNS}
    for batch in batches:
        told = _BATCH.decode(batch)
        if told.events:
            _add(columns, told, _columns_of_events(told.events))
        if told.ended:
            _add(columns, told, _columns_of_ended(told, *zip(*told.ended, strict=True)))
    return columns


def _columns_of_events(events: list[CallEvent]) -> dict[str, Any]:
    return {
        "task_id": [event.task_id.hex() for event in events],
        "attempt_number": [event.attempt for event in events],
        "name": [event.name for event in events],
        "function": [event.function or event.name for event in events],
        "kind": [event.kind for event in events],
        "state": [event.state for event in events],
        "actor_id": [event.actor_id.hex() for event in events],
        "parent_task_id": [event.parent.hex() for event in events],
        "start_s": [event.start_s for event in events],
        "end_s": [event.end_s for event in events],
        "error_type": [event.error_type for event in events],
        "error_message": [event.error_message for event in events],
    }


def _columns_of_ended(
    told: EventBatch,
    ids: tuple[bytes, ...],
    names: tuple[str, ...],
    attempts: tuple[int, ...],
    begun: tuple[float, ...],
    ended: tuple[float, ...],
    parents: tuple[bytes, ...],
    functions: tuple[Any, ...],
) -> dict[str, Any]:
    """The same of calls as they were noted; a value that all have is no list."""
    offset_s, actor = told.offset_s, told.actor
    parent_of = {parent: parent.hex() for parent in set(parents)}
    found: dict[str, Any] = {
        "task_id": [task_id.hex() for task_id in ids],
        "attempt_number": attempts,
        "name": names,
        "kind": TASK,
        "state": "FINISHED",
        "actor_id": "",
        "parent_task_id": [parent_of[parent] for parent in parents],
        "start_s": [when + offset_s for when in begun],
        "end_s": [when + offset_s for when in ended],
        "error_type": "",
        "error_message": "",
    }
    if actor is None:
        known = {key: told.names.get(key, "") for key in set(functions)}
        shown = [known[key] for key in functions]
    else:
        known = {key: f"{actor.class_name}.{key!s}" for key in set(functions)}
        shown = [known[key] for key in functions]
        found["kind"], found["actor_id"] = METHOD, actor.actor_id.hex()
        if actor.constructor in ids:
            place = ids.index(actor.constructor)
            found["kind"] = [METHOD] * len(ids)
            found["name"] = list(names)
            found["kind"][place], found["name"][place] = CREATION, actor.creation
    found["function"] = [
        function or name for function, name in zip(shown, found["name"], strict=True)
    ]
    return found


def _add(
    columns: dict[str, list[Any]], told: EventBatch, found: dict[str, Any]
) -> None:
    """Adds calls, and what the batch says of all of them, to columns."""
    found["job_id"] = [task_id[2 * _JOB_AT :] for task_id in found["task_id"]]
    found["node_id"] = told.node_id
    found["node_ip"] = told.node_ip
    found["worker_id"] = told.worker_id.hex()
    found["worker_pid"] = told.pid
    found["role"] = told.role
    found["resources"] = told.resources
    found["placement_group_id"] = told.group.hex()
    found["env_vars"] = told.env_vars
    count = len(found["task_id"])
    for name, column in columns.items():
        values = found[name]
        column += values if isinstance(values, (list, tuple)) else [values] * count


def cluster_rows(payload: bytes) -> list[Row]:
    """The rows of one list of changes of the cluster."""
    names = list(CLUSTER_COLUMNS)
    return [dict(zip(names, event, strict=False)) for event in _CLUSTER.decode(payload)]
