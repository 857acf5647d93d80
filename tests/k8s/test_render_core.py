"""What is rendered for the namespace."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from platforms import (
    CPU_INGEST,
    GPU_SERVE,
    GPU_TRAIN,
    dask_platform,
    example_platform,
    small_platform,
    tls_platform,
)
from pods_of_platform import objects_of_operator, pods
from rayshim.k8s import golden
from rayshim.k8s.config import ConfigError, Group, Head, HeadState, Platform, Tls
from rayshim.k8s.render import render
from rayshim.k8s.rendering import head, rbac, secrets, tls
from rayshim.k8s.serializing import from_yaml, to_yaml

pytestmark = pytest.mark.slow

Object = dict[str, Any]
#: Of Kubernetes: the oldest that EKS supports and all that the package has after it.
VERSIONS = ("1.31.0", "1.32.0", "1.33.0", "1.34.0", "1.35.0", "1.36.0", "1.37.0")
GROUPS_OF_KUBERNETES = ("v1", "apps/v1", "policy/v1")

VOLUME = Head(state=HeadState("volume"))
EXTERNAL = Head(state=HeadState("external", secret="journal", endpoint="cache.example"))
PLATFORMS: dict[str, Callable[[], Platform]] = {
    "example": example_platform,
    "tls": tls_platform,
    "dask": dask_platform,
    "dask-tls": lambda: dask_platform(tls=Tls(is_enabled=True)),
    "small": small_platform,
    "volume": lambda: example_platform(head=VOLUME),
    "external": lambda: example_platform(head=EXTERNAL),
}


def is_core(made: Object) -> bool:
    """Whether an object is of a kind that Kubernetes has itself."""
    version = made["apiVersion"]
    return version in GROUPS_OF_KUBERNETES or version.split("/")[0].endswith(".k8s.io")


def core_objects(platform: Platform) -> list[Object]:
    rendered = render(platform)
    found = [*rendered.objects, *rendered.secrets]
    filled = [secrets.filled(one, platform, bytes) for one in rendered.secrets]
    return [
        one
        for one in [*found, *filled, *objects_of_operator(rendered.objects)]
        if is_core(one) and not one["apiVersion"].startswith("kueue.")
    ]


def worker_args(platform: Platform, group: Group) -> list[str]:
    name = f"{platform.name}-{group.name}-worker-0123456789"
    found: list[str] = pods(render(platform).objects)[name]["spec"]["containers"][0][
        "args"
    ]
    return found


def head_container(platform: Platform) -> Object:
    found: Object = pods(render(platform).objects)["demo-scheduler"]["spec"][
        "containers"
    ][0]
    return found


# What Kubernetes says.


@pytest.mark.parametrize(
    ("name", "version"),
    [("example", version) for version in VERSIONS]
    + [(name, "1.33.0") for name in PLATFORMS if name != "example"],
)
def test_core_objects_are_valid(name: str, version: str) -> None:
    objects = core_objects(PLATFORMS[name]())
    assert {one["kind"] for one in objects} >= {
        "Namespace",
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Deployment",
        "Service",
        "ConfigMap",
    }
    for one in objects:
        kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_field_that_kubernetes_does_not_know_is_found(version: str) -> None:
    kinds = {one["kind"]: one for one in core_objects(example_platform())}
    for one in kinds.values():
        broken = {**one, "spce": {}}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(broken, version, strict=True)


def test_numbers_that_were_texts_are_found() -> None:
    budget = next(
        one for one in core_objects(example_platform()) if one["kind"] == "StatefulSet"
    )
    broken = {**budget, "spec": {**budget["spec"], "replicas": "one"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.33.0", strict=True)


def test_names_and_labels_are_everywhere() -> None:
    for one in render(example_platform()).objects:
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "rayshim", one["kind"]
        assert labels["rayshim.io/platform"] == "demo", one["kind"]


def test_pods_keep_to_the_restricted_standard() -> None:
    for make in PLATFORMS.values():
        for name, pod in pods(render(make()).objects).items():
            spec = pod["spec"]
            security = spec["securityContext"]
            assert security["runAsNonRoot"] is True, name
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
            assert set(spec) & {"hostNetwork", "hostPID", "hostIPC"} == set(), name
            for container in spec["containers"]:
                own = container["securityContext"]
                assert own["allowPrivilegeEscalation"] is False, name
                assert own["readOnlyRootFilesystem"] is True, name
                assert own["capabilities"] == {"drop": ["ALL"]}, name
            for volume in spec["volumes"]:
                allowed = {"emptyDir", "secret", "configMap", "persistentVolumeClaim"}
                assert set(volume) - {"name"} <= allowed, name


def test_all_that_pods_mount_and_refer_to_is_there() -> None:
    for make in PLATFORMS.values():
        platform = make()
        rendered = render(platform)
        there = {
            (one["kind"], one["metadata"]["name"])
            for one in [*rendered.objects, *rendered.secrets]
        }
        there |= {("Secret", "rayshim-tls"), ("Secret", "journal")}
        for name, pod in pods(rendered.objects).items():
            spec = pod["spec"]
            volumes = {one["name"]: one for one in spec["volumes"]}
            claims = {"data"} if name == "demo-state" else set()
            for mount in spec["containers"][0]["volumeMounts"]:
                assert mount["name"] in volumes.keys() | claims, name
            for volume in volumes.values():
                if "secret" in volume:
                    assert ("Secret", volume["secret"]["secretName"]) in there
                if "configMap" in volume:
                    assert ("ConfigMap", volume["configMap"]["name"]) in there
                if "persistentVolumeClaim" in volume:
                    claim = volume["persistentVolumeClaim"]["claimName"]
                    assert ("PersistentVolumeClaim", claim) in there
            account = spec.get("serviceAccountName")
            assert account is None or ("ServiceAccount", account) in there


# Bytes.

_PRINT = """
import sys
sys.path.insert(0, sys.argv[1])
from platforms import tls_platform
from rayshim.k8s.render import render
for path, text in render(tls_platform()).texts().items():
    print(path, text)
"""


def test_two_renders_are_equal() -> None:
    first, second = render(tls_platform()), render(tls_platform())
    assert first.texts() == second.texts()
    assert list(first.files) == list(second.files)
    assert to_yaml(first.objects) == to_yaml(second.objects)


def test_renders_of_other_processes_are_equal() -> None:
    printed = set()
    for seed in ("0", "1", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", _PRINT, str(Path(__file__).parent)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        printed.add(done.stdout)
    assert len(printed) == 1
    assert b"kind: DaskCluster" in printed.pop()


def test_yaml_reads_back() -> None:
    objects = list(render(tls_platform()).objects)
    assert from_yaml(to_yaml(objects)) == objects


def test_nothing_that_is_rendered_is_shared() -> None:
    """Changing one object changes no other one."""
    objects = render(example_platform()).objects
    before = to_yaml(objects[:-1])
    for one in objects:
        if one["kind"] == "DaskCluster":
            container = one["spec"]["scheduler"]["spec"]["containers"][0]
            container["securityContext"]["capabilities"]["drop"].append("X")
            one["metadata"]["labels"]["x"] = "y"
            one["metadata"]["labels"].pop("x")
            container["securityContext"]["capabilities"]["drop"].pop()
    assert to_yaml(objects[:-1]) == before
    assert "- X" not in to_yaml(render(example_platform()).objects)


# Secrets.


def test_secrets_are_rendered_empty() -> None:
    rendered = render(example_platform())
    for one in rendered.secrets:
        assert "data" not in one and "stringData" not in one
        assert one["metadata"]["annotations"]["rayshim.io/filled-by"] == (
            "rayshim k8s up"
        )
    assert [one["kind"] for one in rendered.objects].count("Secret") == 0


def test_secrets_are_filled_from_random_bytes() -> None:
    platform = tls_platform()
    drawn = []

    def draw(size: int) -> bytes:
        drawn.append(size)
        return b"\x0f" * size

    token, state = [
        secrets.filled(one, platform, draw) for one in render(platform).secrets
    ]
    assert drawn == [32, 24]
    assert base64.b64decode(token["data"]["token"]) == b"0f" * 32
    found = {name: base64.b64decode(one) for name, one in state["data"].items()}
    password = b"0f" * 24
    assert found == {
        "password": password,
        "url": b"rediss://:" + password + b"@demo-state.ray-prod.svc.cluster.local"
        b":6379/0?ssl_ca_certs=/etc/rayshim/tls/ca.crt",
        "valkey.conf": b"requirepass " + password + b"\n",
    }


def test_a_secret_counts_as_filled_with_all_of_its_keys() -> None:
    platform = example_platform()
    state = render(platform).secrets[1]
    filled = secrets.filled(state, platform, bytes)
    assert secrets.is_filled(state, filled)
    assert not secrets.is_filled(state, None)
    assert not secrets.is_filled(state, state)
    del filled["data"]["url"]
    assert not secrets.is_filled(state, filled)


def test_the_password_is_on_no_command_line_and_in_no_plain_variable() -> None:
    there = pods(render(example_platform()).objects)
    url = next(
        one
        for one in there["demo-scheduler"]["spec"]["containers"][0]["env"]
        if one["name"] == "RAYSHIM_JOURNAL_URL"
    )
    assert url["valueFrom"] == {"secretKeyRef": {"name": "demo-state", "key": "url"}}
    valkey = there["demo-state"]["spec"]["containers"][0]
    assert valkey["command"] == ["valkey-server", "/etc/valkey/valkey.conf"]
    assert not any("pass" in one for one in valkey["args"])


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


# TLS.


def test_the_certificate_has_the_names_that_are_checked() -> None:
    made = next(
        one for one in render(tls_platform()).objects if one["kind"] == "Certificate"
    )
    assert made["spec"]["dnsNames"] == [
        "rayshim",
        "demo-scheduler",
        "demo-scheduler.ray-prod",
        "demo-scheduler.ray-prod.svc",
        "demo-scheduler.ray-prod.svc.cluster.local",
        "demo-state.ray-prod.svc.cluster.local",
    ]
    assert made["spec"]["secretName"] == "rayshim-tls"
    assert "labels" in made["spec"]["secretTemplate"]


def test_a_certificate_that_is_brought_is_only_mounted() -> None:
    platform = example_platform(tls=Tls(is_enabled=True, secret="ours"))
    assert tls.objects(platform) == []
    for name, pod in pods(render(platform).objects).items():
        volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
        assert volumes["tls"]["secret"]["secretName"] == "ours", name


# Rights, order, replicas.


def test_there_are_no_rights_beyond_the_namespace() -> None:
    kinds = {one["kind"] for one in render(example_platform()).objects}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding"}
    for right in [*rbac.autoscaler_rights("demo"), *rbac.admin_rights("demo")]:
        assert "*" not in (right.group, right.resource, *right.verbs)


def test_things_are_applied_after_what_they_need() -> None:
    order = [one["kind"] for one in render(tls_platform()).objects]
    first = [
        "Namespace",
        "ServiceAccount",
        "Role",
        "NetworkPolicy",
        "StatefulSet",
        "DaskCluster",
        "DaskWorkerGroup",
        "Deployment",
    ]
    assert [order.index(kind) for kind in first] == sorted(map(order.index, first))
    assert order[0] == "Namespace"


def test_groups_begin_without_workers() -> None:
    """The autoscaler starts them; the CRD's own default would be one."""
    for one in render(example_platform()).objects:
        if one["kind"] == "DaskWorkerGroup":
            assert one["spec"]["worker"]["replicas"] == 0


def test_what_belongs_to_other_clusters_is_beside() -> None:
    other = example_platform(name="serve", namespace="ray-serve")
    rendered = render(example_platform(others=(other,)))
    assert "serve/base/dask-cluster.yaml" in rendered.files
    deployment = rendered.files["serve/base/autoscaler.yaml"][-1]
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[-1] == "--platform=serve"
    names = {one["metadata"].get("namespace", "ray-prod") for one in rendered.objects}
    assert names == {"ray-prod"}


# The committed copies.


@pytest.mark.parametrize("one", golden.GOLDEN, ids=lambda one: one.folder or "deploy")
def test_the_committed_copies_are_current(one: golden.Golden) -> None:
    wanted = golden.expected(one)
    again = "run `python -m rayshim.k8s.golden --write` and look at the difference"
    assert golden.different(wanted) == [], again
    assert golden.left_over(one, wanted) == [], again


def test_no_committed_copy_has_a_secret() -> None:
    for one in golden.GOLDEN:
        for path in golden.expected(one):
            if path.suffix != ".yaml":
                continue
            for made in from_yaml(path.read_text()):
                if made.get("kind") == "Secret":
                    assert not {"data", "stringData"} & set(made), path
            assert str(Path(__file__).parents[2]) not in path.read_text(), path
