"""Where the rows of state come from: the control service, nodes and processes.

Each function gives the rows of one resource with all columns, and says who of those
that should know something did not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from rayshim._core import asking, failures
from rayshim.adapters.events import records
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire.ask_messages import ProcessTold
from rayshim.adapters.wire.event_messages import CallsTold, HeldObject, LiveCall
from rayshim.lineage import task_events
from rayshim.util.state.options import StateResource

Row = dict[str, Any]
#: Roles of processes -> as lists of state call them.
_WORKER_TYPES = {"driver": "DRIVER", "executor": "WORKER"}


class Found(NamedTuple):
    """Rows, and who kept silent."""

    rows: list[Row]
    #: One line for each: who, and why.
    silent: Sequence[str] = ()


def rows_of(control: asking.Control, resource: StateResource, limit_s: float) -> Found:
    """All rows of a resource.

    Args:
        control: of the cluster.
        resource: what is listed.
        limit_s: seconds that each of those who are asked may take.
    """
    return _SOURCES[resource](control, limit_s)


def _of_control(kind: str) -> Callable[[asking.Control, float], Found]:
    def rows(control: asking.Control, limit_s: float) -> Found:
        return Found(_state_rows(control, kind))

    return rows


def _state_rows(control: asking.Control, kind: str) -> list[Row]:
    rows: list[Row] = control.ask("state_rows", {"kind": kind})
    return rows


def actors(control: asking.Control, limit_s: float) -> Found:
    """One row for each actor; if its constructor raised, with what."""
    rows = _state_rows(control, "actors")
    for row in rows:
        data = row.pop("error")
        if data:
            error = failures.load_error(m.Payload(m.ERROR, data))
            context = row["death_cause"]["actor_died_error_context"]
            context["error_message"] += f": {error}"
    return Found(rows)


# -- tasks -----------------------------------------------------------------------


class Calls(NamedTuple):
    """What is known of calls, in the columns of the event files."""

    ended: list[Row]
    live: list[Row]
    silent: list[str]
    #: Ends that nodes let go of, as there were too many.
    dropped: int


def calls(
    control: asking.Control,
    limit_s: float,
    read: Callable[[bytes], list[Row]] = records.call_rows,
) -> Calls:
    """What nodes, owners and executors say of calls.

    Args:
        control: of the cluster.
        limit_s: seconds that each may take.
        read: makes rows of a batch of ends.
    """
    heard = asking.ask(
        control, "calls", msgspec.msgpack.encode(limit_s), limit_s=limit_s
    )
    ended: list[Row] = []
    owned: list[Row] = []
    running: list[Row] = []
    silent = list(heard.silent)
    dropped = 0
    for answer in heard.answers:
        told = _CALLS.decode(answer.payload)
        dropped += told.dropped
        for batch in told.batches:
            ended += read(batch)
        for process in told.processes:
            if process.error:
                silent.append(_silent(process, answer.node_id))
                continue
            for call in _LIVE.decode(process.payload):
                is_here = call.start_s > 0 or _is_accepted(call)
                row = _live_row(call, process, answer.node_id, is_here)
                (running if is_here else owned).append(row)
    ended.sort(key=_end_s)
    return Calls(ended, owned + running, silent, dropped)


def _end_s(row: Row) -> float:
    return float(row["end_s"])


def _is_accepted(call: LiveCall) -> bool:
    return call.state == "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY"


def _silent(process: ProcessTold, node_id: str) -> str:
    return f"{process.role} pid {process.pid} on node {node_id[:12]}: {process.error}"


def _live_row(call: LiveCall, process: ProcessTold, node_id: str, is_here: bool) -> Row:
    return {
        "task_id": call.task_id.hex(),
        "attempt_number": call.attempt,
        "name": call.name,
        "function": call.function,
        "kind": call.kind,
        "state": call.state,
        "job_id": call.task_id[20:].hex(),
        "actor_id": call.actor_id.hex(),
        "parent_task_id": call.parent.hex(),
        "node_id": node_id,
        "node_ip": "",
        "worker_id": process.worker_id.hex(),
        "worker_pid": process.pid,
        "role": "executor" if is_here else "owner",
        "start_s": call.start_s,
        "end_s": 0.0,
        "error_type": "",
        "error_message": "",
        "resources": call.resources,
        "placement_group_id": call.group.hex(),
        "env_vars": {},
        "labels": call.labels,
        "call_site": call.call_site,
    }


def tasks(control: asking.Control, limit_s: float) -> Found:
    """One row for each attempt at a call."""
    known = calls(control, limit_s)
    rows = task_events.joined(known.ended, known.live)
    return Found(with_constructors(control, rows), known.silent)


def with_constructors(control: asking.Control, rows: list[Row]) -> list[Row]:
    """Adds constructors that wait for a place, of which the control service knows."""
    named = {row["task_id"] for row in rows}
    for actor in _state_rows(control, "actors"):
        task_id = "ff" * 8 + actor["actor_id"]
        if actor["state"] != "PENDING_CREATION" or task_id in named:
            continue
        name = f"{actor['class_name']}.__init__"
        call = {
            "task_id": task_id,
            "attempt_number": 0,
            "name": f"{actor['name']}:{name}" if actor["name"] else name,
            "function": name,
            "kind": task_events.CREATION,
            "state": "PENDING_NODE_ASSIGNMENT",
            "job_id": actor["job_id"],
            "actor_id": actor["actor_id"],
            "parent_task_id": "",
            "role": "owner",
            "start_s": 0.0,
            "end_s": 0.0,
            "error_type": "",
            "error_message": "",
            "resources": actor["required_resources"],
            "placement_group_id": actor["placement_group_id"],
            "env_vars": {},
        }
        rows += task_events.joined([], [call])
    return rows


# -- objects -----------------------------------------------------------------------


def held(control: asking.Control, limit_s: float) -> Found:
    """One row for each reference that a process holds, with who else holds it."""
    heard = asking.ask(control, "objects", to="processes", limit_s=limit_s)
    ips = {row["node_id"]: row["node_ip"] for row in _state_rows(control, "nodes")}
    names = {answer.address: f"{answer.role} {answer.pid}" for answer in heard.answers}
    rows = []
    for answer in heard.answers:
        for one in _HELD.decode(answer.payload):
            rows.append(
                {
                    "object_id": one.object_id.hex(),
                    "object_size": one.size_bytes,
                    "task_status": one.task_status,
                    "attempt_number": one.attempt,
                    "reference_type": one.reference_type,
                    "call_site": one.call_site,
                    "type": _WORKER_TYPES.get(answer.role, "WORKER"),
                    "pid": answer.pid,
                    "ip": ips.get(answer.node_id, ""),
                    "node_id": answer.node_id,
                    "is_owner": not one.owner,
                    "owner": names.get(one.owner or answer.address, one.owner),
                    "local_refs": one.local,
                    "borrowers": [names.get(who, who) for who in one.borrowers],
                    "copies": one.nodes,
                    "made_by": one.made_by,
                }
            )
    return Found(rows, heard.silent)


# -- workers -----------------------------------------------------------------------


def workers(control: asking.Control, limit_s: float) -> Found:
    """One row for each process of a node, those too that ended lately."""
    heard = asking.ask(control, "workers", limit_s=limit_s)
    rows: list[Row] = []
    for answer in heard.answers:
        rows += msgspec.msgpack.decode(answer.payload)
    return Found(rows, heard.silent)


# -- jobs --------------------------------------------------------------------------


def jobs(control: asking.Control, limit_s: float) -> Found:
    """One row for each driver, and for each job that was submitted."""
    from rayshim.jobs.manager import JobManager, as_json

    return Found([as_json(one) for one in JobManager(control.ask).all()], [])


# -- runtime environments ----------------------------------------------------------


def runtime_envs(control: asking.Control, limit_s: float) -> Found:
    """One row for each environment that a node has prepared."""
    heard = asking.ask(control, "runtime_envs", limit_s=limit_s)
    rows: list[Row] = []
    for answer in heard.answers:
        rows += msgspec.msgpack.decode(answer.payload)
    return Found(rows, heard.silent)


_CALLS = msgspec.msgpack.Decoder(CallsTold)
_LIVE = msgspec.msgpack.Decoder(list[LiveCall])
_HELD = msgspec.msgpack.Decoder(list[HeldObject])
_SOURCES: dict[StateResource, Callable[[asking.Control, float], Found]] = {
    StateResource.ACTORS: actors,
    StateResource.NODES: _of_control("nodes"),
    StateResource.PLACEMENT_GROUPS: _of_control("placement_groups"),
    StateResource.CLUSTER_EVENTS: _of_control("cluster_events"),
    StateResource.TASKS: tasks,
    StateResource.OBJECTS: held,
    StateResource.WORKERS: workers,
    StateResource.JOBS: jobs,
    StateResource.RUNTIME_ENVS: runtime_envs,
}
