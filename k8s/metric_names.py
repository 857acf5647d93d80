"""Names of the autoscaler's metrics, and of others that its monitoring asks for.

The autoscaler shows what is in :data:`AUTOSCALER`; alert rules and dashboards may use
those, what rayshim's nodes show (``docs/metrics-and-logs.md``), and what a serving
program counts (:data:`SERVE`). A test holds every query to these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class MetricName:
    """A metric as Prometheus knows it.

    Args:
        name: in full; a counter's ends in ``_total``.
        kind: as Prometheus calls it.
        labels: that its values have.
        description: for the HELP line.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    description: str

    def samples(self) -> tuple[str, ...]:
        """Names of its series: of a histogram three, of others one.

        Example:
            >>> TURN_SECONDS.samples()[0]
            'rayshim_autoscaler_turn_seconds_bucket'
        """
        if self.kind == "histogram":
            return tuple(f"{self.name}_{one}" for one in ("bucket", "count", "sum"))
        return (self.name,)


#: Name of the container port, and of the Service port, where metrics are read.
METRICS_PORT: Final = "metrics"

#: Values of the label ``state`` of :data:`WORKERS`: see "One worker's life" in the
#: design.
WORKER_STATES: Final = (
    "owed",
    "starting",
    "joined",
    "draining",
    "left",
    "lost",
    "deleting",
)
#: Values of the label ``kind`` of :data:`DECISIONS`.
DECISION_KINDS: Final = (
    "launch",
    "drain",
    "drain_refused",
    "delete",
    "replicas",
    "repair",
    "start_gang",
    "end_gang",
)

WORKERS: Final = MetricName(
    "rayshim_autoscaler_workers",
    "gauge",
    ("group", "state"),
    "Workers by group and state.",
)
LATE_WORKERS: Final = MetricName(
    "rayshim_autoscaler_late_workers",
    "gauge",
    ("group",),
    "Workers that did not join within twice the cold start of their group.",
)
DECISIONS: Final = MetricName(
    "rayshim_autoscaler_decisions_total",
    "counter",
    ("kind",),
    "Decisions that were carried out, by kind.",
)
DEMAND_AGE: Final = MetricName(
    "rayshim_autoscaler_demand_age_seconds",
    "gauge",
    (),
    "Seconds since the head last said what is lacking.",
)
IS_LEADER: Final = MetricName(
    "rayshim_autoscaler_is_leader",
    "gauge",
    (),
    "1: holds the Lease and decides; 0: stands by.",
)
INFEASIBLE: Final = MetricName(
    "rayshim_autoscaler_infeasible",
    "gauge",
    (),
    "Requests that no group can fulfil, or for which all groups are at their maximum.",
)
GATED_GANGS: Final = MetricName(
    "rayshim_autoscaler_gated_gangs",
    "gauge",
    (),
    "Gangs of which a pod waits for quota.",
)
TURN_SECONDS: Final = MetricName(
    "rayshim_autoscaler_turn_seconds",
    "histogram",
    (),
    "Duration of a turn: look, decide, carry out.",
)
API_ERRORS: Final = MetricName(
    "rayshim_autoscaler_api_errors_total",
    "counter",
    (),
    "Calls of Kubernetes' API that failed.",
)

#: All that the autoscaler shows.
AUTOSCALER: Final = (
    WORKERS,
    LATE_WORKERS,
    DECISIONS,
    DEMAND_AGE,
    IS_LEADER,
    INFEASIBLE,
    GATED_GANGS,
    TURN_SECONDS,
    API_ERRORS,
)

RESOURCES: Final = MetricName(
    "ray_resources",
    "gauge",
    ("Name", "State"),
    "Logical resources of a node, USED and AVAILABLE.",
)
TASKS: Final = MetricName("ray_tasks", "gauge", ("Name", "State"), "Tasks by state.")
ACTIVE_NODES: Final = MetricName(
    "ray_cluster_active_nodes", "gauge", (), "Nodes that live, told by the head."
)
PLACEMENT_GROUPS: Final = MetricName(
    "ray_gcs_placement_group_count", "gauge", ("State",), "Placement groups by state."
)
NODE_CPU: Final = MetricName(
    "ray_node_cpu_utilization", "gauge", ("ip",), "CPU use of a node, in percent."
)
STORE_USED: Final = MetricName(
    "ray_object_store_used_memory", "gauge", (), "Object store in use, in bytes."
)
#: Of rayshim's own nodes, as far as monitoring asks for them.
NODES: Final = (
    RESOURCES,
    TASKS,
    ACTIVE_NODES,
    PLACEMENT_GROUPS,
    NODE_CPU,
    STORE_USED,
)

SERVE_REQUESTS: Final = MetricName(
    "ray_serve_num_http_requests_total",
    "counter",
    ("application",),
    "Requests that were answered.",
)
SERVE_ERRORS: Final = MetricName(
    "ray_serve_num_http_error_requests_total",
    "counter",
    ("application",),
    "Requests that were answered with an error.",
)
SERVE_LATENCY: Final = MetricName(
    "ray_serve_http_request_latency_ms",
    "histogram",
    ("application",),
    "Milliseconds from a request to its answer.",
)
#: What a serving program counts with ``ray.util.metrics``, named as Ray Serve's are
#: (there without ``ray_`` and ``_total``).
SERVE: Final = (SERVE_REQUESTS, SERVE_ERRORS, SERVE_LATENCY)

#: From Prometheus itself: whether a target answered.
UP: Final = MetricName("up", "gauge", (), "1: the target answered its scrape.")
