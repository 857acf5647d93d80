"""A Grafana dashboard of the metrics that nodes have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: (title, unit, [(query, legend)]); ``$node`` is a choice of the reader.
_PANELS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Tasks by state",
        "short",
        (("sum(ray_tasks{$cluster}) by (State)", "{{State}}"),),
    ),
    (
        "Tasks that wait or run, by name",
        "short",
        (("sum(ray_tasks{$cluster}) by (Name)", "{{Name}}"),),
    ),
    (
        "Actors by state",
        "short",
        (("sum(ray_actors{$cluster}) by (State)", "{{State}}"),),
    ),
    (
        "Placement groups by state",
        "short",
        (("sum(ray_gcs_placement_group_count{$cluster}) by (State)", "{{State}}"),),
    ),
    (
        "Logical CPUs",
        "short",
        (
            (
                'sum(ray_resources{Name="CPU",State="USED",$cluster}) by (NodeAddress)',
                "used, {{NodeAddress}}",
            ),
            ('sum(ray_resources{Name="CPU",$cluster})', "all"),
        ),
    ),
    (
        "Logical GPUs",
        "short",
        (
            (
                'sum(ray_resources{Name="GPU",State="USED",$cluster}) by (NodeAddress)',
                "used, {{NodeAddress}}",
            ),
            ('sum(ray_resources{Name="GPU",$cluster})', "all"),
        ),
    ),
    (
        "Object store",
        "bytes",
        (
            (
                "sum(ray_object_store_memory{$cluster}) by (Location)",
                "{{Location}}",
            ),
            ("sum(ray_object_store_available_memory{$cluster})", "free"),
        ),
    ),
    (
        "Values on disk",
        "bytes",
        (
            (
                'sum(ray_spill_manager_objects_bytes{State="Spilled",$cluster}) '
                "by (NodeAddress)",
                "{{NodeAddress}}",
            ),
        ),
    ),
    (
        "CPU use",
        "percent",
        (("ray_node_cpu_utilization{$cluster}", "{{ip}}"),),
    ),
    (
        "Memory",
        "bytes",
        (
            ("ray_node_mem_used{$cluster}", "used, {{ip}}"),
            ("sum(ray_node_mem_total{$cluster})", "all"),
        ),
    ),
    (
        "Memory by component",
        "bytes",
        (("sum(ray_component_uss_bytes{$cluster}) by (Component)", "{{Component}}"),),
    ),
    (
        "CPU by component",
        "percent",
        (
            (
                "sum(ray_component_cpu_percentage{$cluster}) by (Component)",
                "{{Component}}",
            ),
        ),
    ),
    (
        "Disk use",
        "percent",
        (("ray_node_disk_utilization_percentage{$cluster}", "{{ip}}"),),
    ),
    (
        "Disk speed",
        "Bps",
        (
            ("ray_node_disk_io_read_speed{$cluster}", "read, {{ip}}"),
            ("ray_node_disk_io_write_speed{$cluster}", "write, {{ip}}"),
        ),
    ),
    (
        "Network",
        "Bps",
        (
            ("ray_node_network_receive_speed{$cluster}", "received, {{ip}}"),
            ("ray_node_network_send_speed{$cluster}", "sent, {{ip}}"),
        ),
    ),
    (
        "Nodes and jobs",
        "short",
        (
            ("sum(ray_cluster_active_nodes{$cluster})", "nodes"),
            ("sum(ray_running_jobs{$cluster})", "jobs"),
        ),
    ),
)
_CLUSTER = 'SessionName=~"$SessionName"'
_COLUMNS, _WIDTH, _HEIGHT = 2, 12, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it.

    Example:
        >>> dashboard()["panels"][0]["title"]
        'Tasks by state'
    """
    return {
        "uid": "rayDefaultDashboard",
        "title": "rayshim",
        "tags": ["ray", "rayshim"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "SessionName",
                    "type": "query",
                    "datasource": _SOURCE,
                    "definition": "label_values(ray_node_cpu_count, SessionName)",
                    "query": "label_values(ray_node_cpu_count, SessionName)",
                    "includeAll": True,
                    "allValue": ".*",
                    "multi": True,
                    "refresh": 2,
                },
            ]
        },
        "panels": [
            panel(number, title, unit, _of_cluster(queries))
            for number, (title, unit, queries) in enumerate(_PANELS)
        ],
    }


def panel(
    number: int, title: str, unit: str, queries: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """A panel with a line for each query, over time.

    Args:
        number: its place, from 0, row by row.
        title: above it.
        unit: of its values, as Grafana calls it ("short", "bytes", "percent").
        queries: (PromQL, legend) of each line.
    """
    return {
        "id": number + 1,
        "title": title,
        "type": "timeseries",
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "gridPos": {
            "x": number % _COLUMNS * _WIDTH,
            "y": number // _COLUMNS * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "targets": [
            {
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend,
                "refId": chr(ord("A") + place),
            }
            for place, (query, legend) in enumerate(queries)
        ],
    }


def _of_cluster(queries: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(query.replace("$cluster", _CLUSTER), legend) for query, legend in queries]
