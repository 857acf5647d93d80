"""Start nodes because work waits for them, and let them go when it is done.

The cluster begins without a CPU. Calls that need one, a placement group over two nodes
and a call that needs a GPU (in the books only: none is used) have nodes of the right
kind started on this machine. A call that no kind of node could ever run is explained.

    python examples/autoscaling.py --calls 20
"""

from __future__ import annotations

import argparse
import sys
import time

import rayshim as ray
from rayshim.cluster_utils import AutoscalingCluster
from rayshim.util.placement_group import placement_group, remove_placement_group
from rayshim.util.scheduling_strategies import PlacementGroupSchedulingStrategy

#: Seconds within which the idle nodes have to be gone.
LIMIT_S = 60.0


@ray.remote
def square(number: int) -> int:
    return number * number


@ray.remote(num_gpus=1)
def train() -> list[int]:
    return [int(one) for one in ray.get_gpu_ids()]


@ray.remote
def node_of() -> str:
    return str(ray.get_runtime_context().get_node_id())


def alive() -> int:
    return sum(node["Alive"] for node in ray.nodes())


def run(calls: int) -> None:
    assert ray.get([square.remote(i) for i in range(calls)]) == [
        i * i for i in range(calls)
    ]
    print(f"{calls} calls ran; {alive() - 1} nodes were started")

    group = placement_group([{"CPU": 2}] * 2, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    homes = [
        node_of.options(
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, index)
        ).remote()
        for index in range(2)
    ]
    assert len(set(ray.get(homes))) == 2
    remove_placement_group(group)
    print("a placement group had two nodes of its own")

    print(f"a call had the GPU {ray.get(train.remote())}")

    huge = square.options(num_cpus=64).remote(8)
    deadline = time.monotonic() + LIMIT_S
    while not any(one.kind == "infeasible" for one in ray.explain(huge).reasons):
        assert time.monotonic() < deadline, "nobody says that it cannot run"
        time.sleep(0.1)
    print(ray.explain(huge))
    ray.cancel(huge)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20)
    options = parser.parse_args()
    cluster = AutoscalingCluster(
        head_resources={"CPU": 0},
        worker_node_types={
            "cpu": {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 2},
            "gpu": {
                "resources": {"CPU": 2, "GPU": 1},
                "node_config": {},
                "max_workers": 1,
            },
        },
        idle_timeout_minutes=0.02,
    )
    cluster.start()
    try:
        ray.init("auto", log_to_driver=False)
        run(options.calls)
        deadline = time.monotonic() + LIMIT_S
        while alive() > 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert alive() == 1, "idle nodes are still there"
        print("the idle nodes are gone\nOK")
    finally:
        ray.shutdown()
        cluster.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
