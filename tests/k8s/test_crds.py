"""The CRDs of the installed operator: what they take, refuse, and would drop."""

from __future__ import annotations

from typing import Any

import pytest

from platforms import (
    GPU_TRAIN,
    dask_platform,
    example_platform,
    small_platform,
    tls_platform,
)
from rayshim.k8s import crds
from rayshim.k8s.render import render


def group_object(**spec: Any) -> dict[str, Any]:
    """A small DaskWorkerGroup; keyword arguments are of its pods' spec."""
    pod = {"containers": [{"name": "worker", "image": "rayshim:cpu"}], **spec}
    return {
        "apiVersion": "kubernetes.dask.org/v1",
        "kind": "DaskWorkerGroup",
        "metadata": {"name": "demo-cpu", "namespace": "ray-prod"},
        "spec": {"cluster": "demo", "worker": {"replicas": 0, "spec": pod}},
    }


def test_the_wheel_has_the_operators_kinds() -> None:
    kinds = {one["spec"]["names"]["kind"] for one in crds.crd_objects()}
    assert {"DaskCluster", "DaskWorkerGroup", "DaskJob", "DaskAutoscaler"} <= kinds
    assert {one["kind"] for one in crds.crd_objects()} == {"CustomResourceDefinition"}


def test_what_is_rendered_passes() -> None:
    for make in (example_platform, tls_platform, dask_platform, small_platform):
        assert crds.check(render(make()).objects) == []


def test_a_good_object_passes() -> None:
    assert crds.check([group_object()]) == []


def test_a_field_that_would_be_dropped_is_named() -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "a100"}]
    found = crds.check([group_object(resourceClaims=claims)])
    assert [str(one) for one in found] == [
        "DaskWorkerGroup demo-cpu: spec.worker.spec.resourceClaims is not in the "
        "operator's CRD schema (Kubernetes 1.21) and would be dropped; remove it"
    ]
    assert found[0].path == "spec.worker.spec.resourceClaims"


def test_fields_in_lists_have_their_place() -> None:
    containers = [
        {"name": "worker", "image": "i", "resizePolicy": []},
        {"name": "side", "image": "i", "restartPolicy": "Always"},
    ]
    assert crds.dropped_fields(group_object(containers=containers)) == [
        "spec.worker.spec.containers[0].resizePolicy",
        "spec.worker.spec.containers[1].restartPolicy",
    ]


def test_what_pod_spec_adds_is_looked_at() -> None:
    from dataclasses import replace

    group = replace(GPU_TRAIN, pod_spec={"schedulingGates": [{"name": "mine"}]})
    found = crds.check(
        render(example_platform(groups=(group,), serve=None, queues=())).objects
    )
    assert [one.path for one in found if "WorkerGroup" in one.subject] == [
        "spec.worker.spec.schedulingGates"
    ]


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("replicas", "2", "spec.worker.replicas must be of type integer, not '2'"),
        ("replicas", True, "spec.worker.replicas must be of type integer, not True"),
        ("spec", {}, "spec.worker.spec.containers is missing; give it"),
        (
            "spec",
            {"containers": {"name": "worker"}},
            "spec.worker.spec.containers must be of type array, not {'name': 'worker'}",
        ),
        (
            "spec",
            {"containers": [{"name": "w", "ports": [{"containerPort": "http"}]}]},
            "spec.worker.spec.containers[0].ports[0].containerPort must be of type "
            "integer, not 'http'",
        ),
        (
            "spec",
            {"containers": [{"name": "w", "resources": {"limits": {"cpu": 2}}}]},
            "spec.worker.spec.containers[0].resources.limits.cpu must be of type "
            "string, not 2",
        ),
    ],
)
def test_what_the_api_server_refuses_is_found(path: str, value: Any, text: str) -> None:
    made = group_object()
    made["spec"]["worker"][path] = value
    assert [one.text for one in crds.validate(made)] == [text]


def test_only_the_operators_kinds_are_known() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}}
    assert crds.check([pod]) == []
    with pytest.raises(KeyError, match="no CRD for v1 Pod"):
        crds.validate(pod)


def test_schemas_agree_with_a_validator_of_json_schema() -> None:
    """As far as they overlap; it knows nothing of what is dropped."""
    import jsonschema

    for one in render(example_platform()).objects:
        schema = crds.schema_of(one)
        if schema is not None:
            jsonschema.Draft202012Validator(dict(schema)).validate(one)
