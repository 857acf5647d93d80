"""What the pods of the head and of the workers are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest

from platforms import (
    CPU_INGEST,
    EXTERNAL,
    GPU_SERVE,
    GPU_TRAIN,
    PLATFORMS,
    VOLUME,
    dask_platform,
    example_platform,
    small_platform,
)
from pods_of_platform import head_container, pods, worker_args
from rayshim.k8s.config import ConfigError, Tls
from rayshim.k8s.render import render
from rayshim.k8s.rendering import head

pytestmark = pytest.mark.slow


# The head.


def test_the_head_of_rayshim() -> None:
    container = head_container(example_platform())
    assert container["command"] == ["rayshim", "start"]
    assert container["args"][:-1] == [
        "--head",
        "--block",
        "--num-cpus=0",
        "--num-gpus=0",
        "--node-ip-address=$(POD_IP)",
        "--port=6379",
        "--ray-client-server-port=10001",
        "--node-manager-port=6380",
        "--object-manager-port=6381",
        "--token-path=/etc/rayshim/token/token",
        "--dashboard-host=0.0.0.0",
        "--dashboard-port=8265",
        "--metrics-export-port=8080",
        "--object-store-memory=1020054732",
    ]
    assert '"cluster_name": "demo"' in container["args"][-1]


def test_the_head_of_dask() -> None:
    container = head_container(dask_platform(tls=Tls(is_enabled=True)))
    assert container["command"] == ["dask", "scheduler"]
    assert container["args"] == [
        "--host=$(POD_IP)",
        "--port=8786",
        "--dashboard-address=$(POD_IP):8787",
        "--protocol=tls",
        "--tls-ca-file=/etc/rayshim/tls/ca.crt",
        "--tls-cert=/etc/rayshim/tls/tls.crt",
        "--tls-key=/etc/rayshim/tls/tls.key",
    ]
    assert container["readinessProbe"]["tcpSocket"] == {"port": "tcp-comm"}


def test_the_operator_finds_no_dask_ports_at_rayshims_head() -> None:
    """Else it would delete workers of its choice when replicas are lowered."""
    services = {
        make: next(
            one["spec"]["scheduler"]["service"]
            for one in render(make()).objects
            if one["kind"] == "DaskCluster"
        )
        for make in (example_platform, dask_platform)
    }
    named = {
        make: {one["name"] for one in service["ports"]}
        for make, service in services.items()
    }
    assert named[example_platform] == {"head", "client", "dashboard", "metrics"}
    assert named[dask_platform] == {"tcp-comm", "http-dashboard"}


def test_where_the_journal_is() -> None:
    volume = head_container(example_platform(head=VOLUME))
    assert (
        '"journal_url": "sqlite:////var/lib/rayshim/journal.sqlite"'
        in (volume["args"][-1])
    )
    mounts = {one["name"]: one["mountPath"] for one in volume["volumeMounts"]}
    assert mounts["journal"] == "/var/lib/rayshim"
    external = head_container(example_platform(head=EXTERNAL))
    url = {one["name"]: one for one in external["env"]}["RAYSHIM_JOURNAL_URL"]
    assert url["valueFrom"]["secretKeyRef"] == {"name": "journal", "key": "url"}
    nothing = head_container(small_platform())
    assert "RAYSHIM_JOURNAL_URL" not in {one["name"] for one in nothing["env"]}


def test_a_volume_has_one_head_at_a_time() -> None:
    claim = next(
        one
        for one in render(example_platform(head=VOLUME)).objects
        if one["kind"] == "PersistentVolumeClaim"
    )
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    patch = head.deployment_patch(example_platform(head=VOLUME))
    assert patch["spec"]["strategy"] == {"type": "Recreate", "rollingUpdate": None}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "demo-scheduler"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "strategy": {"type": "Recreate"},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": patch["spec"]["template"]["spec"],
            },
        },
    }
    kubernetes_validate.validate(deployment, "1.33.0", strict=True)


def test_the_default_group_is_none_of_the_files_groups() -> None:
    cluster = next(
        one
        for one in render(example_platform()).objects
        if one["kind"] == "DaskCluster"
    )
    worker = cluster["spec"]["worker"]
    assert worker["replicas"] == 0
    assert "rayshim.io/group" not in worker["metadata"]["labels"]
    assert worker["metadata"]["labels"]["app.kubernetes.io/component"] == "worker"


# The workers.


def test_a_worker_of_rayshim() -> None:
    assert worker_args(example_platform(), GPU_TRAIN) == [
        "--block",
        "--stay-when-drained",
        "--address=demo-scheduler.ray-prod.svc.cluster.local:6379",
        "--node-ip-address=$(POD_IP)",
        "--node-name=$(DASK_WORKER_NAME)",
        "--node-manager-port=6380",
        "--object-manager-port=6381",
        "--num-cpus=44",
        "--num-gpus=4",
        "--memory=365072220160",
        "--object-store-memory=65283502899",
        '--resources={"accelerator_type:A10G": 1.0}',
        "--labels=ray.io/node-group=gpu-train,ray.io/accelerator-type=A10G,"
        "rayshim.io/worker=$(DASK_WORKER_NAME)",
        "--token-path=/etc/rayshim/token/token",
        "--metrics-export-port=8080",
        '--system-config={"head_grace_s": 600}',
    ]


def test_rayshim_start_takes_the_arguments() -> None:
    from rayshim._core.init_options import InitOptions
    from rayshim.cli.start import _check_usage, _node_arguments, start

    # No larger a store than the machine of the test has.
    cpu, gpu = (replace(one, store_gib=0.1) for one in (CPU_INGEST, GPU_TRAIN))
    platform = example_platform(groups=(cpu, gpu, GPU_SERVE))
    for args in (
        head_container(platform)["args"],
        worker_args(platform, cpu),
        worker_args(platform, gpu),
    ):
        context = start.make_context("start", list(args))
        _check_usage(context.params)
        InitOptions.validate(
            address="local",
            configure_logging=False,
            **_node_arguments(context.params),
        )


def test_a_node_offers_what_the_planner_counts_on() -> None:
    from rayshim.cli.start import _node_arguments, start

    args = worker_args(example_platform(), GPU_TRAIN)
    found = _node_arguments(start.make_context("start", list(args)).params)
    offered = {
        "CPU": found["num_cpus"],
        "GPU": found["num_gpus"],
        "memory": found["_memory"],
        **found["resources"],
    }
    assert offered == GPU_TRAIN.logical_resources()
    labels = dict(found["labels"])
    assert labels.pop("rayshim.io/worker") == "$(DASK_WORKER_NAME)"
    assert labels == dict(GPU_TRAIN.node_group().labels)


def test_a_worker_of_dask() -> None:
    platform = dask_platform(tls=Tls(is_enabled=True))
    assert worker_args(platform, GPU_SERVE) == [
        "tls://demo-scheduler.ray-prod.svc.cluster.local:8786",
        "--name=$(DASK_WORKER_NAME)",
        "--host=$(POD_IP)",
        "--worker-port=8788",
        "--dashboard-address=$(POD_IP):8787",
        "--nworkers=1",
        "--nthreads=6",
        "--memory-limit=25769803776",
        "--resources=CPU=6 memory=25769803776 GPU=1 accelerator_type:L4=1",
        "--no-nanny",
        "--local-directory=/tmp",
        "--protocol=tls",
        "--tls-ca-file=/etc/rayshim/tls/ca.crt",
        "--tls-cert=/etc/rayshim/tls/tls.crt",
        "--tls-key=/etc/rayshim/tls/tls.key",
    ]
    pod = pods(render(platform).objects)["demo-gpu-serve-worker-0123456789"]
    env = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    assert env["DASK_SCHEDULER_ADDRESS"].startswith("tls://")
    assert env["DASK_WORKER_NAME"] == "demo-gpu-serve-worker-0123456789"


def test_what_a_gpu_worker_asks_of_kubernetes() -> None:
    pod = pods(render(example_platform()).objects)["demo-gpu-train-worker-0123456789"]
    container = pod["spec"]["containers"][0]
    assert container["image"] == "registry.example/rayshim:gpu"
    assert container["resources"] == {
        "requests": {"cpu": "44", "memory": "348160Mi", "nvidia.com/gpu": "4"},
        "limits": {"memory": "348160Mi", "nvidia.com/gpu": "4"},
    }
    assert {one["key"] for one in pod["spec"]["tolerations"]} == {
        "rayshim.io/group",
        "nvidia.com/gpu",
    }
    assert pod["spec"]["nodeSelector"] == {"rayshim.io/group": "gpu-train"}
    labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
    assert labels["kueue.x-k8s.io/queue-name"] == "train"
    assert labels["kueue.x-k8s.io/priority-class"] == "train"
    assert annotations["karpenter.sh/do-not-disrupt"] == "true"


def test_shared_memory_is_as_large_as_the_store() -> None:
    pod = pods(render(example_platform()).objects)["demo-cpu-ingest-worker-0123456789"]
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16384Mi"}
    without = replace(CPU_INGEST, store_gib=0.0)
    platform = example_platform(groups=(without, GPU_TRAIN, GPU_SERVE))
    assert "--object-store-memory=17136919511" in worker_args(platform, without)


def test_serving_pods_are_spread_and_may_be_moved() -> None:
    pod = pods(render(example_platform()).objects)["demo-gpu-serve-worker-0123456789"]
    spread = pod["spec"]["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in spread] == ["topology.kubernetes.io/zone"]
    assert "karpenter.sh/do-not-disrupt" not in pod["metadata"]["annotations"]
    numbers = {one["containerPort"] for one in pod["spec"]["containers"][0]["ports"]}
    assert 8000 in numbers


def test_without_eks_pods_run_anywhere() -> None:
    pod = pods(render(small_platform()).objects)["demo-cpu-worker-0123456789"]
    assert "nodeSelector" not in pod["spec"]
    assert pod["spec"]["tolerations"] == []


def test_probes_end_no_worker() -> None:
    for make in PLATFORMS.values():
        for name, pod in pods(render(make()).objects).items():
            container = pod["spec"]["containers"][0]
            if "worker" in name:
                assert "livenessProbe" not in container
            if "livenessProbe" in container:
                probe = container["livenessProbe"]
                assert probe["periodSeconds"] * probe["failureThreshold"] >= 300


def test_pod_spec_is_merged_last() -> None:
    group = replace(
        CPU_INGEST,
        pod_spec={
            "priorityClassName": "low",
            "containers": [
                {"name": "worker", "env": [{"name": "HOME", "value": "/work"}]},
                {"name": "side", "image": "side:1"},
            ],
            "volumes": [{"name": "cache", "emptyDir": {}}],
        },
        tolerations=({"key": "batch", "operator": "Exists"},),
        node_selector={"disk": "fast"},
        env={"OMP_NUM_THREADS": "4"},
    )
    platform = example_platform(groups=(group, GPU_TRAIN, GPU_SERVE))
    spec = pods(render(platform).objects)["demo-cpu-ingest-worker-0123456789"]["spec"]
    assert spec["priorityClassName"] == "low"
    assert [one["name"] for one in spec["containers"]] == ["worker", "side"]
    env = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
    assert env["HOME"] == "/work" and env["OMP_NUM_THREADS"] == "4"
    assert spec["containers"][0]["image"] == "registry.example/rayshim:cpu"
    assert [one["name"] for one in spec["volumes"]][-1] == "cache"
    assert {"key": "batch", "operator": "Exists"} in spec["tolerations"]
    assert spec["nodeSelector"] == {
        "rayshim.io/group": "cpu-ingest",
        "disk": "fast",
    }


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"cpus": 1.5},
            "platform.yaml: groups.cpu-ingest.cpus: a node has whole CPUs, not 1.5; "
            "round it down",
        ),
        (
            {"store_gib": 60.0},
            "platform.yaml: groups.cpu-ingest.store_gib: the store of 60 GiB counts "
            "against the 56 GiB of memory_gib, and leaves nothing for tasks; make it "
            "smaller",
        ),
        (
            {"store_gib": 0.01},
            "platform.yaml: groups.cpu-ingest.store_gib: a store of 0.01 GiB is too "
            "small: give at least 0.08 GiB",
        ),
        (
            {"env": {"POD_IP": "1.2.3.4"}},
            "platform.yaml: groups.cpu-ingest.env.POD_IP: is set by the platform "
            "itself; leave it out",
        ),
        (
            {"labels": {"team": "a,b"}},
            "platform.yaml: groups.cpu-ingest.labels.team: a label has no ',' or '=' "
            "in it, as 'a,b' has",
        ),
    ],
)
def test_what_a_worker_cannot_be_told(change: dict[str, Any], text: str) -> None:
    group = replace(CPU_INGEST, **change)
    with pytest.raises(ConfigError) as found:
        render(example_platform(groups=(group, GPU_TRAIN, GPU_SERVE)))
    assert str(found.value) == text


def test_the_autoscaler_needs_the_file_itself() -> None:
    with pytest.raises(ConfigError, match="read it with load_platform"):
        render(example_platform(text=""))


@pytest.mark.parametrize("platform", ["tls", "dask-tls"])
def test_the_autoscaler_is_told_where_its_certificates_are(platform: str) -> None:
    made = pods(render(PLATFORMS[platform]()).objects)["demo-autoscaler"]

    (container,) = made["spec"]["containers"]
    told = {one["name"]: one.get("value") for one in container["env"]}
    (mount,) = [o for o in container["volumeMounts"] if "tls" in o["mountPath"]]
    assert told["RAYSHIM_TLS_CA"] == f"{mount['mountPath']}/ca.crt"
    assert told["RAYSHIM_TLS_CERT"] == f"{mount['mountPath']}/tls.crt"
    assert told["RAYSHIM_TLS_KEY"] == f"{mount['mountPath']}/tls.key"


def test_an_autoscaler_that_ends_again_and_again_is_never_ready() -> None:
    """Without a probe a container is ready while it runs, and `up` content."""
    made = pods(render(example_platform()).objects)["demo-autoscaler"]

    (container,) = made["spec"]["containers"]
    assert container["readinessProbe"]["tcpSocket"] == {"port": "metrics"}
    assert "metrics" in [one["name"] for one in container["ports"]]
