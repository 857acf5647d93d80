"""Values between nodes, and what is left of them when a node is killed."""

from __future__ import annotations

import asyncio
import functools
import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayshim as ray
from live_session import wait_until
from rayshim import exceptions
from rayshim._core import current
from rayshim.cluster_utils import Cluster

pytestmark = pytest.mark.slow

SIZE = 1 << 20
DEADLINE_S = 30.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head with the driver; tests add the nodes that they lose."""
    made = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"near": 9}}
    )
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def join(cluster: Cluster, **resources: float) -> Any:
    node = cluster.add_node(num_cpus=2, resources=resources)
    cluster.wait_for_nodes()
    return node


def connect(cluster: Cluster) -> None:
    ray.init(address=cluster.address, log_to_driver=False)


def stores() -> list[Path]:
    return [Path(node["ObjectStoreSocketName"]) for node in ray.nodes()]


def files() -> list[Path]:
    """Values in all stores; memory that waits for the next value is none."""
    found = [path for store in stores() if store.is_dir() for path in store.iterdir()]
    hidden = (".free", ".w", ".kept")
    return [
        p for p in found if p.name[0] != "." and p.suffix not in hidden and is_value(p)
    ]


def is_value(path: Path) -> bool:
    try:
        return path.stat().st_size >= SIZE
    except FileNotFoundError:
        return False


@ray.remote(num_cpus=0, resources={"far": 1}, max_retries=3)
def make(runs: Path, name: str) -> Any:
    (runs / f"{name}-{time.monotonic_ns()}").touch()
    return np.full(SIZE // 8, 7.0)


@ray.remote(num_cpus=0, resources={"near": 1})
def first_of(value: Any) -> float:
    return float(value[0])


@ray.remote(num_cpus=0, resources={"other": 1})
def first_of_other(value: Any) -> float:
    return float(value[0])


@ray.remote(num_cpus=0, resources={"far": 1})
class Owner:
    def put(self) -> list[Any]:
        return [ray.put(np.ones(SIZE // 8))]


@ray.remote(num_cpus=0, resources={"near": 1})
class AsyncReader:
    async def read(self, value: Any) -> float:
        return float(value[0])

    async def read_nested(self, refs: list[Any]) -> float:
        value = await refs[0]
        return float(value[0])


def copies_of(ref: Any) -> list[str]:
    """Nodes with a further copy, as the owner knows them."""
    entry = current.require_peer().objects.entries[ref._bytes]
    return list(entry.copies.nodes) if entry.copies is not None else []


def ran(runs: Path) -> int:
    return len(list(runs.iterdir()))


def test_a_value_is_read_on_another_node_and_goes_everywhere(
    cluster: Cluster, tmp_path: Path
) -> None:
    join(cluster, far=9)
    connect(cluster)
    ref = make.remote(tmp_path, "a")
    ready, _ = ray.wait([ref], timeout=DEADLINE_S, fetch_local=False)
    assert ready == [ref] and len(files()) == 1
    ready, _ = ray.wait([ref], timeout=DEADLINE_S)
    assert ready == [ref] and len(files()) == 2
    assert ray.get(ref, timeout=DEADLINE_S)[0] == 7.0
    assert ray.get(first_of.remote(ref), timeout=DEADLINE_S) == 7.0
    reader = AsyncReader.remote()
    assert ray.get(reader.read.remote(ref), timeout=DEADLINE_S) == 7.0
    assert ray.get(reader.read_nested.remote([ref]), timeout=DEADLINE_S) == 7.0
    assert len(files()) == 2
    del ref, ready, _
    gc.collect()
    wait_until(lambda: not files(), deadline_s=3.0)


def test_loops_and_futures_wait_for_values_of_other_nodes(
    cluster: Cluster, tmp_path: Path
) -> None:
    join(cluster, far=9)
    connect(cluster)

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*[make.remote(tmp_path, str(i)) for i in range(4)])

    assert [value[0] for value in asyncio.run(all_of_them())] == [7.0] * 4
    assert make.remote(tmp_path, "f").future().result(DEADLINE_S)[0] == 7.0
    reader = AsyncReader.remote()
    assert ray.get(reader.read.remote(make.remote(tmp_path, "r"))) == 7.0
    assert ray.get(reader.read_nested.remote([make.remote(tmp_path, "n")])) == 7.0


def test_what_a_killed_node_had_is_made_again_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    node = join(cluster, far=9)
    connect(cluster)
    refs = [make.remote(tmp_path, str(number)) for number in range(20)]
    ray.wait(refs, num_returns=20, timeout=DEADLINE_S, fetch_local=False)
    cluster.remove_node(node, allow_graceful=False)
    join(cluster, far=9)
    values = ray.get(refs, timeout=DEADLINE_S)
    assert [value[0] for value in values] == [7.0] * 20
    assert ran(tmp_path) == 40


def test_a_copy_on_another_node_spares_the_run(
    cluster: Cluster, tmp_path: Path
) -> None:
    node = join(cluster, far=9)
    connect(cluster)
    ref = make.remote(tmp_path, "a")
    assert ray.get(first_of.remote(ref), timeout=DEADLINE_S) == 7.0
    wait_until(functools.partial(copies_of, ref))
    cluster.remove_node(node, allow_graceful=False)
    assert ray.get(ref, timeout=DEADLINE_S)[0] == 7.0
    assert ran(tmp_path) == 1
    join(cluster, other=1)
    assert ray.get(first_of_other.remote(ref), timeout=DEADLINE_S) == 7.0
    assert ran(tmp_path) == 1
    del ref
    gc.collect()
    wait_until(lambda: not files(), deadline_s=3.0)


def test_the_error_names_the_node_of_a_dead_owner(cluster: Cluster) -> None:
    node = join(cluster, far=9)
    connect(cluster)
    owner = Owner.remote()
    (ref,) = ray.get(owner.put.remote(), timeout=DEADLINE_S)
    cluster.remove_node(node, allow_graceful=False)
    begun_s = time.monotonic()
    with pytest.raises(exceptions.OwnerDiedError) as caught:
        ray.get(ref, timeout=DEADLINE_S)
    assert time.monotonic() - begun_s < 5
    assert f"on node {node.node_id[:8]}" in str(caught.value)
    assert "that node died at" in str(caught.value)


def test_arguments_on_a_killed_node_are_made_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    node = join(cluster, far=9)
    connect(cluster)
    refs = [make.remote(tmp_path, str(number)) for number in range(4)]
    ray.wait(refs, num_returns=4, timeout=DEADLINE_S, fetch_local=False)
    cluster.remove_node(node, allow_graceful=False)
    sums = [first_of.remote(ref) for ref in refs]
    join(cluster, far=9)
    assert ray.get(sums, timeout=DEADLINE_S) == [7.0] * 4
    assert ran(tmp_path) == 8


def test_a_copy_that_became_the_only_one_goes_with_its_last_reference(
    cluster: Cluster, tmp_path: Path
) -> None:
    maker = join(cluster, far=9)
    reader = join(cluster, other=9)
    connect(cluster)
    held = [make.remote(tmp_path, "a")]
    assert ray.get(first_of_other.remote(held[0]), timeout=DEADLINE_S) == 7.0
    wait_until(lambda: copies_of(held[0]) == [reader.node_id])
    cluster.remove_node(maker, allow_graceful=False)

    def primary() -> str:
        value = current.require_peer().objects.entries[held[0]._bytes].value
        return str(value.segment.node)

    wait_until(lambda: primary() == reader.node_id)
    assert ray.get(first_of_other.remote(held[0]), timeout=DEADLINE_S) == 7.0
    assert ran(tmp_path) == 1 and len(files()) == 1
    held.clear()
    gc.collect()
    wait_until(lambda: not files(), deadline_s=3.0)
