"""Many real nodes of one executor on this machine, to check the simulation.

python benchmarks/scheduling/fifty_nodes.py --nodes 50
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
import time
from typing import Any

import processes
from cases import Line, case
from first_calls import quantile

#: Bytes of each node's store.
STORE_BYTES = 80 * 1024 * 1024
#: Calls for each node, and how long each sleeps.
CALLS_EACH, CALL_S = 2, 2.0
#: First calls of new functions that are timed.
TIMED = 50
NODE_WORDS = "adapters.raylet.main"


def measure(ray: Any, nodes: int) -> dict[str, float]:
    """Start the nodes, run calls on all of them, and end them."""
    import rayshim.cluster_utils as utils
    from first_calls import new_function

    options = {
        "num_cpus": 1,
        "object_store_memory": STORE_BYTES,
        # All start at once on few cores.
        "_system_config": {"node_timeout_s": 30.0},
    }
    started = time.perf_counter()
    made = utils.Cluster(initialize_head=True, head_node_args=options)
    try:
        for _ in range(nodes - 1):
            made.add_node(wait=False, **options)
        made.wait_for_nodes(timeout=120)
        start_s = time.perf_counter() - started
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")

        @ray.remote
        def place(seconds: float) -> str:
            time.sleep(seconds)
            return str(ray.get_runtime_context().get_node_id())

        started = time.perf_counter()
        calls = [place.remote(CALL_S) for _ in range(CALLS_EACH * nodes)]
        counts = collections.Counter(ray.get(calls))
        spread_s = time.perf_counter() - started
        times = []
        for number in range(TIMED):
            started = time.perf_counter()
            ray.get(ray.remote(new_function(number)).remote())
            times.append(1e3 * (time.perf_counter() - started))
        tree = processes.below()
        main = [pid for pid, command in tree.items() if NODE_WORDS in command]
        largest_mb = max(processes.resident_mb(pid) for pid in main)
        total = sum(processes.proportional_mb(pid) for pid in tree)
        descriptors = len(os.listdir("/proc/self/fd"))
    finally:
        started = time.perf_counter()
        ray.shutdown()
        made.shutdown()
        end_s = time.perf_counter() - started
    return {
        "start_s": start_s,
        "node_mb": total / nodes,
        "largest_mb": largest_mb,
        "nodes_used": float(len(counts)),
        "spread": spread_s / (CALLS_EACH * CALL_S),
        "first_call_p50_ms": quantile(times, 0.5),
        "first_call_p99_ms": quantile(times, 0.99),
        "driver_descriptors": float(descriptors),
        "end_s": end_s,
    }


@case(
    "fifty_nodes",
    Line("50 real nodes: start of all", "s"),
    Line("memory of each node, its processes shared", "MB"),
    Line(
        "nodes that 100 calls of 2 s ran on", "nodes", 50.0, 50.0, more_is_better=True
    ),
    Line("time of these calls, times the ideal", "x", ideal=1.0),
    Line("first call of a new function, median", "ms"),
    Line("p99 of it", "ms"),
    limit_s=240.0,
    backends=("rayshim",),
)
def fifty_nodes(ray: Any) -> dict[str, float]:
    """Fifty nodes with one executor each."""
    found = measure(ray, 50)
    return {
        "50 real nodes: start of all": found["start_s"],
        "memory of each node, its processes shared": found["node_mb"],
        "nodes that 100 calls of 2 s ran on": found["nodes_used"],
        "time of these calls, times the ideal": found["spread"],
        "first call of a new function, median": found["first_call_p50_ms"],
        "p99 of it": found["first_call_p99_ms"],
    }


def main() -> int:
    """Print what was measured."""
    import rayshim

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=50)
    print(json.dumps(measure(rayshim, parser.parse_args().nodes)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
