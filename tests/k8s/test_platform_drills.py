"""Drills of a whole platform, and an autoscaler that is killed in mid-course."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rayshim.k8s import names
from rayshim.k8s.api import Object
from rayshim.k8s.loading import load_platform
from rayshim.k8s.testing.localkube import LocalCluster, platform_nodes
from whole_platforms import NAMESPACE, SERVE_LEVEL, Running, k8s, running, write_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SERVING = """    min: 1
  gpu-serve:
    shape: {cpus: 1, memory: 1Gi, store: 100Mi}
    accelerator: {type: L4, count: 1}
    min: 1
    max: 2
    cold_start_s: 20
"""
HOLD = """
import os, sys, time
import rayshim as ray

ray.init(log_to_driver=False)

@ray.remote(num_cpus=2)
def hold(path):
    while not os.path.exists(path):
        time.sleep(0.02)

ray.get([hold.remote(sys.argv[1]) for _ in range(2)], timeout=60)
print("1")
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = write_file(
        tmp_path_factory.mktemp("platform"),
        more=SERVING + SERVE_LEVEL.format(group="gpu-serve"),
    )
    nodes = platform_nodes(load_platform(path))
    with (
        LocalCluster(nodes, operator=True, enforce_rbac=True) as cluster,
        running(cluster, path) as one,
    ):
        yield one


def test_each_drill_recovers(platform: Running) -> None:
    done = platform.command("drill", "all")
    assert done.returncode == 0, done.stdout + done.stderr + platform.cluster.describe()
    for name in ("train-worker", "serve-replica", "head"):
        assert f"passed {name}: " in done.stdout


def test_a_drill_that_takes_too_long_fails(platform: Running, tmp_path: Path) -> None:
    text = platform.path.read_text() + "drill: {head_s: 0.001}\n"
    path = tmp_path / "platform.yaml"
    path.write_text(text)
    done = k8s(platform.cluster, "drill", "head", "-f", str(path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED head: " in done.stdout


@pytest.mark.chaos
def test_an_autoscaler_that_is_killed_at_each_step_is_finished_by_the_next(
    platform: Running, tmp_path: Path
) -> None:
    """A real SIGKILL as soon as a step of the scale-down is seen."""
    one = platform
    kube = one.kube
    deployment = names.autoscaler("demo")
    kube.patch("Deployment", deployment, {"spec": {"replicas": 0}})
    one.wait_for("no autoscaler", lambda: not _pods_of_autoscaler(one))
    group = "cpu-ingest"

    def workers() -> list[Object]:
        labels = f"{names.GROUP}={group}"
        return one.cluster.api.store.list("deployments", NAMESPACE, labels)

    def is_annotated() -> bool:
        return any(
            names.DRAINING_SINCE in (found["metadata"].get("annotations") or {})
            for found in workers()
        )

    steps: dict[str, Callable[[], bool]] = {
        "annotated": is_annotated,
        "one deleted": lambda: len(workers()) < 2,
        "replicas written": lambda: one.replicas()[f"demo-{group}"] < 2,
    }
    for step, is_reached in steps.items():
        gate = tmp_path / step
        scaler = _autoscaler(one)
        try:
            driver = one.driver(HOLD, str(gate))
            one.wait_for("two workers", lambda: len(workers()) == 2)
            gate.touch()
            out, err = driver.communicate(timeout=60)
            assert out == "1\n", err
            deadline = time.monotonic() + 60
            while not is_reached():
                assert time.monotonic() < deadline, (step, one.cluster.describe())
        finally:
            scaler.send_signal(signal.SIGKILL)
            scaler.communicate()
            # Nobody gave it up; it would run out, which other tests wait for.
            kube.delete("Lease", deployment)
        again = _autoscaler(one)
        try:
            one.wait_for(
                f"nothing of {group} after a kill at {step!r}",
                lambda: not workers() and one.replicas()[f"demo-{group}"] == 0,
            )
            assert len(one.deployments("gpu-serve")) == 1
            assert len(one.deployments("gpu-train")) == 1
        finally:
            again.kill()
            again.communicate()
            kube.delete("Lease", deployment)


def _pods_of_autoscaler(one: Running) -> list[Object]:
    labels = {"app.kubernetes.io/component": "autoscaler"}
    return one.cluster.pods(NAMESPACE, labels)


def _autoscaler(one: Running) -> subprocess.Popen[str]:
    account = names.autoscaler("demo")
    command = str(Path(sys.executable).with_name("rayshim"))
    config = one.cluster.kubeconfig_of(account, NAMESPACE)
    return subprocess.Popen(
        [command, "k8s", "autoscaler", "-f", str(one.path), "--metrics-port=0"],
        env={**one.env, "KUBECONFIG": str(config)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
