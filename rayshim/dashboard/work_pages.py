"""Pages about what runs: leases, actors, tasks, the timeline, placement groups."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rayshim.dashboard import plots, tables
from rayshim.dashboard.reading import MAX_ROWS, Missing, Reader, Unanswered
from rayshim.dashboard.site import Page, Site
from rayshim.dashboard.tables import Column

if TYPE_CHECKING:
    from starlette.requests import Request

#: Kinds of waiting requests that the page of leases explains by itself.
EXPLAINED = 5
#: Seconds for which an explanation, or a long list, is good.
FRESH_S = 2.0
#: Spans that the timeline offers, in seconds; 0: all that is known.
SPANS = (5, 30, 120, 600, 3600, 0)

TASK_COLUMNS = (
    Column("task_id", "Task", is_searched=True),
    Column("name", "Name", is_searched=True),
    Column("state", "State", is_choice=True),
    Column("type", "Kind", is_choice=True),
    Column("func_or_class_name", "Function", is_choice=True),
    Column("node_id", "Node", is_searched=True),
    Column("worker_pid", "Pid", is_number=True, is_searched=True),
    Column("job_id", "Job", is_choice=True),
    Column("start_time_ms", "Began", is_number=True),
    Column("duration_s", "Took", is_number=True),
    Column("error_type", "Error", is_searched=True),
)
ACTOR_COLUMNS = (
    Column("actor_id", "Actor", is_searched=True),
    Column("class_name", "Class", is_choice=True, is_searched=True),
    Column("name", "Name", is_searched=True),
    Column("state", "State", is_choice=True),
    Column("ray_namespace", "Namespace", is_choice=True),
    Column("job_id", "Job", is_choice=True),
    Column("node_id", "Node", is_searched=True),
    Column("pid", "Pid", is_number=True, is_searched=True),
    Column("num_restarts", "Restarts", is_number=True),
)
LEASE_COLUMNS = (
    Column("lease_id", "Lease", is_searched=True),
    Column("label", "For", is_searched=True),
    Column("state", "State", is_choice=True),
    Column("needs", "Resources", is_searched=True),
    Column("node_id", "Node", is_searched=True),
    Column("pid", "Pid", is_number=True),
    Column("backlog", "Calls behind", is_number=True),
    Column("seconds", "Since", is_number=True),
)
GROUP_COLUMNS = (
    Column("placement_group_id", "Group", is_searched=True),
    Column("name", "Name", is_searched=True),
    Column("state", "State", is_choice=True),
    Column("strategy", "Strategy", is_choice=True),
    Column("bundle_count", "Bundles"),
)


class Tasks(NamedTuple):
    """The calls that are remembered."""

    #: The newest, each with ``duration_s``.
    rows: list[dict[str, Any]]
    #: Of all that are remembered.
    total: int
    #: Processes that did not say what they do, a line for each.
    silent: list[str]


async def read_tasks(reader: Reader) -> Tasks:
    """The newest calls.

    Raises:
        Unanswered: nobody answers.
    """
    rows, silent = await reader.all_rows("tasks")
    count = len(rows)
    if count > MAX_ROWS:
        # What runs or waits, then what ended last.
        rows = sorted(rows, key=_newest, reverse=True)[:MAX_ROWS]
    now_ms = time.time() * 1000
    for row in rows:
        start, end = row.get("start_time_ms"), row.get("end_time_ms")
        row["duration_s"] = (
            max(0.0, ((end or now_ms) - start) / 1000) if start else None
        )
    return Tasks(rows, count, silent)


def _newest(row: dict[str, Any]) -> float:
    if row.get("state") not in _ENDED:
        return float("inf")
    return row.get("end_time_ms") or 0.0


async def tasks(request: Request, site: Site) -> dict[str, Any]:
    """The table of calls."""
    found = await read_tasks(site.reader)
    table = tables.cut(
        found.rows,
        TASK_COLUMNS,
        dict(request.query_params),
        path="/tasks",
        sort="start_time_ms",
        is_descending=True,
    )
    return {
        "table": table,
        "limit": MAX_ROWS,
        "count": found.total,
        "silent": found.silent,
    }


async def task(request: Request, site: Site) -> dict[str, Any]:
    """One call, with all its attempts."""
    task_id = request.path_params["task_id"]
    known = await read_tasks(site.reader)
    rows = [row for row in known.rows if row.get("task_id") == task_id]
    if not rows:
        rows = await site.reader.rows(
            "list_tasks",
            filters=[("task_id", "=", task_id)],
            detail=True,
            raise_on_missing_output=False,
        )
    if not rows:
        raise Missing(f"The cluster remembers no task {task_id}.")
    rows.sort(key=lambda row: row.get("attempt_number") or 0)
    last = rows[-1]
    waits = not last.get("start_time_ms") and last.get("state") not in _ENDED
    return {
        "title": f"Task {last.get('name') or task_id[:12]}",
        "task": last,
        "attempts": rows,
        "reasons": await explained(site.reader, task_id) if waits else [],
        "extra": _rest(last, _SHOWN_OF_TASK),
    }


_ENDED = ("FINISHED", "FAILED")
_SHOWN_OF_TASK = frozenset(
    "task_id name state type func_or_class_name node_id worker_pid worker_id job_id "
    "start_time_ms end_time_ms creation_time_ms duration_s error_type error_message "
    "actor_id attempt_number parent_task_id placement_group_id events call_site "
    "required_resources profiling_data task_log_info".split()
)
_SHOWN_OF_ACTOR = frozenset(
    "actor_id class_name name state ray_namespace job_id node_id pid num_restarts "
    "is_detached death_cause repr_name required_resources placement_group_id "
    "is_infeasible call_site".split()
)


def _rest(row: dict[str, Any], shown: frozenset[str]) -> list[tuple[str, Any]]:
    return [
        (key, value)
        for key, value in row.items()
        if key not in shown and value not in (None, "", [], {})
    ]


async def timeline(request: Request, site: Site) -> dict[str, Any]:
    """The picture of what ran where."""
    rows = (await read_tasks(site.reader)).rows
    wanted = request.query_params.get("function", "")[: tables.MAX_TEXT]
    if wanted:
        rows = [row for row in rows if row.get("func_or_class_name") == wanted]
    now_ms = time.time() * 1000
    starts = [row["start_time_ms"] for row in rows if row.get("start_time_ms")]
    ends = [
        row.get("end_time_ms") or now_ms for row in rows if row.get("start_time_ms")
    ]
    span_s = _span(request.query_params.get("span"))
    # A cluster that rests shows its last work, not an empty picture.
    end_ms = max(ends, default=now_ms)
    begin_ms = min(starts, default=now_ms - 1000)
    if span_s:
        begin_ms = max(begin_ms, end_ms - 1000 * span_s)
    picture = plots.timeline(
        rows, begin_ms=begin_ms, end_ms=max(end_ms, begin_ms + 1), now_ms=now_ms
    )
    return {
        "picture": picture,
        "span": span_s,
        "spans": SPANS,
        "function": wanted,
        "labels": plots.LABELS,
        "width": plots.TIMELINE,
        "lane": plots.LANE,
    }


def _span(text: str | None) -> int:
    try:
        return min(max(0, int(text or 30)), 10**7)
    except ValueError:
        return 30


async def actors(request: Request, site: Site) -> dict[str, Any]:
    """The table of actors."""
    rows = await site.reader.ask("state", {"kind": "actors"})
    table = tables.cut(rows, ACTOR_COLUMNS, dict(request.query_params), path="/actors")
    return {"table": table}


async def actor(request: Request, site: Site) -> dict[str, Any]:
    """One actor with its history and newest calls."""
    actor_id = request.path_params["actor_id"]
    reader = site.reader
    found, problems = await reader.together(
        actors=reader.ask("state", {"kind": "actors"}),
        tasks=read_tasks(reader),
        events=reader.ask("state_rows", {"kind": "cluster_events"}),
    )
    if found["actors"] is None:
        raise problems[0]
    rows = [row for row in found["actors"] if row["actor_id"] == actor_id]
    if not rows:
        raise Missing(f"The cluster knows no actor {actor_id}.")
    row = rows[0]
    known = found["tasks"].rows if found["tasks"] else []
    calls = [one for one in known if one.get("actor_id") == actor_id]
    calls.sort(key=lambda one: one.get("start_time_ms") or 0, reverse=True)
    is_pending = row["state"] not in ("ALIVE", "DEAD")
    return {
        "title": f"Actor {row.get('name') or row['class_name']}",
        "problems": problems,
        "actor": row,
        "calls": calls[:50],
        "call_count": len(calls),
        "history": _history(row, found["events"] or ()),
        "reasons": await explained(reader, actor_id) if is_pending else [],
        "extra": _rest(row, _SHOWN_OF_ACTOR),
    }


def _history(
    row: dict[str, Any], events: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """What is known of an actor's lives, the newest last."""
    told = [
        {
            "state": event["custom_fields"]["state"],
            # The id of an event begins with its time in microseconds.
            "at_ms": int(event["event_id"][:16], 16) / 1000,
            "reason": event["message"].partition(": ")[2],
        }
        for event in events
        if (event.get("custom_fields") or {}).get("id") == row["actor_id"]
    ]
    if told:
        return told
    return [{"state": row["state"], "reason": row.get("death_cause") or ""}]


async def explained(reader: Reader, id_text: str) -> list[dict[str, Any]]:
    """Why something waits; empty if nobody says."""
    try:
        found = await reader.ask("why", {"id": id_text}, fresh_s=FRESH_S)
    except Unanswered:
        return []
    return [reason for one in found for reason in one.get("reasons", ())]


async def why(request: Request, site: Site) -> dict[str, Any]:
    """Why anything with an id waits."""
    id_text = request.path_params["id"]
    try:
        found = await site.reader.ask("why", {"id": id_text}, fresh_s=FRESH_S)
    except Unanswered as error:
        raise Missing(f"No explanation for {id_text}: {error.why}") from None
    return {"title": f"Why {id_text[:12]} waits", "explanations": found, "id": id_text}


async def leases(request: Request, site: Site) -> dict[str, Any]:
    """Who holds what, who waits, and why."""
    from rayshim.dashboard.texts import resources

    reader = site.reader
    found, problems = await reader.together(
        figures=site.figures.read(),
        demand=reader.ask("state", {"kind": "demand"}),
        autoscaler=reader.ask("autoscaler_status"),
    )
    if len(problems) == len(found):
        raise problems[0]
    rows: list[dict[str, Any]] = []
    states: dict[str, int] = {}
    silent = []
    for node_id, figures in (found["figures"] or {}).items():
        if figures.get("error"):
            silent.append((node_id, figures["error"]))
            continue
        for state, number in figures["lease_states"].items():
            states[state] = states.get(state, 0) + number
        rows += [{**lease, "node_id": node_id} for lease in figures["leases"]]
    at_nodes = {row["lease_id"] for row in rows}
    unplaced = [row for row in found["demand"] or () if row["lease_id"] not in at_nodes]
    for row in unplaced:
        rows.append(
            {
                **row,
                "node_id": "",
                "pid": 0,
                "backlog": 0,
                "state": row.get("state", "WAITING"),
            }
        )
    # The head knows best what fits nowhere.
    infeasible = {
        row["lease_id"]
        for row in found["demand"] or ()
        if row.get("state") == "INFEASIBLE"
    }
    for row in rows:
        row["needs"] = resources(row["resources"])
        page, row["subject"] = _subject(row["lease_id"])
        row["link"] = f"/{page}/{row['subject']}"
        if row["lease_id"] in infeasible:
            row["state"] = "INFEASIBLE"
    for row in unplaced:
        state = "INFEASIBLE" if row["lease_id"] in infeasible else "WAITING"
        states[state] = states.get(state, 0) + 1
    waiting = [row for row in rows if row["state"] != "GRANTED"]
    return {
        "problems": problems,
        "table": tables.cut(
            rows, LEASE_COLUMNS, dict(request.query_params), path="/leases"
        ),
        "states": states,
        "silent": silent,
        "kinds": await _waiting_kinds(reader, waiting),
        "autoscaler": found["autoscaler"] or [],
    }


#: How the lease of an actor begins, and digits of the actor's id at its end.
_ACTOR_LEASE, _ACTOR_DIGITS = b"actor".hex(), 32


def _subject(lease_id: str) -> tuple[str, str]:
    """What is asked about to explain a lease: a kind of page, and an id.

    Example:
        >>> _subject("6163746f72" + "0" * 11 + "7e4c" + "0" * 28)
        ('actors', '7e4c0000000000000000000000000000')
        >>> _subject("cc" * 16)[0]
        'why'
    """
    if lease_id.startswith(_ACTOR_LEASE) and len(lease_id) > _ACTOR_DIGITS:
        return "actors", lease_id[-_ACTOR_DIGITS:]
    return "why", lease_id


async def _waiting_kinds(
    reader: Reader, waiting: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """What waits, alike requests together, the oldest kinds with why."""
    kinds: dict[tuple[str, str], dict[str, Any]] = {}
    for row in waiting:
        kind = kinds.setdefault(
            (row["label"], row["needs"]),
            {
                "label": row["label"],
                "needs": row["needs"],
                "count": 0,
                "seconds": 0.0,
                "lease_id": row["lease_id"],
                "link": row["link"],
                "state": row["state"],
                "reasons": [],
            },
        )
        kind["count"] += 1
        if row["seconds"] > kind["seconds"]:
            kind["seconds"] = row["seconds"]
            kind["lease_id"] = row["lease_id"]
            kind["link"] = row["link"]
    found = sorted(kinds.values(), key=lambda kind: -kind["seconds"])
    for kind in found[:EXPLAINED]:
        kind["reasons"] = await explained(reader, _subject(kind["lease_id"])[1])
    return found[:50]


async def groups(request: Request, site: Site) -> dict[str, Any]:
    """Placement groups, with where their bundles are."""
    rows = await site.reader.ask("state", {"kind": "placement_groups"})
    shown = []
    for row in rows:
        places = {str(k): v for k, v in (row.get("bundles_to_node_id") or {}).items()}
        bundles = {str(k): v for k, v in (row.get("bundles") or {}).items()}
        by_node: dict[str, list[tuple[str, Any]]] = {}
        for index, need in bundles.items():
            by_node.setdefault(places.get(index, ""), []).append((index, need))
        stats = row.get("stats") or {}
        state = row["state"]
        if row.get("is_infeasible"):
            state = "INFEASIBLE"
        shown.append(
            {
                **row,
                "state": state,
                "by_node": by_node,
                "bundle_count": len(bundles),
                "attempts": stats.get("scheduling_attempt"),
                "created_ms": stats.get("end_to_end_creation_latency_ms"),
            }
        )
    table = tables.cut(
        shown, GROUP_COLUMNS, dict(request.query_params), path="/placement-groups"
    )
    pending = [row for row in table.rows if row["state"] not in ("CREATED", "REMOVED")]
    for row in pending[:EXPLAINED]:
        row["reasons"] = await explained(site.reader, row["placement_group_id"])
    return {"table": table}


PAGES = (
    Page("/leases", "Leases", "leases.html", leases),
    Page("/actors", "Actors", "actors.html", actors),
    Page("/actors/{actor_id}", "Actor", "actor.html", actor),
    Page("/tasks", "Tasks", "tasks.html", tasks),
    Page("/tasks/{task_id}", "Task", "task.html", task),
    Page("/timeline", "Timeline", "timeline.html", timeline, 4),
    Page("/placement-groups", "Placement groups", "groups.html", groups),
    Page("/why/{id}", "Why it waits", "why.html", why),
)
