"""What is known of calls, joined from those who know it: a row for each attempt.

Executors and owners say which calls have ended, and how; owners say which have not, and
how far they are; executors say which of those they run. An attempt is told once in each
of these ways at most, in any order, and late: what says more wins.

1. An attempt that has ended does not go back: an end beats whatever is said of it as
   unfinished.
2. Of two ends, that of the executor counts: the owner tells only of what did not run to
   its end.
3. Of what has not ended, the executor's word beats the owner's: it runs there.

Rows are dictionaries in the columns of ``ray.util.state``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]

#: Kinds of calls, by number.
TYPES = ("NORMAL_TASK", "ACTOR_CREATION_TASK", "ACTOR_TASK")
CREATION = 1
#: Values that say nothing.
_NOTHING: tuple[Any, ...] = (None, "", [], {})
#: Id of what stands for a driver's program, without its job.
_DRIVER = "ff" * 20


def joined(ended: Iterable[Row], live: Iterable[Row]) -> list[Row]:
    """One row for each attempt, in the order of their first mention.

    Args:
        ended: rows of the event files (``adapters/events/records.py``).
        live: the same columns of calls that have not ended, those of owners first;
            ``labels`` and ``call_site`` where they are known.
    """
    found: dict[tuple[str, int], Row] = {}
    for event in ended:
        key = (event["task_id"], event["attempt_number"])
        known = found.get(key)
        if known is None or known["_role"] == "owner":
            found[key] = _row(event)
    for call in live:
        key = (call["task_id"], call["attempt_number"])
        known = found.get(key)
        if known is None:
            found[key] = _row(call)
        elif known["end_time_ms"] is None:
            _complete(known, _row(call))
    for row in found.values():
        del row["_role"]
    return list(found.values())


def _complete(known: Row, row: Row) -> None:
    """Adds to what an owner says of a call what its executor says, or the reverse."""
    is_better = row["_role"] != "owner"
    for name, value in row.items():
        if value not in _NOTHING and (is_better or known[name] in _NOTHING):
            known[name] = value


def _row(event: Row) -> Row:
    """A row of state from an event, or from what is said of a live call."""
    is_over = event["state"] in ("FINISHED", "FAILED")
    start_ms = _ms(event["start_s"])
    end_ms = _ms(event["end_s"]) if is_over else None
    is_owner = event["role"] == "owner"
    name, job_id = event["name"], event["job_id"]
    return {
        "task_id": event["task_id"],
        "attempt_number": event["attempt_number"],
        "name": name,
        "state": event["state"],
        "job_id": job_id,
        "actor_id": event["actor_id"] or None,
        "type": TYPES[event["kind"]],
        "func_or_class_name": event.get("function") or name,
        "parent_task_id": event["parent_task_id"] or _DRIVER + job_id,
        "node_id": None if is_owner else event["node_id"],
        "worker_id": None if is_owner else event["worker_id"],
        "worker_pid": None if is_owner else event["worker_pid"],
        "error_type": event["error_type"] or None,
        "language": "PYTHON",
        "required_resources": event["resources"],
        "runtime_env_info": {"env_vars": event["env_vars"]}
        if event["env_vars"]
        else {},
        "placement_group_id": event["placement_group_id"] or None,
        "events": _states(event, start_ms, end_ms),
        "profiling_data": _profile(event) if not is_owner and start_ms else {},
        "creation_time_ms": None,
        "start_time_ms": start_ms or None,
        "end_time_ms": end_ms,
        "task_log_info": None,
        "error_message": event["error_message"] or None,
        "is_debugger_paused": None,
        "call_site": event.get("call_site") or None,
        "label_selector": event.get("labels") or {},
        "fallback_strategy": None,
        "_role": event["role"],
    }


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _states(event: Row, start_ms: int, end_ms: int | None) -> list[Row]:
    states = []
    if start_ms:
        states.append({"state": "RUNNING", "created_ms": float(start_ms)})
    if end_ms is not None:
        states.append({"state": event["state"], "created_ms": float(end_ms)})
    elif not start_ms:
        states.append({"state": event["state"], "created_ms": None})
    return states


def _profile(event: Row) -> Row:
    return {
        "component_type": "worker",
        "component_id": event["worker_id"],
        "node_ip_address": event["node_ip"],
        "events": [
            {
                "event_name": f"task::{event['name']}",
                "start_time": event["start_s"] * 1000,
                "end_time": event["end_s"] * 1000 or None,
                "extra_data": {"name": event["name"], "task_id": event["task_id"]},
            }
        ],
    }


# -- a timeline ------------------------------------------------------------------

#: Colours of Chrome's trace viewer.
_COLORS = {"FINISHED": "generic_work", "FAILED": "terrible"}


def timeline(
    ended: Iterable[Row], live: Sequence[Row] = (), now_s: float = 0.0
) -> list[Row]:
    """Calls as events of Chrome's trace format, which Perfetto reads as well.

    Args:
        ended: rows of the event files.
        live: calls that run, in the same columns.
        now_s: where the bars of those end; seconds since the epoch.

    Returns:
        A list for ``json.dump``: a bar for each call that ran, in the row of its
        process, and names of the rows.
    """
    found = []
    places: dict[tuple[str, str], Row] = {}
    for row in [*ended, *live]:
        if not row["start_s"]:
            continue
        end_s = row["end_s"] or now_s
        place = (row["node_ip"], row["worker_id"])
        places.setdefault(place, row)
        found.append(
            {
                "cat": f"task::{row['name']}",
                "name": row["name"],
                "pid": row["node_ip"],
                "tid": f"worker:{row['worker_id']}",
                "ts": row["start_s"] * 1e6,
                "dur": max(0.0, end_s - row["start_s"]) * 1e6,
                "ph": "X",
                "cname": _COLORS.get(row["state"], "good"),
                "args": {
                    "name": row["name"],
                    "task_id": row["task_id"],
                    "attempt_number": row["attempt_number"],
                    "job_id": row["job_id"],
                    "actor_id": row["actor_id"] or None,
                    "state": row["state"],
                    "error_type": row["error_type"] or None,
                },
            }
        )
    names = []
    for (node_ip, worker_id), row in places.items():
        what = f"pid {row['worker_pid']}"
        if row["actor_id"]:
            what = f"{row['name'].partition('.')[0]} {what}"
        names.append(
            {
                "cat": "__metadata",
                "ph": "M",
                "name": "thread_name",
                "ts": 0.0,
                "pid": node_ip,
                "tid": f"worker:{worker_id}",
                "args": {"name": what},
            }
        )
    return found + names


# -- replay -------------------------------------------------------------------------


def at(calls: Sequence[Row], cluster: Sequence[Row], until_s: float) -> dict[str, Any]:
    """The state of tasks, actors, nodes, jobs and groups as of a moment of the past.

    Args:
        calls: rows of the event files; what had not ended by then and ran is RUNNING.
            Of what waited at that moment nothing is written, and so nothing said.
        cluster: changes, in the order of time.
        until_s: seconds since the epoch.
    """
    ended = [row for row in calls if row["end_s"] <= until_s]
    running = [
        {**row, "state": "RUNNING", "end_s": 0.0, "error_type": "", "error_message": ""}
        for row in calls
        if 0 < row["start_s"] <= until_s < row["end_s"]
    ]
    things: dict[str, dict[str, Row]] = {
        "node": {},
        "job": {},
        "actor": {},
        "placement_group": {},
    }
    for change in cluster:
        if change["time_s"] > until_s:
            break
        known = things.setdefault(change["kind"], {}).setdefault(change["id"], {})
        known.update({k: v for k, v in change.items() if v or k not in known})
    return {
        "time_s": until_s,
        "tasks": joined(ended, running),
        **{f"{kind}s": list(rows.values()) for kind, rows in things.items()},
    }
