"""A head that is gone: what goes on, and what says so."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

import rayshim as ray
from live_session import wait_until
from rayshim import exceptions
from rayshim._core import current
from rayshim.cluster_utils import Cluster

pytestmark = pytest.mark.slow


@ray.remote
def square(number: int) -> int:
    return number * number


@ray.remote
class Actor:
    """Lives on without the head."""

    def where(self) -> str:
        """Its node."""
        return str(ray.get_runtime_context().get_node_id())


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """One node, and a driver that soon takes the head for gone."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    config: dict[str, Any] = {"head_grace_s": 1.0}
    ray.init(address=made.address, log_to_driver=False, _system_config=config)
    yield made
    ray.shutdown()
    made.shutdown()


def test_requests_to_a_head_that_stays_away_fail_and_say_why(cluster: Cluster) -> None:
    assert cluster.head_node is not None
    actor = Actor.remote()
    ray.get(actor.where.remote())
    cluster.head_node.kill_gcs_server()
    with pytest.raises(exceptions.RaySystemError, match="head of the cluster"):
        ray.nodes()  # waits for as long as the head may be away
    begun = time.monotonic()
    with pytest.raises(exceptions.RaySystemError, match="head_grace_s"):
        ray.nodes()
    with pytest.raises(exceptions.RaySystemError, match="head_grace_s"):
        Actor.options(name="named").remote()
    assert time.monotonic() - begun < 10
    assert ray.get(square.remote(3)) == 9
    assert ray.get(actor.where.remote())

    cluster.head_node.start_gcs_server()
    wait_until(lambda: not current.require_peer().control.closed)
    assert [row["Alive"] for row in ray.nodes()] == [True]


def test_a_host_that_does_not_answer_holds_up_nobody(cluster: Cluster) -> None:
    assert cluster.head_node is not None and cluster.address is not None
    ray.get(square.remote(2))
    host, _, port = cluster.address.rpartition(":")
    cluster.head_node.kill_gcs_server()
    # Its queue of connections is full: attempts to connect get no answer at all.
    with socket.socket() as listener, socket.socket() as first:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(0)
        first.connect((host, int(port)))
        time.sleep(0.5)  # peers are trying by now
        begun = time.monotonic()
        for number in range(20):
            assert ray.get(square.remote(number), timeout=30) == number * number
        assert time.monotonic() - begun < 3
