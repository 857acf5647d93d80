"""A driver joins a cluster whose head was just started again."""

from __future__ import annotations

import os
import signal
import threading

import pytest

import rayshim as ray
from rayshim.cluster_utils import Cluster


@ray.remote
def one() -> int:
    return 1


@pytest.mark.slow
def test_init_waits_for_nodes_that_come_back() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        assert cluster.head_node is not None
        pid = cluster.head_node.pid
        os.kill(pid, signal.SIGSTOP)
        cluster.head_node.kill_gcs_server()
        cluster.head_node.start_gcs_server()
        later = threading.Timer(0.5, os.kill, (pid, signal.SIGCONT))
        later.start()
        ray.init(address=cluster.address, log_to_driver=False)
        assert ray.get(one.remote(), timeout=30) == 1
        later.join()
        ray.shutdown()
        # One that stays away is waited for no longer than for its death.
        os.kill(pid, signal.SIGSTOP)
        cluster.head_node.kill_gcs_server()
        cluster.head_node.start_gcs_server()
        # Then the driver is one on a host without a node.
        ray.init(address=cluster.address, log_to_driver=False)
        assert not [row for row in ray.nodes() if row["Alive"]]
        ray.shutdown()
        os.kill(pid, signal.SIGCONT)
    finally:
        ray.shutdown()
        cluster.shutdown()
