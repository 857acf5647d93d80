"""Pages about the cluster as a whole: overview, nodes, metrics, Dask, settings."""

from __future__ import annotations

import asyncio
import platform
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rayshim.dashboard import plots, tables
from rayshim.dashboard.reading import MAX_ROWS, Missing
from rayshim.dashboard.site import Page, Site
from rayshim.dashboard.tables import Column

if TYPE_CHECKING:
    from starlette.requests import Request

#: Rows of "what failed last".
SHOWN_FAILURES = 8
#: Of names of resources: those that every node has for itself.
_OWN = ("node:", "object_store_memory")
#: Libraries whose versions are shown.
LIBRARIES = (
    *("cloudpickle", "msgspec", "pyarrow", "distributed", "dask", "numpy", "starlette"),
    *("uvicorn", "jinja2", "psutil"),
)

NODE_COLUMNS = (
    Column("node_id", "Node", is_searched=True),
    Column("hostname", "Host", is_searched=True),
    Column("state", "State", is_choice=True),
    Column("cpu_percent", "Processors", is_number=True),
    Column("memory_percent", "Memory", is_number=True),
    Column("store_percent", "Object store", is_number=True),
    Column("spilled_bytes", "Spilled", is_number=True),
    Column("cpus", "CPUs in use", is_number=True),
    Column("executors", "Executors", is_number=True),
    Column("waiting", "Waiting leases", is_number=True),
)


async def node_rows(site: Site) -> list[dict[str, Any]]:
    """The node table, each row with the node's figures.

    Raises:
        Unanswered: the head does not answer.
    """
    table, figures = await asyncio.gather(
        site.reader.ask("node_table"), site.figures.read()
    )
    return [_node_row(row, figures.get(row["node_id"], {})) for row in table]


def _node_row(row: dict[str, Any], figures: dict[str, Any]) -> dict[str, Any]:
    from rayshim.dashboard.texts import percent

    alive = row.get("alive")
    state = "ALIVE" if alive else "DEAD"
    if alive and row.get("draining"):
        state = "DRAINING"
    elif alive and not row.get("usable", True):
        state = "SUSPECT"
    states = figures.get("lease_states", {})
    total, free = row.get("resources", {}), row.get("available", {})
    # A node's own word is newer than what the head was told.
    if figures.get("total"):
        total, free = figures["total"], figures["available"]
    executors = figures.get("executors", ())
    limit = figures.get("store_limit_bytes")
    return {
        **row,
        "state": state,
        "silence": figures.get("error", "") if alive else "",
        "figures": figures,
        "total": total if alive else {},
        "free": free,
        "cpu_percent": figures.get("cpu_percent"),
        "memory_percent": percent(
            figures.get("memory_used_bytes"), figures.get("memory_total_bytes")
        )
        if figures.get("memory_total_bytes")
        else None,
        "store_percent": percent(figures.get("store_used_bytes"), limit)
        if limit
        else None,
        "spilled_bytes": figures.get("spilled_bytes"),
        "cpus": total.get("CPU", 0.0) - free.get("CPU", 0.0) if alive else None,
        "executors": len(executors) if figures and not figures.get("error") else None,
        "waiting": sum(n for name, n in states.items() if name != "GRANTED")
        if states
        else None,
    }


def summed(rows: Sequence[dict[str, Any]]) -> list[tuple[str, float, float]]:
    """(resource, used, total) of live nodes; CPU and GPU first."""
    totals: dict[str, float] = {}
    used: dict[str, float] = {}
    for row in rows:
        for name, amount in row["total"].items():
            if name.startswith(_OWN):
                continue
            totals[name] = totals.get(name, 0.0) + amount
            used[name] = used.get(name, 0.0) + amount - row["free"].get(name, 0.0)
    order = {"CPU": 0, "GPU": 1, "memory": 2}
    names = sorted(totals, key=lambda name: (order.get(name, 9), name))
    return [(name, used[name], totals[name]) for name in names]


def counted(rows: Sequence[dict[str, Any]] | None, key: str) -> dict[str, int] | None:
    """Value of a column -> number of rows, most first."""
    if rows is None:
        return None
    counts: dict[str, int] = {}
    for row in rows:
        value = str(row.get(key) or "")
        counts[value] = counts.get(value, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


async def overview(request: Request, site: Site) -> dict[str, Any]:
    """What the cluster is and does."""
    from rayshim.dashboard.job_pages import read_jobs
    from rayshim.dashboard.work_pages import read_tasks

    reader = site.reader
    found, problems = await reader.together(
        info=reader.ask("cluster_info"),
        nodes=node_rows(site),
        actors=reader.ask("state", {"kind": "actors"}),
        groups=reader.ask("state", {"kind": "placement_groups"}),
        demand=reader.ask("state", {"kind": "demand"}),
        autoscaler=reader.ask("autoscaler_status"),
        tasks=read_tasks(reader),
        jobs=read_jobs(reader),
    )
    if len(problems) == len(found):
        raise problems[0]
    nodes = found["nodes"] or []
    tasks = found["tasks"].rows if found["tasks"] else []
    failed = [row for row in tasks if row.get("state") == "FAILED"]
    failed.sort(key=lambda row: row.get("end_time_ms") or 0, reverse=True)
    dead = [
        row
        for row in found["actors"] or ()
        if row.get("state") == "DEAD" and row.get("death_cause")
    ]
    return {
        "title": "Overview",
        "problems": problems,
        "info": found["info"] or {},
        "found": site.context.found,
        "nodes": nodes,
        "resources": summed(nodes),
        "store": _store(nodes),
        "node_states": counted(nodes, "state") or {},
        "silent": [row for row in nodes if row["silence"]],
        "are_many": len(tasks) >= MAX_ROWS,
        "task_states": counted(tasks, "state") if found["tasks"] else None,
        "actor_states": counted(found["actors"], "state"),
        "group_states": counted(found["groups"], "state"),
        "job_states": counted(found["jobs"], "status"),
        "waiting": _waiting(nodes, found["demand"] or ()),
        "autoscaler": found["autoscaler"] or [],
        "failed": failed[:SHOWN_FAILURES],
        "dead": dead[-SHOWN_FAILURES:][::-1],
        "charts": _charts(site)[:4],
    }


def _waiting(nodes: Sequence[dict[str, Any]], demand: Sequence[dict[str, Any]]) -> int:
    """Requests that wait at nodes, and of actors at the head."""
    at_nodes = sum(row["waiting"] or 0 for row in nodes)
    # The others are in the queue of the node that asked, or was asked.
    at_head = [row for row in demand if not row.get("asker") and not row.get("sent_to")]
    return at_nodes + len(at_head)


def _store(nodes: Sequence[dict[str, Any]]) -> dict[str, float]:
    keys = (
        *("store_used_bytes", "store_limit_bytes", "spilled_bytes"),
        *("memory_used_bytes", "memory_total_bytes"),
    )
    return {
        key: float(sum(row["figures"].get(key) or 0 for row in nodes)) for key in keys
    }


async def nodes(request: Request, site: Site) -> dict[str, Any]:
    """All nodes."""
    rows = await node_rows(site)
    table = tables.cut(
        rows, NODE_COLUMNS, dict(request.query_params), path="/nodes", sort="state"
    )
    return {
        "table": table,
        "resources": summed(rows),
        "store": _store(rows),
        "problems": [],
    }


async def node(request: Request, site: Site) -> dict[str, Any]:
    """One node with its processes."""
    node_id = request.path_params["node_id"]
    rows = [row for row in await node_rows(site) if row["node_id"] == node_id]
    if not rows:
        raise Missing(f"The cluster has no node {node_id}.")
    row = rows[0]
    figures = row["figures"]
    processes = sorted(
        figures.get("executors", ()), key=lambda one: -(one.get("rss_bytes") or 0)
    )
    samples = site.samples
    return {
        "title": f"Node {node_id[:12]}",
        "node": row,
        "figures": figures,
        "processes": processes,
        "charts": [
            (
                "Processors",
                plots.line(samples.series("cpu", node_id=node_id), 100),
                "%",
            ),
            (
                "Memory",
                plots.line(
                    samples.series("memory", node_id=node_id),
                    figures.get("memory_total_bytes"),
                ),
                "bytes",
            ),
            (
                "Object store",
                plots.line(
                    samples.series("store", node_id=node_id),
                    figures.get("store_limit_bytes"),
                ),
                "bytes",
            ),
        ],
    }


def _charts(site: Site) -> list[tuple[str, plots.Line, str]]:
    samples = site.samples
    newest = samples.ring[-1] if samples.ring else {}
    return [
        ("Processors", plots.line(samples.series("cpu"), 100.0), "%"),
        (
            "Memory of the machines",
            plots.line(samples.series("memory"), newest.get("memory_total") or None),
            "bytes",
        ),
        ("Object store", plots.line(samples.series("store")), "bytes"),
        ("Tasks ended a second", plots.line(samples.series("tasks_per_s")), ""),
        (
            "CPUs in use",
            plots.line(samples.series("used_cpus"), newest.get("total_cpus") or None),
            "",
        ),
        ("Leases that are granted", plots.line(samples.series("granted")), ""),
        ("Leases that wait", plots.line(samples.series("waiting")), ""),
        ("Spilled values", plots.line(samples.series("spilled")), "bytes"),
    ]


async def charts(request: Request, site: Site) -> dict[str, Any]:
    """The figures of the last hour, as far as somebody looked."""
    if not site.samples.ring:
        await site.samples.take()
    table = await site.reader.ask("node_table")
    by_node = [
        (
            row,
            plots.line(site.samples.series("cpu", node_id=row["node_id"]), 100.0),
            plots.line(site.samples.series("store", node_id=row["node_id"])),
        )
        for row in table
        if row.get("alive")
    ]
    return {"charts": _charts(site), "by_node": by_node[:64]}


async def dask(request: Request, site: Site) -> dict[str, Any]:
    """Where Dask is, and how to see its own dashboard."""
    found, problems = await site.reader.together(
        info=site.reader.ask("cluster_info"),
        tasks=site.reader.ask("state", {"kind": "lease_tasks"}),
    )
    if len(problems) == 2:
        raise problems[0]
    info = found["info"] or {}
    return {
        "problems": problems,
        "dask_address": info.get("dask_address") or "",
        "dask_dashboard": _web_link(info.get("dask_dashboard")),
        "is_asked": site.setting("dask_dashboard_port", -1) >= 0,
        "task_states": counted(found["tasks"], "state") or {},
    }


def _web_link(value: Any) -> str:
    text = str(value or "")
    return text if text.startswith(("http://", "https://")) else ""


async def settings(request: Request, site: Site) -> dict[str, Any]:
    """Settings and versions of the cluster's head and of this process."""
    from importlib import metadata

    import rayshim
    from rayshim.settings import Settings

    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    defaults = Settings()
    rows = []
    for name in defaults.__dataclass_fields__:
        default = getattr(defaults, name)
        value = site.setting(name, default)
        rows.append({"name": name, "value": value, "default": default})
    for row in rows:
        # A journal's address may hold a password.
        if row["name"].endswith("_url") and row["value"]:
            row["value"] = _without_password(str(row["value"]))
    return {
        "info": await site.reader.ask("cluster_info"),
        "found": site.context.found,
        "settings": rows,
        "versions": versions,
        "rayshim_version": getattr(rayshim, "RAYSHIM_VERSION", ""),
        "python": sys.version.split()[0],
        "system": platform.platform(),
    }


def _without_password(url: str) -> str:
    scheme, divider, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    return f"{scheme}{divider}***@{place}" if at and login else url


PAGES = (
    Page("/", "Overview", "overview.html", overview),
    Page("/nodes", "Nodes", "nodes.html", nodes),
    Page("/nodes/{node_id}", "Node", "node.html", node),
    Page("/charts", "Metrics", "charts.html", charts, 5),
    Page("/dask", "Dask", "dask.html", dask, 5),
    Page("/settings", "Settings and versions", "settings.html", settings, 0),
)
