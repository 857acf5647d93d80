"""Values move between real nodes: once for each node, beyond its memory, as views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import rayshim as ray
from rayshim.cluster_utils import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

STORE_BYTES = 100_000_000


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    cluster = Cluster()
    for name in ("driver", "a", "b"):
        cluster.add_node(
            num_cpus=1, resources={name: 1}, object_store_memory=STORE_BYTES
        )
    ray.init(address=cluster.address)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def on(node: str) -> dict[str, Any]:
    return {"num_cpus": 0, "resources": {node: 0.01}}


@ray.remote
def make(size_bytes: int, value: int) -> np.ndarray:
    return np.full(size_bytes, value, np.uint8)


@ray.remote
def look(holder: list[Any]) -> tuple[int, int, int]:
    value = ray.get(holder[0])
    return len(value), int(value[0]), int(value[-1])


def test_an_array_is_read_on_another_node(nodes: Cluster) -> None:
    made = make.options(**on("a")).remote(30_000_001, 7)

    seen = ray.get(look.options(**on("b")).remote([made]), timeout=60)

    assert seen == (30_000_001, 7, 7)
    assert ray.get(made, timeout=60)[-1] == 7


def test_an_arrow_table_travels_as_its_buffers(nodes: Cluster) -> None:
    @ray.remote
    def table() -> pa.Table:
        return pa.table({"n": np.arange(1_000_000), "s": ["x", "yy"] * 500_000})

    @ray.remote
    def probe(table: pa.Table) -> tuple[int, str, int]:
        table.validate(full=True)
        before = pa.total_allocated_bytes()
        total = table.column("n").to_numpy().sum()
        # The columns are views of the store: reading them takes no memory of Arrow's.
        return (
            int(total),
            table.column("s")[1].as_py(),
            (pa.total_allocated_bytes() - before),
        )

    made = table.options(**on("a")).remote()
    seen = ray.get(probe.options(**on("b")).remote(made), timeout=60)

    assert seen == (499_999_500_000, "yy", 0)


def test_many_readers_of_one_node_get_the_same_copy(nodes: Cluster) -> None:
    made = make.options(**on("a")).remote(20_000_000, 3)

    calls = [look.options(**on("b")).remote([made]) for _ in range(8)]

    assert set(ray.get(calls, timeout=60)) == {(20_000_000, 3, 3)}


def test_a_node_holds_more_views_than_its_store_has_room_for(nodes: Cluster) -> None:
    @ray.remote
    class Keeper:
        def __init__(self) -> None:
            self.values: list[np.ndarray] = []

        def keep(self, holder: list[Any]) -> int:
            self.values.append(ray.get(holder[0]))
            return sum(int(value[-1]) for value in self.values)

    keeper = Keeper.options(**on("b")).remote()
    for number in range(1, 6):
        made = make.options(**on("a")).remote(30_000_000, number)
        total = ray.get(keeper.keep.remote([made]), timeout=60)
        assert total == number * (number + 1) // 2
