"""Real programs on the local cluster: rayshim's head and nodes, Dask, the operator."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from localkube_objects import (
    POD_IP,
    Object,
    container,
    is_ready,
    secret,
    service,
    state,
    workload,
)
from rayshim.k8s.testing.localkube import LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

TOKEN = b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
MOUNTS = [{"name": "token", "mountPath": "/etc/rayshim/token"}]
VOLUMES = [{"name": "token", "secret": {"secretName": "token"}}]
STORE = "--object-store-memory=80000000"
PROGRAM = """
import os
import rayshim as ray

ray.init("ray://head.default:10001")

@ray.remote(resources={"far": 1})
def where():
    return os.environ["HOSTNAME"]

print(ray.get(where.remote(), timeout=60))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(operator=True) as cluster:
        yield cluster


def rayshim_pod(name: str, args: list[str], **more: object) -> Object:
    main = container(
        ["rayshim", "start", "--block"],
        args=[
            "--node-ip-address=$(POD_IP)",
            "--token-path=/etc/rayshim/token/token",
            STORE,
            *args,
        ],
        env=[POD_IP],
        volumeMounts=MOUNTS,
        **more,
    )
    return workload("Deployment", name, main, pod_spec={"volumes": VOLUMES})


def ready(cluster: LocalCluster, kind: str, name: str) -> int:
    found = cluster.kube().get(kind, name) or {}
    return int((found.get("status") or {}).get("readyReplicas", 0))


def test_a_task_runs_in_a_worker_pod_of_a_rayshim_head(cluster: LocalCluster) -> None:
    kube = cluster.kube()
    kube.apply(secret("token", token=TOKEN))
    kube.apply(service("head", "head", {6379: 6379, 10001: 10001}))
    head = [
        "--head",
        "--num-cpus=0",
        "--port=6379",
        "--ray-client-server-port=10001",
        "--dashboard-host=0.0.0.0",
        "--dashboard-port=8265",
        "--metrics-export-port=8080",
    ]
    probe = {"tcpSocket": {"port": 6379}}
    kube.apply(rayshim_pod("head", head, readinessProbe=probe))
    worker = ["--address=head.default:6379", "--num-cpus=1", '--resources={"far": 1}']
    kube.apply(rayshim_pod("node", worker))
    cluster.wait_for("the head", lambda: ready(cluster, "Deployment", "head"), 60)

    token = cluster.folder / "token"
    token.write_bytes(TOKEN)
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**cluster.environment(), "RAYSHIM_TOKEN_PATH": str(token)},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert found.returncode == 0, found.stderr + cluster.describe()
    assert found.stdout.strip().startswith("node-")

    (pod,) = [p for p in cluster.pods() if p["metadata"]["name"].startswith("head-")]
    cluster.kill_container(pod["metadata"]["name"])
    cluster.wait_for(
        "the head is there again",
        lambda: (
            (now := kube.get("Pod", pod["metadata"]["name"]))
            and state(now)["restartCount"] == 1
            and is_ready(now)
        ),
        60,
    )
    for name in ("head", "node"):
        kube.delete("Deployment", name)
    kube.delete("Service", "head")
    cluster.wait_for("no pods", lambda: not cluster.pods(), 60)


def dask_cluster(workers: int) -> Object:
    ports = [
        {"name": "tcp-comm", "containerPort": 8786, "protocol": "TCP"},
        {"name": "http-dashboard", "containerPort": 8787, "protocol": "TCP"},
    ]
    probe = {"tcpSocket": {"port": "tcp-comm"}}
    scheduler: Object = {
        "name": "scheduler",
        "image": "any",
        "args": ["dask-scheduler"],
        "ports": ports,
        "readinessProbe": probe,
    }
    worker: Object = {
        "name": "worker",
        "image": "any",
        "args": [
            "dask-worker",
            "--name=$(DASK_WORKER_NAME)",
            "--no-dashboard",
            "--nthreads=1",
            "--no-nanny",
        ],
    }
    listed = [
        {"name": one["name"], "port": one["containerPort"], "targetPort": one["name"]}
        for one in ports
    ]
    selector = {"dask.org/cluster-name": "demo", "dask.org/component": "scheduler"}
    grace = {"terminationGracePeriodSeconds": 2}
    return {
        "apiVersion": "kubernetes.dask.org/v1",
        "kind": "DaskCluster",
        "metadata": {"name": "demo", "namespace": "default"},
        "spec": {
            "scheduler": {
                "spec": {"containers": [scheduler], **grace},
                "service": {
                    "type": "ClusterIP",
                    "selector": selector,
                    "ports": listed,
                },
            },
            "worker": {"replicas": workers, "spec": {"containers": [worker], **grace}},
        },
    }


ASK = """
import json, os, sys
from distributed import Client

with Client("tcp://demo-scheduler:8786") as client:
    client.wait_for_workers(2, timeout=60)
    name = client.submit(lambda: os.environ["DASK_WORKER_NAME"]).result(timeout=30)
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    print(json.dumps([name, sorted(one["name"] for one in workers)]))
"""


def test_the_operator_makes_a_cluster_and_a_group_of_real_dask_processes(
    cluster: LocalCluster,
) -> None:
    kube = cluster.kube()
    made = dask_cluster(1)
    kube.create(made)
    kube.create(
        {
            "apiVersion": "kubernetes.dask.org/v1",
            "kind": "DaskWorkerGroup",
            "metadata": {"name": "demo-more", "namespace": "default"},
            "spec": {"cluster": "demo", "worker": made["spec"]["worker"]},
        }
    )

    def workers() -> list[str]:
        found = kube.list("Deployment", {"dask.org/component": "worker"})
        return [one["metadata"]["name"] for one in found]

    cluster.wait_for("two workers", lambda: len(workers()) == 2, 60)
    found = subprocess.run(
        [sys.executable, "-c", ASK],
        env=cluster.environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr + cluster.describe()
    ran_on, names = json.loads(found.stdout.splitlines()[-1])

    assert ran_on in names
    assert names == sorted(workers())
    assert {name.split("-worker-")[0] for name in names} == {
        "demo-default",
        "demo-more",
    }

    kube.delete("DaskCluster", "demo")
    cluster.wait_for("all is gone", lambda: not cluster.pods() and not workers(), 60)


def test_an_operator_that_was_killed_goes_on_where_it_was(
    cluster: LocalCluster,
) -> None:
    kube = cluster.kube()
    cluster.stop_operator()
    assert cluster.operator is not None
    assert not cluster.operator.is_running
    kube.create(dask_cluster(0))

    cluster.start_operator()

    cluster.wait_for(
        "the scheduler", lambda: ready(cluster, "Deployment", "demo-scheduler"), 60
    )
    kube.delete("DaskCluster", "demo")
    cluster.wait_for("all is gone", lambda: not cluster.pods(), 60)
