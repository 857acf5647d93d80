"""A group is made smaller while its workers hold values, by the file and by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayshim.k8s.loading import load_platform
from rayshim.k8s.testing.localkube import LocalCluster, platform_nodes
from test_platform_removal import PROGRAMS, wait_for_line
from whole_platforms import Running, running, write_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

MORE_WORK = {
    "dask": """
import json, os
from distributed import Client

with Client("tcp://demo-scheduler.ray-test:8786") as client:
    def where():
        return os.environ["DASK_WORKER_NAME"]
    print(json.dumps(client.submit(where, pure=False, resources={"CPU": 2}).result()))
""",
    "rayshim": """
import json, os
import rayshim as ray

ray.init(log_to_driver=False)

@ray.remote(num_cpus=2, max_retries=0)
def where():
    return os.environ["DASK_WORKER_NAME"]

print(json.dumps(ray.get(where.remote())))
""",
}
#: No worker is idle for so long within these tests.
IDLE_S = 120.0


@pytest.fixture(params=["rayshim", pytest.param("dask", marks=pytest.mark.chaos)])
def platform(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    path = write_file(tmp_path, runtime=request.param, gpu_max=2, idle_s=IDLE_S)
    nodes = platform_nodes(load_platform(path))
    with (
        LocalCluster(nodes, operator=True, enforce_rbac=True) as cluster,
        running(cluster, path) as one,
    ):
        yield one


def test_a_smaller_group_keeps_its_values_and_leaves_the_others(
    platform: Running, tmp_path: Path
) -> None:
    """With the autoscaler in its own pod, which `up` starts anew with the file."""
    runtime = platform.platform.runtime
    gate = tmp_path / "gate"
    driver = platform.driver(PROGRAMS[runtime], str(gate), str(tmp_path / "both"))
    try:
        wait_for_line(platform, driver, "made")
        before = platform.deployments("gpu-train")
        ingest = platform.deployments("cpu-ingest")
        assert len(before) == 2 and len(ingest) == 1
        write_file(tmp_path, runtime=runtime, gpu_max=1, idle_s=IDLE_S)
        done = platform.command("up")
        assert done.returncode == 0, done.stdout + done.stderr

        platform.wait_for(
            "one of two", lambda: platform.replicas()["demo-gpu-train"] == 1
        )
        kept = platform.deployments("gpu-train")
        assert len(kept) == 1 and kept < before
        # The one that was named, and nobody else.
        (gone,) = before - kept
        why = "group gpu-train has 2 nodes, 1 may be"
        assert events(platform, "Draining") == [f"{gone} drains: {why}"]
        assert platform.deployments("cpu-ingest") == ingest
        gate.touch()
        out, err = driver.communicate("\n", timeout=60)
        assert out.splitlines()[-1:] == ["True"], out + err
    finally:
        driver.kill()
        driver.communicate()

    lose_a_worker(platform, ingest)
    lower_by_hand(platform, kept)


def lose_a_worker(one: Running, ingest: set[str]) -> None:
    """Somebody deletes a worker's Deployment: it is not counted on any more."""
    (lost,) = ingest
    one.kube.delete("Deployment", lost)

    ran_on = one.run(MORE_WORK[one.platform.runtime])

    assert ran_on.startswith("demo-cpu-ingest") and ran_on != lost
    assert one.replicas()["demo-cpu-ingest"] == 1


def lower_by_hand(one: Running, kept: set[str]) -> None:
    """Somebody lowers ``replicas``: it is set back.

    Of a head of rayshim the operator gets no answer and removes nobody. Of Dask's
    scheduler it does, and removes a worker of any group; work that needs it goes on.
    """
    change = {"spec": {"worker": {"replicas": 0}}}
    one.kube.patch("DaskWorkerGroup", "demo-gpu-train", change)
    if one.platform.runtime == "dask":
        one.wait_for("one less", lambda: len(one.deployments()) == 1)
        one.run(MORE_WORK["dask"])
    else:
        one.wait_for("a word on it", lambda: events(one, "Repaired"))
        (text,) = events(one, "Repaired")
        assert text.endswith(
            "To have fewer, lower groups.gpu-train.max in platform.yaml"
        )
        assert one.deployments("gpu-train") == kept
    one.wait_for(
        "replicas as they are",
        lambda: (
            one.replicas()["demo-gpu-train"] == len(one.deployments("gpu-train"))
            and one.replicas()["demo-cpu-ingest"] == len(one.deployments("cpu-ingest"))
        ),
    )


def events(one: Running, reason: str) -> list[str]:
    """What the autoscaler has said with this reason."""
    found = one.kube.list("Event")
    return [each["message"] for each in found if each["reason"] == reason]
