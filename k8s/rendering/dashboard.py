"""Grafana's dashboard of a platform.

It shows the platform: workers, money, demand, gangs, service levels. What tasks,
actors and nodes do is on rayshim's own (``rayshim metrics grafana``).
"""

from __future__ import annotations

from typing import Any, Final

from rayshim.adapters.metrics.grafana import panel
from rayshim.k8s import names
from rayshim.k8s.config import Platform
from rayshim.k8s.metric_names import (
    ACTIVE_NODES,
    API_ERRORS,
    DECISIONS,
    DEMAND_AGE,
    GATED_GANGS,
    INFEASIBLE,
    IS_LEADER,
    LATE_WORKERS,
    NODE_CPU,
    PLACEMENT_GROUPS,
    RESOURCES,
    SERVE_ERRORS,
    SERVE_LATENCY,
    SERVE_REQUESTS,
    STORE_USED,
    TASKS,
    TURN_SECONDS,
    WORKERS,
)
from rayshim.k8s.rendering.queries import (
    idle_gpus,
    label,
    quantile,
    rate,
    series,
)

#: States in which a worker's machine is paid for.
_PAID: Final = "~joined|draining|left|lost|deleting"

#: Title, unit of Grafana, (query, legend) of each line.
Panel = tuple[str, str, tuple[tuple[str, str], ...]]


def dashboard(platform: Platform) -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels = [*_workers(platform), *_autoscaler(platform)]
    if platform.runtime == "rayshim":
        panels += _nodes(platform)
    if platform.serve is not None:
        panels += _serve(platform)
    return {
        "uid": f"rayshim-{platform.name}"[:40],
        "title": f"rayshim platform {platform.name}",
        "tags": ["rayshim", platform.name],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"}
            ]
        },
        "panels": [panel(number, *one) for number, one in enumerate(panels)],
    }


def _workers(platform: Platform) -> list[Panel]:
    found: list[Panel] = []
    for group in platform.groups:
        query = series(platform, WORKERS.name, group=group.name)
        title = f"Workers of {group.name} (max {group.max})"
        found.append((title, "short", ((f"sum by (state) ({query})", "{{state}}"),)))
    dollars = tuple(
        (
            f"sum({series(platform, WORKERS.name, group=group.name, state=_PAID)})"
            f" * {group.price:g}",
            group.name,
        )
        for group in platform.groups
    )
    late = series(platform, LATE_WORKERS.name)
    return [
        *found,
        ("Dollars an hour", "currencyUSD", dollars),
        ("Late workers", "short", ((f"sum by (group) ({late})", "{{group}}"),)),
    ]


def _autoscaler(platform: Platform) -> list[Panel]:
    decisions = rate(platform, DECISIONS.name, "5m")
    return [
        (
            "Age of the demand",
            "s",
            ((f"min({series(platform, DEMAND_AGE.name)})", "demand"),),
        ),
        (
            "What waits in vain",
            "short",
            (
                (f"max({series(platform, INFEASIBLE.name)})", "infeasible"),
                (f"max({series(platform, GATED_GANGS.name)})", "gated gangs"),
            ),
        ),
        (
            "Decisions a minute",
            "short",
            ((f"sum by (kind) ({decisions}) * 60", "{{kind}}"),),
        ),
        (
            "A turn of the autoscaler",
            "s",
            (
                (quantile(platform, 0.5, TURN_SECONDS, "5m"), "median"),
                (quantile(platform, 0.95, TURN_SECONDS, "5m"), "95 %"),
            ),
        ),
        (
            "Leader, and failed calls a second",
            "short",
            (
                (f"sum({series(platform, IS_LEADER.name)})", "leaders"),
                (f"sum({rate(platform, API_ERRORS.name, '5m')})", "failed calls"),
            ),
        ),
    ]


def _nodes(platform: Platform) -> list[Panel]:
    group = label(names.GROUP)
    used = series(platform, RESOURCES.name, Name="GPU", State="USED")
    cpus = series(platform, RESOURCES.name, Name="CPU", State="USED")
    gpus = [one for one in platform.groups if one.is_gpu]
    found: list[Panel] = [
        (
            "Logical CPUs in use",
            "short",
            ((f"sum by ({group}) ({cpus})", f"{{{{{group}}}}}"),),
        ),
        (
            "Tasks by state",
            "short",
            ((f"sum by (State) ({series(platform, TASKS.name)})", "{{State}}"),),
        ),
        (
            "Nodes and placement groups",
            "short",
            (
                (f"max({series(platform, ACTIVE_NODES.name)})", "nodes"),
                (
                    f"sum by (State) ({series(platform, PLACEMENT_GROUPS.name)})",
                    "groups {{State}}",
                ),
            ),
        ),
        (
            "Object store in use",
            "bytes",
            (
                (
                    f"sum by ({group}) ({series(platform, STORE_USED.name)})",
                    f"{{{{{group}}}}}",
                ),
            ),
        ),
        (
            "Processors",
            "percent",
            (
                (
                    f"avg by ({group}) ({series(platform, NODE_CPU.name)})",
                    f"{{{{{group}}}}}",
                ),
            ),
        ),
    ]
    if gpus:
        idle = tuple((idle_gpus(platform, one), f"{one.name} idle") for one in gpus)
        lines = ((f"sum by ({group}) ({used})", f"{{{{{group}}}}} in use"), *idle)
        found.insert(0, ("Logical GPUs", "short", lines))
    return found


def _serve(platform: Platform) -> list[Panel]:
    requests = rate(platform, SERVE_REQUESTS.name, "5m")
    errors = rate(platform, SERVE_ERRORS.name, "5m")
    return [
        (
            "Requests a second",
            "reqps",
            ((f"sum({requests})", "answered"), (f"sum({errors})", "failed")),
        ),
        (
            "Latency",
            "ms",
            (
                (quantile(platform, 0.5, SERVE_LATENCY, "5m"), "median"),
                (quantile(platform, 0.99, SERVE_LATENCY, "5m"), "99 %"),
            ),
        ),
    ]
