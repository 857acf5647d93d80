"""The control service's rows of state, in the columns of ``ray.util.state``.

Loaded by the first question.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim.adapters.raylet.event_log import shown_state
from rayshim.lineage.resources import to_amounts

if TYPE_CHECKING:
    from rayshim.adapters.raylet.control import ControlService

Row = dict[str, Any]
#: State -> how bad it is, of a kind of event.
_SEVERITY = {("node", "DEAD"): "ERROR", ("actor", "RESTARTING"): "WARNING"}


class Wanted(msgspec.Struct):
    """Payload of the request ``state_rows``."""

    kind: str


def answer(control: ControlService, payload: bytes) -> list[Row]:
    """The rows of one kind.

    Raises:
        ValueError: there is no such kind.
    """
    kind = msgspec.msgpack.decode(payload, type=Wanted).kind
    rows = _ROWS.get(kind)
    if rows is None:
        raise ValueError(f"state_rows: one of {', '.join(_ROWS)}, not {kind!r}")
    return rows(control)


def actors(control: ControlService) -> list[Row]:
    """One row for each actor that is remembered."""
    service = control.actors
    return [
        _actor(actor_id, actor, service.cargo.get(actor_id))
        for actor_id, actor in service.machine.actors.items()
    ]


def _actor(actor_id: bytes, actor: Any, cargo: Any) -> Row:
    spec = actor.spec
    registration = cargo.registration if cargo is not None else None
    state = shown_state(actor)
    environment = dict(registration.env_vars) if registration is not None else {}
    labels = registration.labels if registration is not None else []
    death = None
    if state == "DEAD":
        death = {
            "actor_died_error_context": {
                "error_message": actor.cause,
                "reason": actor.kind,
                "owner": spec.owner,
                "class_name": spec.class_name,
                "actor_id": actor_id.hex(),
                "name": spec.name,
                "ray_namespace": spec.namespace,
                "pid": actor.pid,
                "node_id": cargo.node_id if cargo is not None else "",
                "never_started": actor.pid == 0,
            }
        }
    return {
        "actor_id": actor_id.hex(),
        "class_name": spec.class_name,
        "state": state,
        "job_id": spec.job_id.hex(),
        "name": spec.name,
        "node_id": (cargo.node_id if cargo is not None else "") or None,
        "pid": actor.pid,
        "ray_namespace": spec.namespace,
        "serialized_runtime_env": json.dumps(
            {"env_vars": environment} if environment else {}
        ),
        "required_resources": to_amounts(spec.need),
        "death_cause": death,
        "is_detached": spec.is_detached,
        "placement_group_id": spec.group.hex() or None,
        "repr_name": actor.repr_name,
        "num_restarts": actor.incarnation,
        "num_restarts_due_to_lineage_reconstruction": 0,
        "num_restarts_due_to_node_preemption": 0,
        "call_site": None,
        "label_selector": dict(labels[0]) if labels else {},
        "fallback_strategy": None,
        # Only who asks may unpickle it.
        "error": cargo.error.data
        if cargo is not None and cargo.error is not None and state == "DEAD"
        else b"",
    }


def nodes(control: ControlService) -> list[Row]:
    """One row for each node, dead ones too."""
    times = control.event_log.node_times
    rows = []
    for node in control.nodes.known.values():
        join, info = node.join, control.nodes.info(node)
        started_s, ended_s = times.get(node.node_id, (0.0, 0.0))
        rows.append(
            {
                "node_id": info.node_id,
                "node_ip": info.node_ip,
                "is_head_node": join.is_head_node,
                "state": "ALIVE" if info.alive else "DEAD",
                "state_message": info.death or None,
                "node_name": info.node_ip,
                "resources_total": join.resources,
                "labels": {"ray.io/node-id": info.node_id, **join.labels},
                "start_time_ms": int(started_s * 1000),
                "end_time_ms": int((info.died_s or ended_s) * 1000),
            }
        )
    return rows


def placement_groups(control: ControlService) -> list[Row]:
    """One row for each placement group that is remembered."""
    machine = control.groups.machine
    rows = []
    for row in control.groups.rows():
        group = machine.groups[bytes.fromhex(row["placement_group_id"])]
        selectors = list(group.selectors)
        stats = row["stats"]
        rows.append(
            {
                "placement_group_id": row["placement_group_id"],
                "name": row["name"],
                "creator_job_id": group.job_id.hex(),
                "state": row["state"],
                "bundles": [
                    {
                        "bundle_id": {
                            "placement_group_id": row["placement_group_id"],
                            "bundle_index": index,
                        },
                        "unit_resources": dict(amounts),
                        "node_id": row["bundles_to_node_id"][index],
                        "label_selector": dict(selectors[index])
                        if index < len(selectors)
                        else {},
                    }
                    for index, amounts in row["bundles"].items()
                ],
                "is_detached": group.is_detached,
                "stats": {
                    "scheduling_attempt": stats["scheduling_attempt"],
                    "highest_retry_delay_ms": stats["highest_retry_delay_ms"],
                    "scheduling_state": stats["scheduling_state"],
                    "scheduling_latency_us": str(
                        int(stats["scheduling_latency_ms"] * 1000)
                    ),
                    "end_to_end_creation_latency_us": str(
                        int(stats["end_to_end_creation_latency_ms"] * 1000)
                    ),
                },
                "topology_strategy": {"strategy": group.topology}
                if group.topology
                else {},
                "topology_assignments": {group.topology: group.domain}
                if group.topology and group.domain
                else {},
            }
        )
    return rows


def jobs(control: ControlService) -> list[Row]:
    """One row for each driver; what it runs only it knows itself."""
    rows = []
    for job_id, life in control.event_log.jobs.items():
        peer = control._server.drivers.get(job_id)
        rows.append(
            {
                "job_id": job_id.hex(),
                "address": life.address,
                "pid": life.pid,
                "status": "SUCCEEDED" if life.ended_s else "RUNNING",
                "start_time": int(life.started_s * 1000),
                "end_time": int(life.ended_s * 1000),
                "is_connected": peer is not None,
            }
        )
    return rows


def stores(control: ControlService) -> list[Row]:
    """How full the store of each live node is."""
    rows = []
    for node in control.nodes.alive():
        local = control.local
        load = node.load
        if node.local is not None and local is not None:
            load = local.load_message()
        rows.append(
            {
                "node_id": node.node_id,
                "node_ip": node.join.info.node_ip,
                "used_bytes": load.store_used_bytes if load is not None else 0,
                "limit_bytes": load.store_limit_bytes if load is not None else 0,
                "spilled_bytes": load.spilled_bytes if load is not None else 0,
                "primary_bytes": load.primary_bytes if load is not None else 0,
            }
        )
    return rows


def cluster_events(control: ControlService) -> list[Row]:
    """The newest changes of nodes, jobs, actors and placement groups."""
    rows = []
    for number, event in enumerate(control.event_log.events):
        about = event.kind.replace("_", " ")
        text = f"{about} {event.name or event.id} is {event.state}"
        if event.message:
            text += f": {event.message}"
        rows.append(
            {
                "severity": _SEVERITY.get((event.kind, event.state), "INFO"),
                "time": datetime.fromtimestamp(event.time_s).isoformat(" "),
                "source_type": "GCS",
                "message": text,
                "event_id": f"{int(event.time_s * 1e6):016x}{number:08x}",
                "custom_fields": {
                    "kind": event.kind,
                    "id": event.id,
                    "state": event.state,
                    "node_id": event.node_id,
                    "job_id": event.job_id,
                },
            }
        )
    return rows


_ROWS: dict[str, Callable[[ControlService], list[Row]]] = {
    "actors": actors,
    "nodes": nodes,
    "placement_groups": placement_groups,
    "jobs": jobs,
    "cluster_events": cluster_events,
    "stores": stores,
}
