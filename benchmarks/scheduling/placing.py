"""Leases: how long one takes, and how soon work is on all nodes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from cases import STORE_BYTES, Line, case, cluster, on

TASKS, TASK_S, NODES = 1000, 0.02, 4
#: Leases that are timed, of each kind.
LEASES = 50


@case(
    "lease_latency",
    Line("lease of the own node, median", "ms", threshold=2.0),
    Line("lease through Dask's scheduler, median", "ms", threshold=15.0),
    backends=("rayshim",),
)
def lease_latency(ray: Any) -> dict[str, float]:
    """An owner asks, gets and returns, again and again."""
    import lease_latency as program

    made = program.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        made.add_node(num_cpus=1)
        found = asyncio.run(program.measure(made, LEASES))
    finally:
        made.shutdown()
    rows = {row["name"]: row["median_ms"] for row in found["rows"]}
    return {
        "lease of the own node, median": rows["lease, local"],
        "lease through Dask's scheduler, median": rows["lease, through Dask"],
    }


@case(
    "imbalance",
    Line("1,000 x 20 ms on one of 4 nodes, times the ideal", "x", 1.15, 1.0),
    Line("hops for each of these calls, at most", "hops", threshold=1.2),
    limit_s=90.0,
)
def imbalance(ray: Any) -> dict[str, float]:
    """All are submitted on the first node; each node has one CPU."""
    with cluster(ray, *({"num_cpus": 1} for _ in range(NODES))):

        @ray.remote
        def sleep(seconds: float) -> None:
            time.sleep(seconds)

        ray.get([sleep.remote(0.3) for _ in range(2 * NODES)])
        time.sleep(2.0)  # its leases have gone back
        started = time.perf_counter()
        ray.get([sleep.remote(TASK_S) for _ in range(TASKS)])
        taken = time.perf_counter() - started
    name = "1,000 x 20 ms on one of 4 nodes, times the ideal"
    return {name: taken / (TASKS * TASK_S / NODES)}


@on("rayshim", "imbalance")
def imbalance_with_hops(ray: Any) -> dict[str, float]:
    """The same, and the hops of the leases, which the head tells."""
    import imbalance as program

    options = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
    made = program.Cluster(initialize_head=True, head_node_args=options)
    try:
        for _ in range(NODES - 1):
            made.add_node(**options)
        found = program.measure(made, TASKS, TASK_S, NODES)
    finally:
        made.shutdown()
    return {
        "1,000 x 20 ms on one of 4 nodes, times the ideal": found["ratio"],
        "hops for each of these calls, at most": found["hops_by_task_at_most"],
    }
