"""A value of another node that finds no room here waits for it, and says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rayshim as ray
from rayshim import exceptions
from rayshim.cluster_utils import Cluster

pytestmark = pytest.mark.slow

STORE_BYTES = 100_000_000
NODE: dict[str, Any] = {
    "num_cpus": 1,
    "object_store_memory": STORE_BYTES,
    "_system_config": {"spill_limit_bytes": -1},
}


@ray.remote(resources={"far": 1})
def make() -> np.ndarray:
    return np.ones(20_000_000, np.uint8)


def test_it_comes_when_there_is_room() -> None:
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        cluster.add_node(**NODE, resources={"far": 1})
        ray.init(address=cluster.address, log_to_driver=False)
        views = [
            ray.get(ray.put(np.zeros(STORE_BYTES // 5, np.uint8))) for _ in range(4)
        ]
        made = make.remote()
        ray.wait([made], fetch_local=False, timeout=30)

        with pytest.raises(exceptions.GetTimeoutError, match="the store here is full"):
            ray.get(made, timeout=2)

        views.clear()
        assert ray.get(made, timeout=30).sum() == 20_000_000
    finally:
        ray.shutdown()
        cluster.shutdown()
