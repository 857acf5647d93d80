"""Environments on several nodes, which share nothing but TCP."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import rayshim as ray
from rayshim import exceptions
from rayshim.cluster_utils import Cluster

pytestmark = pytest.mark.slow


@ray.remote(max_restarts=-1, max_task_retries=-1, num_cpus=0)
class Reader:
    def read(self) -> tuple[str, str, str]:
        node = ray.get_runtime_context().get_node_id()
        return Path("data.txt").read_text(), os.environ["HOOKED"], node

    def pid(self) -> int:
        return os.getpid()


@ray.remote
def work() -> None:
    pass


def _hook() -> None:
    os.environ["HOOKED"] = "yes"


def test_every_node_unpacks_it_and_detached_actors_outlive_the_driver(
    tmp_path: Path,
) -> None:
    (tmp_path / "data.txt").write_text("from the driver")
    (tmp_path / "noise.bin").write_bytes(os.urandom(3 << 20))
    off = {"dask": "off"}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": off}
    )
    try:
        cluster.add_node(num_cpus=1, resources={"far": 1}, _system_config=off)
        cluster.wait_for_nodes()
        options: dict[str, Any] = {
            "address": cluster.address,
            "namespace": "readers",
            "log_to_driver": False,
            "logging_level": "WARNING",
        }
        env = {"working_dir": str(tmp_path), "worker_process_setup_hook": _hook}
        ray.init(**options, runtime_env=env)
        far = Reader.options(resources={"far": 0.1}, lifetime="detached", name="far")
        seen = [
            ray.get(actor.read.remote(), timeout=40)
            for actor in (Reader.remote(), far.remote())
        ]
        assert [one[:2] for one in seen] == [("from the driver", "yes")] * 2
        missing = {"working_dir": f"file://{tmp_path}/missing.zip"}
        for resources in ({}, {"far": 0.1}):
            bad = Reader.options(resources=resources, runtime_env=missing).remote()
            with pytest.raises(exceptions.RuntimeEnvSetupError, match=r"missing\.zip"):
                ray.get(bad.read.remote(), timeout=30)
            task = work.options(resources=resources, runtime_env=missing)
            with pytest.raises(exceptions.RuntimeEnvSetupError, match=r"missing\.zip"):
                ray.get(task.remote(), timeout=30)
        ray.shutdown()
        (tmp_path / "data.txt").write_text("changed")
        ray.init(**options)
        actor = ray.get_actor("far")
        os.kill(ray.get(actor.pid.remote(), timeout=20), signal.SIGKILL)
        assert ray.get(actor.read.remote(), timeout=40) == seen[1]
        ray.shutdown()
        # A node that comes later, when the one that had it is gone.
        cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
        cluster.add_node(num_cpus=1, resources={"far": 1}, _system_config=off)
        ray.init(**options)
        found = ray.get(ray.get_actor("far").read.remote(), timeout=50)
        assert found[:2] == seen[1][:2]
        assert found[2] != seen[1][2]
        ray.kill(ray.get_actor("far"))
    finally:
        ray.shutdown()
        cluster.shutdown()
