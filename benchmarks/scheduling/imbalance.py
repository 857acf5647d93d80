"""How soon an imbalance is gone: all tasks are submitted on one of several nodes.

    python benchmarks/scheduling/imbalance.py --tasks 1000 --nodes 4 --cpus 1

The tasks sleep, so that the cores of the machine do not count, only where the tasks
are. The ideal is their time over all CPUs of the cluster. Hops are those of the leases
on which they ran, as the head tells them, an average over the tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections import Counter
from typing import Any

import rayshim as ray
from rayshim.adapters.wire.oneshot import OneShot
from rayshim.cluster_utils import Cluster

#: Seconds between looks at the leases.
LOOK_S = 0.1


class Hops(threading.Thread):
    """Looks at the hops of all leases again and again.

    Args:
        cluster: Whose head is asked.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._end = threading.Event()
        #: Key of each lease -> hops.
        self.of_leases: dict[str, int] = {}

    def run(self) -> None:
        """Asks until the end."""
        head = OneShot(self._cluster.head_process_address, self._cluster.token)
        with head:
            while not self._end.wait(LOOK_S):
                for row in head.ask("state", {"kind": "lease_tasks"}):
                    if row["state"] == "long-running":
                        self.of_leases[row["key"]] = row["hops"]

    def end(self) -> None:
        """Stops it."""
        self._end.set()
        self.join()


def measure(cluster: Cluster, tasks: int, task_s: float, cpus: int) -> dict[str, Any]:
    """Runs the tasks and says where they ran."""
    head = cluster.head_node
    ray.init(address=cluster.address, log_to_driver=False)
    own = ray.get_runtime_context().get_node_id()
    assert own == head.node_id

    @ray.remote
    def sleep(seconds: float) -> str:
        time.sleep(seconds)
        return os.environ.get("RAYSHIM_NODE_ID", "") or str(
            ray.get_runtime_context().get_node_id()
        )

    @ray.remote
    def warm() -> None:
        time.sleep(0.3)

    ray.get([warm.remote() for _ in range(2 * cpus)])
    time.sleep(2.0)
    watcher = Hops(cluster)
    watcher.start()
    begin = time.perf_counter()
    places = ray.get([sleep.remote(task_s) for _ in range(tasks)])
    taken = time.perf_counter() - begin
    watcher.end()
    ideal = tasks * task_s / cpus
    found = list(watcher.of_leases.values())
    count = Counter(places)
    away = sum(number for node, number in count.items() if node != own)
    most_hops = max(found, default=0)
    ray.shutdown()
    return {
        "seconds": round(taken, 3),
        "ideal_s": round(ideal, 3),
        "ratio": round(taken / ideal, 3),
        "tasks_by_node": sorted(count.values()),
        "leases_elsewhere": len(found),
        "hops_by_lease": round(sum(found) / len(found), 3) if found else 0.0,
        "most_hops": most_hops,
        "hops_by_task_at_most": round(away * most_hops / tasks, 3),
    }


def main() -> None:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--task-s", type=float, default=0.02)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cpus", type=int, default=1, help="of each node")
    args = parser.parse_args()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": args.cpus})
    try:
        for _ in range(args.nodes - 1):
            cluster.add_node(num_cpus=args.cpus)
        total = args.nodes * args.cpus
        print(json.dumps(measure(cluster, args.tasks, args.task_s, total)))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
