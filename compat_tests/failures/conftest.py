"""Clusters of several nodes for the failure cases.

Fixtures:
    ray_cluster: no cluster at the start; call it with ``Cluster`` arguments.
    nodes: a `Nodes`, a connected cluster that the tests of a module share.

``ray_cluster`` belongs in modules of its own: a module's shared cluster and a fresh
one do not go together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

#: Settings of real Ray, so that it takes 2-3 s to notice a killed node and not 15.
QUICK_HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
}
#: Small stores: a test machine has little memory.
STORE_BYTES = 100 * 1024 * 1024
#: Limit of every wait for the membership to change.
MEMBERSHIP_LIMIT_S = 30.0
#: How much of its own resource a standing node has.
OWN_RESOURCE = 10


@pytest.fixture(scope="module")
def quick_health_checks() -> Iterator[None]:
    """Let clusters that start now notice dead nodes soon."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICK_HEALTH_CHECKS.items():
            patch.setenv(name, value)
        yield


def end_cluster(cluster: Any) -> None:
    """Disconnect, then end all nodes."""
    import ray

    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def ray_cluster(
    shared_cluster: Any, quick_health_checks: None
) -> Iterator[Callable[..., Any]]:
    """No cluster yet; calling it makes a ``Cluster`` that is ended afterwards."""
    import ray
    from ray.cluster_utils import Cluster

    shared_cluster.stop()
    made: list[Any] = []

    def make(*args: Any, **options: Any) -> Any:
        if options.get("initialize_head"):
            head_args = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
            options["head_node_args"] = {
                **head_args,
                "include_dashboard": False,
                **options.get("head_node_args", {}),
            }
        made.append(Cluster(*args, **options))
        return made[-1]

    yield make
    ray.shutdown()
    for cluster in made:
        end_cluster(cluster)


class Nodes:
    """A running cluster: the head's node, standing nodes and those of one test.

    The head's node has 1 CPU and the resource ``head``; the driver is attached to it.
    A standing node (`stand`) has 1 CPU and a resource of its name and stays for the
    tests that follow, unless one kills it.
    """

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.standing: dict[str, Any] = {}
        self.of_test: list[Any] = []

    @property
    def head_id(self) -> str:
        """Id of the node that the driver is attached to."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def add(self, **options: Any) -> Any:
        """Add a node for this test and wait until it is seen."""
        defaults = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
        node = self.cluster.add_node(**{**defaults, **options})
        self.of_test.append(node)
        self.wait_seen(node, alive=True)
        return node

    def stand(self, name: str) -> Any:
        """Return the standing node of that name, adding it if it is not there."""
        if name not in self.standing:
            self.standing[name] = self.add(resources={name: OWN_RESOURCE})
            self.of_test.remove(self.standing[name])
        return self.standing[name]

    def kill(self, node: Any, *, wait: bool = True) -> None:
        """Kill all processes of a node; ``wait`` until the cluster knows."""
        self._end(node, allow_graceful=False, wait=wait)

    def remove(self, node: Any, *, wait: bool = True) -> None:
        """Take a node away gracefully."""
        self._end(node, allow_graceful=True, wait=wait)

    def _end(self, node: Any, *, allow_graceful: bool, wait: bool) -> None:
        if node in self.of_test:
            self.of_test.remove(node)
        self.standing = {
            name: other for name, other in self.standing.items() if other is not node
        }
        self.cluster.remove_node(node, allow_graceful=allow_graceful)
        if wait:
            self.wait_seen(node, alive=False)

    def row(self, node: Any) -> dict[str, Any] | None:
        """Return what ``ray.nodes()`` says about the node."""
        import ray

        rows = (row for row in ray.nodes() if row["NodeID"] == node.node_id)
        return next(rows, None)

    def wait_seen(self, node: Any, *, alive: bool) -> None:
        """Wait until ``ray.nodes()`` says that the node is alive, or dead."""
        deadline = time.monotonic() + MEMBERSHIP_LIMIT_S
        while True:
            row = self.row(node)
            if row is not None and row["Alive"] is alive:
                return
            if time.monotonic() > deadline:
                pytest.fail(f"node {node.node_id} never became alive={alive}: {row}")
            time.sleep(0.02)

    def end_of_test(self) -> None:
        """Take away the nodes that the test added and left."""
        for node in list(self.of_test):
            self.remove(node)


@pytest.fixture(scope="module")
def module_nodes(shared_cluster: Any, quick_health_checks: None) -> Iterator[Nodes]:
    """The cluster of a module."""
    import ray
    from ray.cluster_utils import Cluster

    shared_cluster.stop()
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "resources": {"head": OWN_RESOURCE},
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
        },
    )
    try:
        ray.init(
            address=cluster.address,
            namespace="failures",
            logging_level="ERROR",
            log_to_driver=False,
        )
        yield Nodes(cluster)
    finally:
        end_cluster(cluster)


@pytest.fixture
def nodes(module_nodes: Nodes) -> Iterator[Nodes]:
    """The module's cluster; nodes that a test adds go when it ends."""
    yield module_nodes
    module_nodes.end_of_test()
