"""Values of owners that are dead do not stay in the stores of a cluster."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rayshim as ray
from rayshim.cluster_utils import Cluster

pytestmark = pytest.mark.slow

DRIVER = """
import os, sys
import rayshim as ray

ray.init(address=sys.argv[1], namespace="dead", log_to_driver=False)

@ray.remote(num_cpus=0)
def make():
    return bytes(3_000_000)

@ray.remote(num_cpus=0)
class Owner:
    def put(self):
        self.kept = [ray.put(bytes(4_000_000))]
        return self.kept

    def far(self):
        self.made = [make.options(resources={"far": 0.1}).remote()]
        return len(ray.get(self.made[0]))

owner = Owner.options(name="owner", lifetime=sys.argv[3]).remote()
lent = ray.get(owner.put.remote())
values = [ray.put(bytes(2_000_000)) for _ in range(3)]
values += [make.remote() for _ in range(3)]
values += [make.options(resources={"far": 0.1}).remote() for _ in range(3)]
ray.get([owner.far.remote(), *values])
if sys.argv[2] == "kill":
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head's node and a far one."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    made.add_node(num_cpus=1, resources={"far": 1})
    yield made
    ray.shutdown()
    made.shutdown()


def stored(cluster: Cluster) -> list[int]:
    """Bytes of values in the store of each node."""
    return [
        sum(
            path.stat().st_blocks * 512
            for path in Path(node.plasma_store_socket_name).iterdir()
            if path.is_file() and not path.name.endswith(".free")
        )
        for node in cluster.list_all_nodes()
    ]


def wait_for(cluster: Cluster, most: list[int]) -> None:
    """Wait until no store holds more than this."""
    deadline = time.monotonic() + 20
    while any(have > limit for have, limit in zip(stored(cluster), most, strict=True)):
        assert time.monotonic() < deadline, stored(cluster)
        time.sleep(0.05)


def drive(cluster: Cluster, how: str, lifetime: str) -> None:
    """Run a driver that makes values on both nodes, and ends."""
    command = [sys.executable, "-c", DRIVER, str(cluster.address), how, lifetime]
    done = subprocess.run(command, timeout=60)
    assert done.returncode == (-9 if how == "kill" else 0)


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_values_go_with_their_driver(cluster: Cluster, how: str) -> None:
    drive(cluster, how, "non_detached")
    wait_for(cluster, [100_000, 100_000])


def test_values_of_a_detached_actor_stay_until_it_dies(cluster: Cluster) -> None:
    drive(cluster, "exit", "detached")
    ray.init(address=cluster.address, namespace="dead", log_to_driver=False)
    # What it put, and on the far node what was made for it.
    wait_for(cluster, [8_000_000, 3_500_000])
    owner = ray.get_actor("owner")
    assert len(ray.get(ray.get(owner.put.remote())[0])) == 4_000_000
    near, far = stored(cluster)
    assert near >= 4_000_000
    assert far >= 3_000_000
    ray.kill(owner)
    del owner
    wait_for(cluster, [100_000, 100_000])


def test_values_made_for_owners_on_a_dead_node_go(cluster: Cluster) -> None:
    ray.init(address=cluster.address, log_to_driver=False)
    third = cluster.add_node(num_cpus=1, resources={"third": 1})

    @ray.remote(num_cpus=0, resources={"far": 0.1})
    def make() -> bytes:
        return bytes(3_000_000)

    @ray.remote(num_cpus=0, resources={"third": 0.1})
    class Owner:
        def far(self) -> int:
            self.made = [make.remote() for _ in range(3)]
            return len(ray.get(self.made))

    owner = Owner.remote()
    assert ray.get(owner.far.remote()) == 3
    assert sum(stored(cluster)) >= 9_000_000
    cluster.remove_node(third, allow_graceful=False)
    wait_for(cluster, [100_000, 100_000])
