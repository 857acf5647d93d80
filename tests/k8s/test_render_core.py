"""What is rendered for the namespace."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from platforms import DEPLOY, PLATFORMS, example_platform, tls_platform
from pods_of_platform import objects_of_operator, pods
from rayshim.k8s import golden
from rayshim.k8s.config import Platform, Tls
from rayshim.k8s.render import render
from rayshim.k8s.rendering import rbac, secrets, tls
from rayshim.k8s.serializing import from_yaml, to_yaml

pytestmark = pytest.mark.slow

Object = dict[str, Any]
#: Of Kubernetes: the oldest that EKS supports and all that the package has after it.
VERSIONS = ("1.31.0", "1.32.0", "1.33.0", "1.34.0", "1.35.0", "1.36.0", "1.37.0")
GROUPS_OF_KUBERNETES = ("v1", "apps/v1", "policy/v1")


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
    wanted = golden.expected(one, DEPLOY)
    again = "run `python -m rayshim.k8s.golden --write` and look at the difference"
    assert golden.different(wanted) == [], again
    assert golden.left_over(one, wanted, DEPLOY) == [], again


def test_no_committed_copy_has_a_secret() -> None:
    for one in golden.GOLDEN:
        for path in golden.expected(one, DEPLOY):
            if path.suffix != ".yaml":
                continue
            for made in from_yaml(path.read_text()):
                if made.get("kind") == "Secret":
                    assert not {"data", "stringData"} & set(made), path
            assert str(Path(__file__).parents[2]) not in path.read_text(), path
