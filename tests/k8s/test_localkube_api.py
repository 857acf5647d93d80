"""The test cluster's API server does what programs notice of a real one."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from kubernetes import client, config

from api_objects import (
    config_map,
    dask_crds,
    deployment,
    namespace,
    owned_by,
    pod,
    worker_group,
)
from rayshim.k8s.api import Conflict, Forbidden, Invalid, Kube, KubeError, NotFound
from rayshim.k8s.testing.localkube.apiserver import ApiServer, Refusal
from rayshim.k8s.testing.localkube.resources import schemaless_crd

Object = dict[str, Any]


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.install(*dask_crds())
        yield server


@pytest.fixture
def kube(
    api: ApiServer, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Kube]:
    """A namespace of the test's own."""
    name = f"test-{zlib.crc32(request.node.name.encode()):x}"
    api.install(namespace(name))
    made = Kube.load(
        namespace=name, kubeconfig=str(api.kubeconfig(tmp_path / "config"))
    )
    yield made
    made.close()
    for one in api.store.list("pods", name):
        made.patch("Pod", one["metadata"]["name"], {"metadata": {"finalizers": None}})
        made.delete("Pod", one["metadata"]["name"], grace_s=0)
    made.delete("Namespace", name)
    made.close()
    api.admission.clear()
    api.heal()


class Raw:
    """Requests as they are written."""

    def __init__(self, api: ApiServer, space: str) -> None:
        self._api, self._space = api, space

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        kind: str = "application/json",
        accept: str = "application/json",
        token: str = "",
    ) -> tuple[int, Any]:
        path = path.replace("{ns}", self._space)
        with urllib3.PoolManager() as pool:
            found = pool.request(
                method,
                self._api.url + path,
                body=None if body is None else json.dumps(body),
                headers={
                    "Content-Type": kind,
                    "Accept": accept,
                    "Authorization": f"Bearer {token or self._api.admin_token}",
                    "User-Agent": "test/1",
                },
                retries=False,
            )
        is_json = "json" in found.headers.get("content-type", "")
        return found.status, json.loads(found.data) if is_json else found.data


@pytest.fixture
def raw(api: ApiServer, kube: Kube) -> Raw:
    return Raw(api, kube.namespace)


def test_what_is_created_has_uid_version_and_defaults(kube: Kube) -> None:
    made = kube.create(pod("one", priorityClassName=None))
    assert made["metadata"]["uid"]
    assert int(made["metadata"]["resourceVersion"]) > 0
    assert made["spec"]["restartPolicy"] == "Always"
    assert made["spec"]["terminationGracePeriodSeconds"] == 30
    assert "priorityClassName" not in made["spec"]  # Nulls go.
    assert made["status"]["phase"] == "Pending"


def test_limits_are_the_default_of_requests(kube: Kube) -> None:
    resources = {"limits": {"nvidia.com/gpu": 2}}
    made = kube.create(deployment("one", resources=resources))
    container = made["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["requests"] == {"nvidia.com/gpu": "2"}


def test_names_are_made_of_generate_name(kube: Kube, raw: Raw) -> None:
    sent = config_map("")
    sent["metadata"] = {"generateName": "part-"}
    code, made = raw("POST", "/api/v1/namespaces/{ns}/configmaps", sent)
    assert code == 201
    assert made["metadata"]["name"].startswith("part-")
    assert len(made["metadata"]["name"]) == 10


def test_a_name_is_taken_once(kube: Kube) -> None:
    kube.create(config_map("one"))
    with pytest.raises(Conflict, match='configmaps "one" already exists') as caught:
        kube.create(config_map("one"))
    assert (caught.value.status, caught.value.reason) == (409, "AlreadyExists")


def test_a_missing_namespace_takes_nothing(kube: Kube) -> None:
    sent = config_map("one")
    sent["metadata"]["namespace"] = "nowhere"
    with pytest.raises(NotFound, match='namespaces "nowhere" not found'):
        kube.create(sent)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metadata": {"name": "Upper"}}, "RFC 1123 subdomain"),
        ({"metadata": {"name": "a", "labels": {"x": "-"}}}, "a valid label must be"),
        ({"spec": {"containers": []}}, "spec.containers: Required value"),
        ({"spec": {"containers": [{"name": "a"}]}}, r"containers\[0\].image: Required"),
        (
            {
                "spec": {
                    "containers": [
                        {
                            "name": "a",
                            "image": "b",
                            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                        }
                    ]
                }
            },
            'volumeMounts.*Not found: "v"',
        ),
        (
            {"spec": {"containers": [{"name": "a", "image": 1}]}},
            "cannot unmarshal number",
        ),
    ],
)
def test_what_is_not_valid_is_refused(kube: Kube, change: Object, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        kube.create({**pod("one"), **change})


def test_a_pod_needs_its_service_account_and_priority_class(kube: Kube) -> None:
    with pytest.raises(Forbidden, match='serviceaccount "robot" not found'):
        kube.create(pod("one", serviceAccountName="robot"))
    with pytest.raises(Forbidden, match="no PriorityClass with name high was found"):
        kube.create(pod("one", priorityClassName="high"))


def test_writes_of_an_old_version_conflict(kube: Kube) -> None:
    old = kube.create(config_map("one", a="1"))
    kube.replace({**old, "data": {"a": "2"}})
    with pytest.raises(Conflict, match="the object has been modified"):
        kube.replace({**old, "data": {"a": "3"}})
    change = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}}
    with pytest.raises(Conflict):
        kube.patch("ConfigMap", "one", {**change, "data": {"a": "3"}})


def test_a_write_that_changes_nothing_makes_no_version(kube: Kube) -> None:
    made = kube.create(config_map("one", a="1"))
    assert kube.patch("ConfigMap", "one", {"data": {"a": "1"}}) == made


def test_generation_counts_changes_of_the_spec_alone(kube: Kube) -> None:
    kube.create(deployment("one"))
    made = kube.patch("Deployment", "one", {"metadata": {"labels": {"a": "b"}}})
    assert made["metadata"]["generation"] == 1
    made = kube.patch("Deployment", "one", {"spec": {"replicas": 3}})
    assert made["metadata"]["generation"] == 2


def test_status_is_written_through_its_subresource_alone(kube: Kube) -> None:
    kube.create(pod("one"))
    made = kube.patch("Pod", "one", {"status": {"phase": "Running"}})
    assert made["status"]["phase"] == "Pending"
    change = {"status": {"phase": "Running"}, "metadata": {"labels": {"a": "b"}}}
    made = kube.patch("Pod", "one", change, subresource="status")
    assert made["status"]["phase"] == "Running"
    assert made["metadata"]["labels"] == {}


def test_a_selector_of_a_deployment_does_not_change(kube: Kube) -> None:
    kube.create(deployment("one"))
    with pytest.raises(Invalid, match="field is immutable"):
        labels = {"app": "other"}
        change = {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}},
        }
        kube.patch("Deployment", "one", {"spec": change})


def test_json_patch_and_its_failed_test(kube: Kube, raw: Raw) -> None:
    kube.create(config_map("one", a="1"))
    path, kind = (
        "/api/v1/namespaces/{ns}/configmaps/one",
        "application/json-patch+json",
    )
    change = {"op": "replace", "path": "/data/a", "value": "2"}
    code, made = raw("PATCH", path, [change], kind)
    assert (code, made["data"]) == (200, {"a": "2"})
    test = {"op": "test", "path": "/data/a", "value": "1"}
    code, made = raw("PATCH", path, [test, change], kind)
    assert (code, made["reason"]) == (422, "Invalid")


def test_strategic_merge_knows_the_keys_of_lists(kube: Kube, raw: Raw) -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    kube.create(deployment("one", env=env))
    path = "/apis/apps/v1/namespaces/{ns}/deployments/one"
    change = [
        {"name": "A", "value": "9"},
        {"name": "B", "$patch": "delete"},
        {"name": "C", "value": "3"},
    ]
    template = {"spec": {"containers": [{"name": "main", "env": change}]}}
    code, made = raw(
        "PATCH",
        path,
        {"spec": {"template": template}},
        "application/strategic-merge-patch+json",
    )
    assert code == 200
    container = made["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "app:1"
    assert container["env"] == [
        {"name": "A", "value": "9"},
        {"name": "C", "value": "3"},
    ]


def test_custom_kinds_take_no_strategic_merge(kube: Kube, raw: Raw) -> None:
    kube.create(worker_group("one"))
    path = "/apis/kubernetes.dask.org/v1/namespaces/{ns}/daskworkergroups/one"
    code, made = raw("PATCH", path, {}, "application/strategic-merge-patch+json")
    assert (code, made["reason"]) == (415, "UnsupportedMediaType")


def test_apply_removes_what_is_no_longer_applied(kube: Kube) -> None:
    kube.apply(config_map("one", a="1", b="2"))
    kube.patch("ConfigMap", "one", {"data": {"c": "3"}})
    made = kube.apply(config_map("one", a="1"))
    assert made["data"] == {"a": "1", "c": "3"}
    made = kube.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}
    )
    assert made["data"] == {"c": "3"}


def test_apply_knows_the_items_of_lists(kube: Kube) -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    kube.apply(deployment("one", env=env))
    made = kube.apply(deployment("one", env=env[1:]))
    container = made["spec"]["template"]["spec"]["containers"][0]
    assert container["env"] == [{"name": "B", "value": "2"}]
    made = kube.apply(deployment("one"))
    assert "env" not in made["spec"]["template"]["spec"]["containers"][0]


def test_what_others_manage_conflicts_unless_forced(kube: Kube, raw: Raw) -> None:
    kube.apply({**deployment("one")})
    kube.patch("Deployment", "one", {"spec": {"replicas": 5}})  # Another manager.
    path = "/apis/apps/v1/namespaces/{ns}/deployments/one?fieldManager=third"
    sent = deployment("one")
    sent["spec"]["replicas"] = 2
    kind = "application/apply-patch+yaml"
    code, made = raw("PATCH", path, sent, kind)
    assert (code, made["reason"]) == (409, "Conflict")
    assert "Apply failed with 1 conflict" in made["message"]
    assert ".spec.replicas" in made["message"]
    code, made = raw("PATCH", f"{path}&force=true", sent, kind)
    assert (code, made["spec"]["replicas"]) == (200, 2)
    made = kube.apply(deployment("one"))
    assert made["spec"]["replicas"] == 2  # Still managed by the third.


def test_apply_again_changes_nothing(kube: Kube) -> None:
    made = kube.apply(worker_group("one"))
    assert kube.apply(worker_group("one")) == made


def test_apply_needs_a_manager(raw: Raw) -> None:
    path = "/api/v1/namespaces/{ns}/configmaps/one"
    code, made = raw("PATCH", path, config_map("one"), "application/apply-patch+yaml")
    assert code == 400
    assert "fieldManager" in made["message"]


def test_dry_run_keeps_nothing(kube: Kube) -> None:
    made = kube.apply(worker_group("one"), dry_run=True)
    assert made["spec"]["worker"]["replicas"] == 1
    assert kube.get("DaskWorkerGroup", "one") is None


def test_fields_that_a_crd_does_not_know_are_dropped_silently(kube: Kube) -> None:
    made = kube.create(worker_group("one", resourceClaims=[{"name": "gpu"}]))
    assert "resourceClaims" not in made["spec"]["worker"]["spec"]


def test_strict_requests_hear_of_unknown_fields(kube: Kube, raw: Raw) -> None:
    sent = worker_group("one", resourceClaims=[{"name": "gpu"}])
    path = "/apis/kubernetes.dask.org/v1/namespaces/{ns}/daskworkergroups"
    code, made = raw("POST", f"{path}?fieldValidation=Strict", sent)
    assert code == 400
    assert 'unknown field "spec.worker.spec.resourceClaims"' in made["message"]
    sent = deployment("one", imag="x")
    path = "/apis/apps/v1/namespaces/{ns}/deployments?fieldValidation=Strict"
    code, made = raw("POST", path, sent)
    assert code == 400
    assert 'unknown field "spec.template.spec.containers[0].imag"' in made["message"]


def test_a_crd_fills_in_defaults_and_checks(kube: Kube) -> None:
    sent = worker_group("one", containers=[{"name": "w", "ports": [{"hostPort": 1}]}])
    del sent["spec"]["worker"]["replicas"]
    with pytest.raises(Invalid, match=r"ports\[0\].containerPort: Required value"):
        kube.create(sent)
    ports = [{"containerPort": 1}]
    sent["spec"]["worker"]["spec"]["containers"][0]["ports"] = ports
    made = kube.create(sent)
    assert made["spec"]["worker"]["replicas"] == 1
    container = made["spec"]["worker"]["spec"]["containers"][0]
    assert container["ports"] == [{"containerPort": 1, "protocol": "TCP"}]
    sent["spec"]["worker"]["replicas"] = "many"
    sent["metadata"]["name"] = "two"
    words = "spec.worker.replicas: Invalid value.*must be of type integer"
    with pytest.raises(Invalid, match=words):
        kube.create(sent)


def test_scale_reads_and_writes_the_number(kube: Kube, raw: Raw) -> None:
    kube.create(worker_group("one"))
    path = "/apis/kubernetes.dask.org/v1/namespaces/{ns}/daskworkergroups/one/scale"
    code, made = raw("GET", path)
    assert (code, made["kind"], made["spec"]) == (200, "Scale", {"replicas": 1})
    kube.patch("DaskWorkerGroup", "one", {"spec": {"replicas": 4}}, subresource="scale")
    found = kube.get("DaskWorkerGroup", "one")
    assert found is not None
    assert found["spec"]["worker"]["replicas"] == 4
    code, refused = raw("PUT", path, made)  # The old version.
    assert (code, refused["reason"]) == (409, "Conflict")


def test_lists_are_chosen_by_labels_and_fields(kube: Kube, raw: Raw) -> None:
    for name, tier in (("a", "web"), ("b", "db"), ("c", "")):
        kube.create(pod(name, {"tier": tier} if tier else {}))
    path = "/api/v1/namespaces/{ns}/pods"

    def names(query: str) -> list[str]:
        listed = raw("GET", f"{path}?{query}")[1]["items"]
        return [one["metadata"]["name"] for one in listed]

    assert names("labelSelector=tier") == ["a", "b"]
    assert names("labelSelector=!tier") == ["c"]
    assert names("labelSelector=tier%20in%20(web,%20x)") == ["a"]
    assert names("labelSelector=tier%20notin%20(web)") == ["b", "c"]
    assert names("labelSelector=tier!=web") == ["b", "c"]
    assert names("fieldSelector=metadata.name=b") == ["b"]
    assert names("fieldSelector=spec.nodeName=") == ["a", "b", "c"]
    assert raw("GET", f"{path}?labelSelector=a%3D%3D%3Db")[0] == 400


def test_lists_come_in_pages(kube: Kube, raw: Raw) -> None:
    for name in "abc":
        kube.create(config_map(name))
    path = "/api/v1/namespaces/{ns}/configmaps?limit=2"
    first = raw("GET", path)[1]
    assert [one["metadata"]["name"] for one in first["items"]] == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 1
    rest = raw("GET", f"{path}&continue={first['metadata']['continue']}")[1]
    assert [one["metadata"]["name"] for one in rest["items"]] == ["c"]
    assert "continue" not in rest["metadata"]


def test_items_of_built_in_kinds_do_not_say_their_kind(kube: Kube) -> None:
    kube.create(pod("one"))
    kube.create(worker_group("one"))
    assert "kind" not in kube.list("Pod")[0]
    assert kube.list("DaskWorkerGroup")[0]["kind"] == "DaskWorkerGroup"


def events(kube: Kube, kind: str, count: int, **how: Any) -> list[tuple[str, str]]:
    """(type, name) of the next events."""
    found = []
    watch = kube.watch(kind, **how)
    for _ in range(count):
        word, made = next(watch)
        found.append((word, made.get("metadata", {}).get("name", "")))
    watch.close()  # type: ignore[attr-defined]
    return found


def test_a_watch_begins_where_a_list_ended(kube: Kube) -> None:
    kube.create(config_map("before"))
    since = kube.list_page("ConfigMap")["metadata"]["resourceVersion"]
    kube.create(config_map("one"))
    kube.patch("ConfigMap", "one", {"data": {"a": "1"}})
    kube.delete("ConfigMap", "one")
    assert events(kube, "ConfigMap", 3, resource_version=since) == [
        ("ADDED", "one"),
        ("MODIFIED", "one"),
        ("DELETED", "one"),
    ]


def test_a_watch_without_a_version_begins_with_what_is_there(kube: Kube) -> None:
    kube.create(pod("a"))
    kube.create(pod("b"))
    assert events(kube, "Pod", 2) == [("ADDED", "a"), ("ADDED", "b")]


def test_objects_come_into_and_leave_a_watch_by_their_labels(kube: Kube) -> None:
    since = kube.list_page("Pod")["metadata"]["resourceVersion"]
    kube.create(pod("one"))
    for value in ("yes", "yes!", "no"):
        labels = {"on": value.rstrip("!"), "extra": "1" if "!" in value else "0"}
        kube.patch("Pod", "one", {"metadata": {"labels": labels}})
    found = events(kube, "Pod", 3, labels={"on": "yes"}, resource_version=since)
    assert [word for word, _ in found] == ["ADDED", "MODIFIED", "DELETED"]


def test_a_watch_ends_when_its_time_is_over(raw: Raw) -> None:
    path = "/api/v1/namespaces/{ns}/pods?watch=true&timeoutSeconds=0.05"
    code, made = raw("GET", f"{path}&allowWatchBookmarks=true")
    assert (code, made["type"]) == (200, "BOOKMARK")


def test_an_event_log_that_is_too_short_is_gone(tmp_path: Path) -> None:
    with ApiServer(kept_events=2) as api:
        config = api.kubeconfig(tmp_path / "config")
        kube = Kube.load(namespace="default", kubeconfig=str(config))
        since = kube.create(config_map("one", a="0"))["metadata"]["resourceVersion"]
        for value in "1234":
            kube.patch("ConfigMap", "one", {"data": {"a": value}})
        word, status = next(kube.watch("ConfigMap", resource_version=since))
        assert (word, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
        kube.close()


def test_forgotten_events_are_gone(api: ApiServer, kube: Kube) -> None:
    since = kube.create(config_map("one"))["metadata"]["resourceVersion"]
    kube.create(config_map("two"))
    api.store.forget_events()
    word, status = next(kube.watch("ConfigMap", resource_version=since))
    assert (word, status["code"]) == ("ERROR", 410)


def test_finalizers_hold_an_object_until_they_are_gone(kube: Kube) -> None:
    made = config_map("one")
    made["metadata"]["finalizers"] = ["example.com/wait"]
    kube.create(made)
    kube.delete("ConfigMap", "one")
    found = kube.get("ConfigMap", "one")
    assert found is not None
    assert found["metadata"]["deletionTimestamp"]
    with pytest.raises(Invalid, match="no new finalizers can be added"):
        listed = ["example.com/wait", "example.com/more"]
        kube.patch("ConfigMap", "one", {"metadata": {"finalizers": listed}})
    kube.patch("ConfigMap", "one", {"metadata": {"finalizers": None}})
    assert kube.get("ConfigMap", "one") is None


def test_a_pod_on_a_node_stays_until_its_kubelet_confirms(kube: Kube, raw: Raw) -> None:
    kube.create(pod("one"))
    binding = {"target": {"kind": "Node", "name": "node-1"}}
    assert raw("POST", "/api/v1/namespaces/{ns}/pods/one/binding", binding)[0] == 201
    code, refused = raw("POST", "/api/v1/namespaces/{ns}/pods/one/binding", binding)
    assert code == 409
    assert 'already assigned to node "node-1"' in refused["message"]
    kube.delete("Pod", "one", grace_s=7)
    found = kube.get("Pod", "one")
    assert found is not None
    assert found["metadata"]["deletionGracePeriodSeconds"] == 7
    kube.delete("Pod", "one", grace_s=0)
    assert kube.get("Pod", "one") is None


def test_a_pod_without_a_node_goes_at_once(kube: Kube) -> None:
    kube.create(pod("one"))
    kube.delete("Pod", "one")
    assert kube.get("Pod", "one") is None


def test_deletion_is_of_the_one_that_was_meant(kube: Kube) -> None:
    kube.create(config_map("one"))
    with pytest.raises(Conflict, match="UID in precondition: another"):
        kube.delete("ConfigMap", "one", uid="another")
    assert not kube.delete("ConfigMap", "none")


def test_what_is_owned_goes_with_its_last_owner(kube: Kube) -> None:
    first, second = kube.create(config_map("first")), kube.create(config_map("second"))
    made = owned_by(first, config_map("owned"))
    made["metadata"]["ownerReferences"] += owned_by(second, made)["metadata"][
        "ownerReferences"
    ]
    kube.create(made)
    kube.delete("ConfigMap", "first")
    found = kube.get("ConfigMap", "owned")
    assert found is not None
    assert [one["name"] for one in found["metadata"]["ownerReferences"]] == ["second"]
    kube.delete("ConfigMap", "second")
    assert kube.get("ConfigMap", "owned") is None


def test_what_a_missing_owner_owns_does_not_stay(kube: Kube) -> None:
    owner = kube.create(config_map("owner"))
    kube.delete("ConfigMap", "owner")
    kube.create(owned_by(owner, config_map("late")))
    assert kube.get("ConfigMap", "late") is None


def test_orphans_stay(kube: Kube, raw: Raw) -> None:
    owner = kube.create(config_map("owner"))
    kube.create(owned_by(owner, config_map("owned")))
    path = "/api/v1/namespaces/{ns}/configmaps/owner?propagationPolicy=Orphan"
    assert raw("DELETE", path)[0] == 200
    found = kube.get("ConfigMap", "owned")
    assert found is not None
    assert not found["metadata"]["ownerReferences"]


def test_foreground_deletion_waits_for_what_is_owned(kube: Kube, raw: Raw) -> None:
    owner = kube.create(config_map("owner"))
    held = owned_by(owner, config_map("owned"), blockOwnerDeletion=True)
    held["metadata"]["finalizers"] = ["example.com/wait"]
    kube.create(held)
    path = "/api/v1/namespaces/{ns}/configmaps/owner?propagationPolicy=Foreground"
    raw("DELETE", path)
    assert kube.get("ConfigMap", "owner") is not None
    kube.patch("ConfigMap", "owned", {"metadata": {"finalizers": None}})
    assert kube.get("ConfigMap", "owned") is None
    assert kube.get("ConfigMap", "owner") is None


def test_a_namespace_goes_with_its_contents(api: ApiServer, kube: Kube) -> None:
    api.install(namespace("passing"))
    made = config_map("one")
    made["metadata"] |= {"namespace": "passing", "finalizers": ["example.com/wait"]}
    kube.create(made)
    kube.delete("Namespace", "passing")
    found = kube.get("Namespace", "passing")
    assert found is not None
    assert found["status"]["phase"] == "Terminating"
    late = config_map("two")
    late["metadata"]["namespace"] = "passing"
    with pytest.raises(Forbidden, match="because it is being terminated"):
        kube.create(late)
    free = {"metadata": {"finalizers": None}}
    kube.patch("ConfigMap", "one", free, namespace="passing")
    assert kube.get("Namespace", "passing") is None
    assert api.store.list("configmaps", "passing") == []


def test_a_crd_brings_its_kind_and_takes_it_along(
    api: ApiServer, kube: Kube, raw: Raw
) -> None:
    crd = schemaless_crd("cert-manager.io", "v1", "certificates", "Certificate")
    kube.apply(crd)
    names = [
        one["name"] for one in raw("GET", "/apis/cert-manager.io/v1")[1]["resources"]
    ]
    assert names == ["certificates", "certificates/status"]
    made = {
        "apiVersion": "cert-manager.io/v1",
        "kind": "Certificate",
        "metadata": {"name": "one"},
        "spec": {"anything": {"goes": [1, None]}},
    }
    assert kube.apply(made)["spec"] == made["spec"]
    kube.delete("CustomResourceDefinition", crd["metadata"]["name"])
    assert raw("GET", "/apis/cert-manager.io/v1")[0] == 404
    with pytest.raises(NotFound):
        kube.apply(made)


def test_kinds_can_be_found(raw: Raw) -> None:
    assert raw("GET", "/api")[1]["versions"] == ["v1"]
    groups = {one["name"] for one in raw("GET", "/apis")[1]["groups"]}
    assert {"apps", "kubernetes.dask.org", "coordination.k8s.io"} <= groups
    listed = raw("GET", "/apis/kubernetes.dask.org/v1")[1]["resources"]
    assert {"daskworkergroups", "daskworkergroups/scale"} <= {
        one["name"] for one in listed
    }
    assert raw("GET", "/version")[1]["minor"] == "33"
    assert raw("GET", "/healthz")[1] == b"ok"
    index = raw("GET", "/openapi/v3")[1]["paths"]
    document = raw("GET", index["apis/apps/v1"]["serverRelativeURL"])[1]
    assert any(path.endswith("deployments/{name}") for path in document["paths"])


def test_tables_for_kubectl(kube: Kube, raw: Raw) -> None:
    kube.create(worker_group("one"))
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    path = "/apis/kubernetes.dask.org/v1/namespaces/{ns}/daskworkergroups"
    code, made = raw("GET", path, accept=accept)
    assert (code, made["kind"]) == (200, "Table")
    heads = [one["name"] for one in made["columnDefinitions"]]
    assert heads == ["Name", "Workers", "Age"]
    assert made["rows"][0]["cells"][:2] == ["one", 1]


def test_a_budget_holds_back_evictions(kube: Kube, raw: Raw) -> None:
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    for name in ("a", "b"):
        kube.create(pod(name, {"app": "x"}))
        kube.patch("Pod", name, {"status": ready}, subresource="status")
    kube.create(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "one"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}},
        }
    )
    path = "/api/v1/namespaces/{ns}/pods/%s/eviction"
    assert raw("POST", path % "a", {})[0] == 201
    code, made = raw("POST", path % "b", {})
    assert (code, made["reason"]) == (429, "TooManyRequests")


def test_gates_are_only_taken_away(kube: Kube) -> None:
    made = kube.create(pod("one", schedulingGates=[{"name": "example.com/gate"}]))
    assert made["status"]["conditions"][0]["reason"] == "SchedulingGated"
    with pytest.raises(Invalid, match="only deletion is allowed"):
        gates = [{"name": "example.com/gate"}, {"name": "example.com/other"}]
        kube.patch("Pod", "one", {"spec": {"schedulingGates": gates}})
    change = {"spec": {"schedulingGates": [], "nodeSelector": {"a": "b"}}}
    made = kube.patch("Pod", "one", change)
    assert made["spec"]["nodeSelector"] == {"a": "b"}
    with pytest.raises(Invalid, match="pod updates may not change fields"):
        kube.patch("Pod", "one", {"spec": {"nodeSelector": {"a": "c"}}})


def test_admission_changes_and_refuses(api: ApiServer, kube: Kube) -> None:
    def gate(verb: str, resource: str, made: Object, user: str) -> Object:
        if (verb, resource) != ("create", "pods"):
            return made
        if made["metadata"]["name"] == "bad":
            raise Refusal(403, "Forbidden", f"{user} brings a bad pod")
        made["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
        return made

    api.admission.append(gate)
    made = kube.create(pod("good"))
    assert made["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/admission"}]
    assert made["status"]["conditions"][0]["reason"] == "SchedulingGated"
    with pytest.raises(Forbidden, match="admin brings a bad pod"):
        kube.create(pod("bad"))


def test_logs_come_from_whoever_keeps_them(
    api: ApiServer, kube: Kube, raw: Raw
) -> None:
    kube.create(pod("one"))
    path = f"/api/v1/namespaces/{kube.namespace}/pods/one/log"
    with pytest.raises(KubeError, match=r"set ApiServer\.pod_log"):
        kube.text(path)
    api.pod_log = lambda space, name, container, query: (
        f"{name} {container} {query['tailLines']}".encode()
    )
    assert kube.text(path, container="main", tailLines="5") == "one main 5"
    with pytest.raises(Invalid, match="container other is not valid for pod one"):
        kube.text(path, container="other")
    api.pod_log = None


def test_secrets_take_texts(kube: Kube) -> None:
    sent = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "one"},
        "stringData": {"token": "abc"},
    }
    made = kube.create(sent)
    assert made["data"] == {"token": "YWJj"}
    assert "stringData" not in made
    with pytest.raises(Invalid, match="illegal base64"):
        kube.patch("Secret", "one", {"data": {"token": "?"}})


def test_services_get_an_address_and_keep_it(kube: Kube) -> None:
    sent: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "one"},
        "spec": {"ports": [{"port": 80}]},
    }
    made = kube.create(sent)
    assert made["spec"]["clusterIP"].startswith("10.96.")
    assert made["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    again = kube.apply(sent)
    assert again["spec"]["clusterIP"] == made["spec"]["clusterIP"]


def test_the_official_client_reads_and_writes(
    api: ApiServer, kube: Kube, tmp_path: Path
) -> None:
    settings = client.Configuration()
    config.load_kube_config(
        str(api.kubeconfig(tmp_path / "official")), client_configuration=settings
    )
    with client.ApiClient(settings) as connection:
        core = client.CoreV1Api(connection)
        sent = client.V1Pod(
            metadata=client.V1ObjectMeta(name="one", labels={"a": "b"}),
            spec=client.V1PodSpec(
                containers=[client.V1Container(name="main", image="app:1")]
            ),
        )
        made = core.create_namespaced_pod(kube.namespace, sent)
        assert made.metadata.uid
        listed = core.list_namespaced_pod(kube.namespace, label_selector="a=b")
        assert [one.metadata.name for one in listed.items] == ["one"]
        change = {"spec": {"containers": [{"name": "main", "image": "app:2"}]}}
        made = core.patch_namespaced_pod("one", kube.namespace, change)
        assert made.spec.containers[0].image == "app:2"
        core.delete_namespaced_pod("one", kube.namespace)
        with pytest.raises(client.ApiException) as caught:
            core.read_namespaced_pod("one", kube.namespace)
        assert (caught.value.status, caught.value.reason) == (404, "Not Found")
