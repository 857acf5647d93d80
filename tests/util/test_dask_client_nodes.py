"""The Dask client in a cluster of two nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rayshim as ray
from rayshim.cluster_utils import Cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    # Dask's own, at the end of clients and workers.
    pytest.mark.filterwarnings("ignore"),
]

COUNT = 100_000


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address, log_to_driver=False)
    with ray.get_dask_client(2) as client:
        yield client
    ray.shutdown()
    cluster.shutdown()


def workers(client: Any) -> list[str]:
    known = client.scheduler_info()["workers"]
    return [address for address in known if address.startswith("rayshim://")]


def node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def test_each_node_has_a_worker(client: Any) -> None:
    found = {
        client.submit(node, workers=[address], pure=False).result(30)
        for address in workers(client)
    }
    assert len(found) == 2


def test_values_of_other_nodes_are_arguments(client: Any) -> None:
    futures = [
        client.submit(np.full, COUNT, rank, workers=[address])
        for rank, address in enumerate(workers(client))
    ]

    def total(one: Any, other: Any) -> int:
        return int((one + other).sum())

    assert client.submit(total, *futures).result(30) == COUNT
    assert ray.get(ray.remote(total).remote(*futures), timeout=30) == COUNT


def test_graphs_as_tasks_beside_the_workers(client: Any) -> None:
    import dask.array as da

    from rayshim.util.dask import ray_dask_get

    values = da.arange(COUNT, chunks=COUNT // 4)
    expected = COUNT * (COUNT - 1) // 2
    assert int(values.sum().compute()) == expected
    assert int(values.sum().compute(scheduler=ray_dask_get)) == expected
