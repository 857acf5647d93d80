"""Events as rows, in the columns of the event files."""

from __future__ import annotations

from typing import Any

import msgspec

from rayshim.adapters.wire.event_messages import EventBatch, events_of

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
    told = _BATCH.decode(batch)
    shared = {
        "node_id": told.node_id,
        "node_ip": told.node_ip,
        "worker_id": told.worker_id.hex(),
        "worker_pid": told.pid,
        "role": told.role,
        "resources": told.resources,
        "placement_group_id": told.group.hex(),
        "env_vars": told.env_vars,
    }
    return [
        {
            "task_id": event.task_id.hex(),
            "attempt_number": event.attempt,
            "name": event.name,
            "function": event.function or event.name,
            "kind": event.kind,
            "state": event.state,
            "job_id": event.task_id[_JOB_AT:].hex(),
            "actor_id": event.actor_id.hex(),
            "parent_task_id": event.parent.hex(),
            "start_s": event.start_s,
            "end_s": event.end_s,
            "error_type": event.error_type,
            "error_message": event.error_message,
            **shared,
        }
        for event in events_of(told)
    ]


def cluster_rows(payload: bytes) -> list[Row]:
    """The rows of one list of changes of the cluster."""
    names = list(CLUSTER_COLUMNS)
    return [dict(zip(names, event, strict=False)) for event in _CLUSTER.decode(payload)]
