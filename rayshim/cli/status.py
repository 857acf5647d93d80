"""``rayshim status``: the nodes of a cluster, what is used, what waits."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import click

from rayshim.cli.finding import address_option, ask, temp_dir_option, the_cluster

#: Amounts that are bytes.
_BYTES = ("memory", "object_store_memory")
#: Nodes that are listed one by one without --verbose.
MAX_LINES = 20


@click.command()
@address_option
@click.option("-v", "--verbose", is_flag=True, help="Usage of each node, and notes.")
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json", "yaml"]),
    default="text",
    show_default=True,
    help="How to print it.",
)
@temp_dir_option
def status(address: str, verbose: bool, output: str, temp_dir: str | None) -> None:
    """Show the nodes of a cluster, what is used of them, and what waits for room.

    Exit code 1 if there is no cluster, or it does not answer.
    """
    found = the_cluster(address, temp_dir)
    info, nodes, demand, notes = ask(
        found,
        ("cluster_info", None),
        ("node_table", None),
        ("demand", None),
        ("autoscaler_status", None),
    )
    facts = {
        "address": found.address,
        "dashboard_url": info.get("dashboard_url", ""),
        "versions": info.get("versions", {}),
        "nodes": [_node_facts(row) for row in nodes if not row["is_client"]],
        "usage": _usage(nodes),
        "demand": _demands(demand),
        "autoscaler": notes,
    }
    if output == "json":
        import json

        click.echo(json.dumps(facts, indent=2))
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(facts, sort_keys=False))
    else:
        for line in _lines(facts, verbose):
            click.echo(line)


def _node_facts(row: dict[str, Any]) -> dict[str, Any]:
    state = "active" if row["alive"] else "dead"
    if row["alive"] and row["draining"]:
        state = "draining"
    elif row["alive"] and not row["usable"]:
        state = "suspect"
    total, free = row["resources"], row["available"]
    return {
        "node_id": row["node_id"],
        "ip": row["node_ip"],
        "hostname": row["hostname"],
        "state": state,
        "is_head": row["is_head_node"],
        "note": row["death"] or row["drain_note"],
        "used": {name: total[name] - free.get(name, 0.0) for name in total},
        "total": total,
        "labels": row["labels"],
    }


def _usage(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Resource -> what is used of all live nodes, and what they have."""
    usage: dict[str, dict[str, float]] = {}
    for row in rows:
        if not row["alive"] or row["is_client"]:
            continue
        for name, amount in row["resources"].items():
            one = usage.setdefault(name, {"used": 0.0, "total": 0.0})
            one["total"] += amount
            one["used"] += amount - row["available"].get(name, 0.0)
    return usage


def _demands(demand: dict[str, Any]) -> list[dict[str, Any]]:
    """What waits for room: shapes, and how many of each."""
    found = [
        {
            "kind": "tasks and actors",
            "shape": one["resources"],
            "count": one["count"],
        }
        for one in demand["leases"]
    ]
    found += [
        {
            "kind": "placement group",
            "shape": {"strategy": one["strategy"], "bundles": one["bundles"]},
            "count": 1,
        }
        for one in demand["gangs"]
    ]
    wanted = Counter(tuple(sorted(bundle.items())) for bundle in demand["requested"])
    found += [
        {"kind": "request_resources()", "shape": dict(shape), "count": count}
        for shape, count in wanted.items()
    ]
    return found


def _lines(facts: dict[str, Any], verbose: bool) -> list[str]:
    nodes = facts["nodes"]
    alive = [one for one in nodes if one["state"] != "dead"]
    dead = [one for one in nodes if one["state"] == "dead"]
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    lines = [f"Cluster {facts['address']} at {now}"]
    if facts["dashboard_url"]:
        lines.append(f"Dashboard: {facts['dashboard_url']}")
    lines += ["", f"Nodes: {len(alive)} alive, {len(dead)} dead"]
    shown = nodes if verbose else [*alive[:MAX_LINES], *dead[:MAX_LINES]]
    for one in shown:
        head = ", head" if one["is_head"] else ""
        note = f": {one['note']}" if one["note"] else ""
        lines.append(
            f"  {one['state']:9} {one['node_id'][:8]}  {one['ip']} "
            f"({one['hostname']}{head}){note}"
        )
        if verbose and one["state"] != "dead":
            for name, total in one["total"].items():
                lines.append(f"      {_amount(name, one['used'][name], total)}")
            if one["labels"]:
                labels = ", ".join(f"{k}={v}" for k, v in one["labels"].items())
                lines.append(f"      labels: {labels}")
    if len(shown) < len(nodes):
        lines.append(f"  and {len(nodes) - len(shown)} more (-v shows all)")
    lines += ["", "Usage:"]
    for name, one in sorted(facts["usage"].items()):
        if verbose or not name.startswith("node:"):
            lines.append(f"  {_amount(name, one['used'], one['total'])}")
    lines += ["", "Demand:"]
    for one in facts["demand"]:
        lines.append(f"  {one['count']} x {_shape(one['shape'])} ({one['kind']})")
    if not facts["demand"]:
        lines.append("  nothing waits for room")
    if facts["autoscaler"]:
        lines += ["", "Autoscaler:", *(f"  {line}" for line in facts["autoscaler"])]
    elif verbose:
        lines += ["", "Autoscaler:", "  none reports"]
    if verbose:
        versions = ", ".join(f"{k} {v}" for k, v in facts["versions"].items())
        lines += ["", f"Versions: {versions}"]
    return lines


def _amount(name: str, used: float, total: float) -> str:
    if name in _BYTES:
        return f"{_size(used)} / {_size(total)} {name}"
    return f"{used:g} / {total:g} {name}"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def _shape(shape: dict[str, Any]) -> str:
    parts = []
    for key, value in shape.items():
        shown = f"{value:g}" if isinstance(value, float) else value
        parts.append(f"{key}: {shown}")
    return "{" + ", ".join(parts) + "}"
