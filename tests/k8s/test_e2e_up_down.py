"""A platform comes, is looked at and changed with kubectl, and goes without a trace."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rayshim.k8s import names
from rayshim.k8s.api import Object
from rayshim.k8s.loading import load_platform
from rayshim.k8s.removing import labelled
from rayshim.k8s.testing.localkube import LocalCluster, platform_nodes
from whole_platforms import NAMESPACE, Running, running, write_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

GPU = "demo-gpu-train"
REMEMBER = """
import json, sys
import rayshim as ray
from rayshim.experimental.internal_kv import _internal_kv_get, _internal_kv_put

ray.init(log_to_driver=False)
before = _internal_kv_get("word")
_internal_kv_put("word", sys.argv[1])
print(json.dumps(before and before.decode()))
"""
STORM = """
import os, sys, time
import rayshim as ray

ray.init(log_to_driver=False)

@ray.remote(num_cpus=0, num_gpus=1)
def hold(path):
    while not os.path.exists(path):
        time.sleep(0.02)

running = hold.remote(sys.argv[1])
time.sleep(0.1)
waiting = [hold.remote(sys.argv[1]) for _ in range(5)]
print("asked", flush=True)
sys.stdin.readline()
for one in waiting:
    ray.cancel(one)
print("cancelled", flush=True)
sys.stdin.readline()
ray.get(running, timeout=60)
"""


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[LocalCluster, Path]]:
    """With one of the three GPU machines that the platform may ask for."""
    path = write_file(tmp_path_factory.mktemp("platform"))
    nodes = [
        one
        for one in platform_nodes(load_platform(path))
        if one.name not in ("gpu-train-1", "gpu-train-2")
    ]
    with LocalCluster(nodes, operator=True, tls=True, enforce_rbac=True) as made:
        yield made, path


@pytest.fixture(scope="module")
def platform(cluster: tuple[LocalCluster, Path]) -> Iterator[Running]:
    with running(*cluster) as one:
        yield one


def versions(platform: Running) -> dict[str, str]:
    """What `up` makes, with the version of each; what lives on its own left out."""
    alive = ("Pod", "Lease", "Event")
    return {
        f"{one['kind']} {one['metadata']['name']}": one["metadata"]["resourceVersion"]
        for one in labelled(platform.kube, "demo")
        if one["kind"] not in alive
        and one["metadata"]["name"] != names.status_map("demo")
    }


def processes(platform: Running) -> list[str]:
    """What runs in pods."""
    found, folder = [], str(platform.cluster.folder)
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(folder in value for value in one.environ().values()):
                found.append(" ".join(one.cmdline()))
    return [one for one in found if "kopf" not in one]


def test_machines_that_never_come(platform: Running, tmp_path: Path) -> None:
    """No more is asked for than may be, and what waits is cancelled first."""
    most = 0

    def pods() -> list[Object]:
        nonlocal most
        found = platform.pods("gpu-train")
        most = max(most, len(found), platform.replicas()[GPU])
        return found

    def states() -> list[str]:
        return sorted(one["status"]["phase"] for one in pods())

    gate = tmp_path / "gate"
    driver = platform.driver(STORM, str(gate))
    assert driver.stdin is not None and driver.stdout is not None
    try:
        assert driver.stdout.readline() == "asked\n"
        platform.wait_for(
            "three pods", lambda: states() == ["Pending", "Pending", "Running"]
        )

        def told() -> bool:
            pods()
            done = platform.command("status")
            assert done.returncode == 0, done.stdout + done.stderr
            return "2: Unschedulable" in done.stdout

        platform.wait_for("the reason", told)
        (kept,) = [
            one["metadata"]["name"]
            for one in pods()
            if one["status"]["phase"] == "Running"
        ]
        driver.stdin.write("\n")
        driver.stdin.flush()
        assert driver.stdout.readline() == "cancelled\n"
        platform.wait_for("what waits goes", lambda: len(pods()) == 1)
        assert pods()[0]["metadata"]["name"] == kept
        platform.wait_for("replicas", lambda: platform.replicas()[GPU] == 1)
        gate.touch()
        _, err = driver.communicate("\n", timeout=60)
        assert driver.returncode == 0, err
    finally:
        driver.kill()
        driver.communicate()
    platform.wait_for("no worker", lambda: not pods() and not platform.replicas()[GPU])
    assert most == 3


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kubectl_gets_scales_and_applies(platform: Running, tmp_path: Path) -> None:
    def kubectl(*words: str) -> str:
        done = subprocess.run(
            ["kubectl", "-n", NAMESPACE, *words],
            env=platform.cluster.environment(namespace=NAMESPACE),
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    found = json.loads(kubectl("get", "daskclusters,pods", "-o", "json"))["items"]
    kinds = {(one["kind"], one["metadata"]["name"].split("-")[0]) for one in found}
    assert kinds == {("DaskCluster", "demo"), ("Pod", "demo")}
    assert "demo-scheduler-" in kubectl("get", "pods")

    # More than is needed: it stays until it has been idle.
    kubectl("scale", "daskworkergroup", "demo-cpu-ingest", "--replicas=1")
    platform.wait_for("a worker", lambda: len(platform.deployments("cpu-ingest")) == 1)
    platform.wait_for("none", lambda: platform.replicas()["demo-cpu-ingest"] == 0)

    # What is rendered is what is there.
    done = platform.command("render", "-o", str(tmp_path / "render"))
    assert done.returncode == 0, done.stderr
    base = tmp_path / "render" / "base"
    for name in ("network-policies", "rbac", "disruption-budgets"):
        kubectl("apply", "-f", str(base / f"{name}.yaml"))
    told = platform.command("up", "--output", "json")
    assert told.returncode == 0, told.stderr
    rows = json.loads(told.stdout)["objects"]
    assert {one["state"] for one in rows} == {"unchanged"}, rows


def test_up_again_changes_nothing_and_down_leaves_nothing(platform: Running) -> None:
    assert platform.run(REMEMBER, "first") is None
    assert any(" start --head " in one for one in processes(platform))
    before = versions(platform)
    again = platform.command("up", "--output", "json")
    assert again.returncode == 0, again.stderr
    assert versions(platform) == before

    token = platform.kube.get("Secret", names.token_secret("demo"))
    kept = platform.command("down", "--yes", "--keep-state")
    assert kept.returncode == 0, kept.stdout + kept.stderr
    left = {one["kind"] for one in labelled(platform.kube, "demo")}
    assert left == {"PersistentVolumeClaim", "Secret", "Role", "RoleBinding"}
    looked = platform.command("status")
    assert looked.returncode == 1
    assert "`rayshim k8s up` makes it" in looked.stdout

    back = platform.command("up")
    assert back.returncode == 0, back.stdout + back.stderr
    assert platform.kube.get("Secret", names.token_secret("demo")) == token
    assert platform.run(REMEMBER, "second") == "first"

    gone = platform.command("down", "--yes")
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert not list(labelled(platform.kube, "demo"))
    assert not platform.cluster.pods()
    assert processes(platform) == []
