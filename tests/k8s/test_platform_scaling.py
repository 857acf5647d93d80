"""Work that waits brings up the right groups, from nothing and back to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayshim.k8s.loading import load_platform
from rayshim.k8s.testing.localkube import LocalCluster, platform_nodes
from whole_platforms import Running, running, write_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

RAYSHIM = """
import json, os, time
import rayshim as ray

ray.init(log_to_driver=False)

@ray.remote(num_cpus=2)
def cpu(i):
    time.sleep(0.3)
    return os.environ["DASK_WORKER_NAME"]

@ray.remote(num_cpus=0, num_gpus=1)
def gpu(i):
    time.sleep(0.5)
    return os.environ["DASK_WORKER_NAME"]

cpus = [cpu.remote(i) for i in range(4)]
gpus = [gpu.remote(i) for i in range(3)]
print(json.dumps({"cpu": ray.get(cpus), "gpu": ray.get(gpus)}))
"""
DASK = """
import json, os, time
from distributed import Client

def where(i):
    time.sleep(0.3)
    return os.environ["DASK_WORKER_NAME"]

with Client("tcp://demo-scheduler.ray-test:8786") as client:
    def submit(n, **resources):
        return [
            client.submit(where, i, resources=resources, pure=False) for i in range(n)
        ]
    cpus, gpus = submit(4, CPU=2), submit(3, GPU=1)
    print(json.dumps({"cpu": client.gather(cpus), "gpu": client.gather(gpus)}))
"""
PROGRAMS = {"rayshim": RAYSHIM, "dask": DASK}


@pytest.fixture(params=PROGRAMS)
def platform(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[str, Running]]:
    path = write_file(tmp_path, runtime=request.param)
    nodes = platform_nodes(load_platform(path))
    with (
        LocalCluster(nodes, operator=True, enforce_rbac=True) as cluster,
        running(cluster, path) as one,
    ):
        yield request.param, one


def test_from_no_worker_and_back(
    platform: tuple[str, Running], record_property: pytest.RecordProperty
) -> None:
    """With the autoscaler in its own pods, as rendered, and the unmodified operator."""
    runtime, one = platform
    assert one.deployments() == set()

    ran = one.run(PROGRAMS[runtime])

    assert {name.rsplit("-worker-")[0] for name in ran["cpu"]} == {"demo-cpu-ingest"}
    assert {name.rsplit("-worker-")[0] for name in ran["gpu"]} == {"demo-gpu-train"}
    none = {"demo-cpu-ingest": 0, "demo-default": 0, "demo-gpu-train": 0}
    one.wait_for("no worker", lambda: not one.deployments() and one.replicas() == none)
    told = one.command("status", "--output", "json")
    assert told.returncode == 0, told.stdout + told.stderr
