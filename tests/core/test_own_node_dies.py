"""The driver's own node dies: everything fails once, and says so."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import rayshim as ray
from live_session import wait_until
from rayshim import exceptions
from rayshim._core import current
from rayshim.cluster_utils import Cluster

pytestmark = pytest.mark.slow


@ray.remote(max_retries=-1)
def runs(folder: str) -> None:
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(60)


def test_calls_that_ran_there_fail_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        peer = current.peer
        assert peer is not None
        refs = [runs.remote(str(tmp_path)) for _ in range(4)]
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        assert cluster.head_node is not None
        os.kill(cluster.head_node.pid, signal.SIGKILL)

        for ref in refs:
            with pytest.raises(exceptions.LocalRayletDiedError):
                ray.get(ref, timeout=30)
        # The head's word that the node is dead comes after that.
        wait_until(lambda: not cluster._alive_ids())
        wait_until(lambda: not peer.deaths._orphans)
        errors = [r for r in caplog.records if r.levelno >= logging.ERROR]
        assert not errors
        cluster.head_node._remove_folders()
        with pytest.raises(exceptions.LocalRayletDiedError):
            ray.put(np.ones(10_000_000))
    finally:
        ray.shutdown()
        cluster.shutdown()
