"""Jobs that come to a cluster and go: what stays is what should, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rayshim as ray
from live_session import wait_until
from rayshim.cluster_utils import Cluster

pytestmark = pytest.mark.slow

#: A driver whose detached actor waits for tasks on both nodes, which end when told.
DRIVER = """
import os, sys, time
import rayshim as ray

ray.init(address=sys.argv[1], namespace="jobs", log_to_driver=False)

@ray.remote
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)
    return path

@ray.remote(num_cpus=0)
class Keeper:
    def begin(self, path):
        self.refs = [wait_for.remote(path), wait_for.options(
            resources={"far": 1}).remote(path)]
        # This one waits for room until the others are done.
        self.refs.append(wait_for.options(resources={"far": 1}).remote(path))

    def end(self):
        return ray.get(self.refs)

keeper = Keeper.options(name="keeper", lifetime="detached").remote()
ray.get(keeper.begin.remote(sys.argv[2]))

@ray.remote(resources={"near": 1})
def sleep(path):
    open(path + ".running", "w").close()
    time.sleep(600)

ref = sleep.remote(sys.argv[2])
while not os.path.exists(sys.argv[2] + ".running"):
    time.sleep(0.01)
os._exit(0)
"""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two nodes."""
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "resources": {"near": 1}},
    )
    made.add_node(num_cpus=2, resources={"far": 1})
    yield made
    ray.shutdown()
    made.shutdown()


def test_tasks_of_a_detached_actor_outlive_its_job(
    cluster: Cluster, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    command = [sys.executable, "-c", DRIVER, str(cluster.address), str(go)]
    subprocess.run(command, check=True, timeout=60)
    ray.init(address=cluster.address, namespace="jobs", log_to_driver=False)
    # What the driver ran itself ended with it.
    wait_until(lambda: ray.available_resources().get("near") == 1)
    keeper = ray.get_actor("keeper")
    answers = keeper.end.remote()
    go.touch()

    assert ray.get(answers, timeout=60) == [str(go)] * 3
    ray.kill(keeper)
    wait_until(lambda: ray.available_resources().get("far") == 1)


def test_processes_that_are_gone_leave_no_socket(cluster: Cluster) -> None:
    assert cluster.head_node is not None
    sockets = Path(cluster.head_node.raylet_socket_name).parent

    @ray.remote(max_calls=1)
    def pid() -> int:
        return os.getpid()

    def names() -> set[str]:
        return {path.name for path in sockets.iterdir()}

    for _ in range(2):
        ray.init(address=cluster.address, log_to_driver=False)
        ray.get([pid.remote() for _ in range(4)])
        ray.shutdown()
    prestarted = 2
    wait_until(
        lambda: (
            len([name for name in names() if name[0] == "w"]) <= prestarted
            and not [name for name in names() if name[0] == "d"]
        )
    )
