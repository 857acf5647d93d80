"""State of sessions that are over, and of a moment of one, from their event files."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rayshim._core import session_folders
from rayshim.adapters.events import history, reading
from rayshim.lineage import task_events
from rayshim.util.state.common import StateResource
from rayshim.util.state.exception import RayStateApiException

Row = dict[str, Any]

_AGO = re.compile(r"-(\d+(?:\.\d+)?)(s|m|h)?$")
_AFTER = re.compile(r"\+(\d+(?:\.\d+)?)(s|m|h)?$")
_SECONDS = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
#: Resources of which the files say something.
PAST_RESOURCES = (
    StateResource.TASKS,
    StateResource.ACTORS,
    StateResource.NODES,
    StateResource.JOBS,
    StateResource.PLACEMENT_GROUPS,
    StateResource.CLUSTER_EVENTS,
)


def events_of(where: str, temp_dir: str | None = None) -> reading.Events:
    """The events of a session, or of a file or folder of events.

    Args:
        where: a path, the name of a session, or "last" for the one that ended last.
        temp_dir: where sessions are, if not in the usual folder.

    Raises:
        RayStateApiException: there is nothing, or it is no event file.
    """
    path = Path(where)
    try:
        if path.exists() and where != "last":
            inside = path / "events"
            place = inside if inside.is_dir() else path
            if place.is_dir() and not reading.has_events(place):
                raise FileNotFoundError(f"there are no events in the folder {place}")
            return reading.read([place])
        root = session_folders.session_root(temp_dir)
        return reading.read(part.events for part in history.find(root, where))
    except (OSError, ValueError) as error:
        raise RayStateApiException(str(error)) from None


def rows_of(
    resource: StateResource, where: str, temp_dir: str | None = None
) -> list[Row]:
    """All rows of a resource, as they were at the end of a session.

    Args:
        resource: one of :data:`PAST_RESOURCES`.
        where: as for :func:`events_of`.
        temp_dir: as for :func:`events_of`.

    Raises:
        RayStateApiException: there is nothing, or the files say nothing of it.
    """
    if resource not in PAST_RESOURCES:
        known = ", ".join(one.value for one in PAST_RESOURCES)
        raise RayStateApiException(
            f"nothing is written of {resource.value}; of a session that is over there "
            f"are {known}"
        )
    return state_at(events_of(where, temp_dir))[resource.value]  # type: ignore[no-any-return]


def state_at(events: reading.Events, until_s: float = float("inf")) -> dict[str, Any]:
    """Tasks, actors, nodes, jobs and groups as of a moment, in the columns of lists.

    Args:
        events: of one session.
        until_s: seconds since the epoch.
    """
    known = task_events.at(events.calls, events.cluster, until_s)
    return {
        "time_s": until_s,
        "tasks": known["tasks"],
        "actors": [_actor(row) for row in known["actors"]],
        "nodes": [_node(row) for row in known["nodes"]],
        "jobs": [_job(row) for row in known["jobs"]],
        "placement_groups": [_group(row) for row in known["placement_groups"]],
        "cluster_events": [
            _event(row) for row in events.cluster if row["time_s"] <= until_s
        ],
    }


def _actor(row: Row) -> Row:
    death = None
    if row["state"] == "DEAD":
        death = {"actor_died_error_context": {"error_message": row["message"]}}
    return {
        "actor_id": row["id"],
        "class_name": row["name"],
        "state": row["state"],
        "job_id": row["job_id"],
        "node_id": row["node_id"] or None,
        "pid": row["pid"],
        "death_cause": death,
    }


def _node(row: Row) -> Row:
    return {
        "node_id": row["id"],
        "node_ip": row["name"],
        "node_name": row["name"],
        "state": row["state"],
        "state_message": row["message"] or None,
    }


def _job(row: Row) -> Row:
    return {
        "type": "DRIVER",
        "job_id": row["id"],
        "status": row["state"],
        "driver_info": {"id": row["id"], "pid": str(row["pid"])},
    }


def _group(row: Row) -> Row:
    return {
        "placement_group_id": row["id"],
        "name": row["name"],
        "creator_job_id": row["job_id"],
        "state": row["state"],
    }


def _event(row: Row) -> Row:
    text = f"{row['kind'].replace('_', ' ')} {row['name'] or row['id']} is "
    text += row["state"] + (f": {row['message']}" if row["message"] else "")
    return {
        "severity": "INFO",
        "time": datetime.datetime.fromtimestamp(row["time_s"]).isoformat(" "),
        "source_type": "GCS",
        "message": text,
        "event_id": f"{int(row['time_s'] * 1e6):016x}",
        "custom_fields": {"kind": row["kind"], "id": row["id"], "state": row["state"]},
    }


def moment(text: str, events: reading.Events) -> float:
    """A moment that a user has written, in seconds since the epoch.

    Args:
        text: date and time as in ISO 8601 (local without a zone), seconds since the
            epoch, "+90s" (or m, h) after the first event, "-90s" before the last.
        events: what it refers to.

    Raises:
        ValueError: it is none of these.
    """
    begin_s, end_s = bounds(events)
    found = _AFTER.match(text)
    if found:
        return begin_s + float(found[1]) * _SECONDS[found[2]]
    found = _AGO.match(text)
    if found:
        return end_s - float(found[1]) * _SECONDS[found[2]]
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ValueError(
            f"{text!r} is no moment: write 2026-01-31T12:00:00, seconds since 1970, "
            "+90s after the first event, or -90s before the last (s, m, h)"
        ) from None


def bounds(events: reading.Events) -> tuple[float, float]:
    """When the first and the last event were, in seconds since the epoch."""
    calls: Sequence[Row] = events.calls
    times = [row["start_s"] or row["end_s"] for row in calls]
    times += [row["end_s"] for row in calls]
    times += [row["time_s"] for row in events.cluster]
    return (min(times), max(times)) if times else (time.time(), time.time())


def timeline(where: str, temp_dir: str | None = None) -> list[Row]:
    """The calls of a session as Chrome's trace events; see ``ray.timeline``.

    Raises:
        RayStateApiException: there is nothing, or it is no event file.
    """
    return task_events.timeline(events_of(where, temp_dir).calls)
