"""Who may do what, and which rights nobody used."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api_objects import config_map, deployment, namespace, pod
from rayshim.k8s.api import Forbidden, Kube, KubeError, Unreachable
from rayshim.k8s.testing.localkube import authorizing
from rayshim.k8s.testing.localkube.apiserver import ApiServer

Object = dict[str, Any]
SPACE = "ray-prod"
ROBOT = f"system:serviceaccount:{SPACE}:robot"
RBAC = "rbac.authorization.k8s.io"


def role(*rules: Object, kind: str = "Role", name: str = "robot") -> Object:
    meta = {"name": name, **({"namespace": SPACE} if kind == "Role" else {})}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": meta,
        "rules": list(rules),
    }


def binding(kind: str = "RoleBinding", of: str = "Role", name: str = "robot") -> Object:
    meta = {"name": name, **({"namespace": SPACE} if kind == "RoleBinding" else {})}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": meta,
        "roleRef": {"apiGroup": RBAC, "kind": of, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": SPACE}],
    }


def rule(verbs: str, resources: str, group: str = "", names: str = "") -> Object:
    made: Object = {
        "verbs": verbs.split(),
        "apiGroups": [group],
        "resources": resources.split(),
    }
    return {**made, "resourceNames": names.split()} if names else made


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer(enforce_rbac=True) as server:
        server.install(namespace(SPACE))
        yield server


@pytest.fixture
def robot(api: ApiServer, tmp_path: Path) -> Iterator[Kube]:
    config = api.kubeconfig(tmp_path / "robot", token=api.token(ROBOT))
    made = Kube.load(namespace=SPACE, kubeconfig=str(config))
    yield made
    made.close()


def test_a_role_allows_its_verbs_on_its_resources(api: ApiServer, robot: Kube) -> None:
    api.install(role(rule("list get", "pods")), binding())
    assert robot.list("Pod") == []
    assert robot.get("Pod", "none") is None
    for refused in (
        lambda: robot.create(pod("one")),
        lambda: robot.list("ConfigMap"),
        lambda: robot.list("Pod", namespace="default"),
        lambda: robot.list("Pod", everywhere=True),
    ):
        with pytest.raises(Forbidden):
            refused()


def test_a_right_to_an_object_is_none_to_its_subresources(
    api: ApiServer, robot: Kube
) -> None:
    api.install(role(rule("patch create", "deployments", "apps")), binding())
    robot.create(deployment("one"))
    robot.patch("Deployment", "one", {"spec": {"replicas": 2}})
    words = 'cannot patch resource "deployments/scale" in API group "apps"'
    with pytest.raises(Forbidden, match=words):
        robot.patch("Deployment", "one", {"spec": {"replicas": 3}}, subresource="scale")


def test_rights_to_named_objects(api: ApiServer, robot: Kube) -> None:
    api.install(role(rule("get list", "configmaps", names="mine")), binding())
    assert robot.get("ConfigMap", "mine") is None
    path = f"/api/v1/namespaces/{SPACE}/configmaps"
    robot.text(path, fieldSelector="metadata.name=mine")
    for refused in (
        lambda: robot.get("ConfigMap", "other"),
        lambda: robot.list("ConfigMap"),
    ):
        with pytest.raises(Forbidden):
            refused()


def test_a_cluster_role_holds_where_it_is_bound(api: ApiServer, robot: Kube) -> None:
    api.install(
        role(rule("list", "pods nodes"), kind="ClusterRole"),
        binding(of="ClusterRole"),
    )
    assert robot.list("Pod") == []
    with pytest.raises(Forbidden, match=r"cannot list .* at the cluster scope"):
        robot.list("Node")
    api.install(binding("ClusterRoleBinding", "ClusterRole"))
    assert robot.list("Node") == []


def test_applying_what_is_not_there_needs_the_right_to_create(
    api: ApiServer, robot: Kube
) -> None:
    api.install(role(rule("patch", "configmaps")), binding())
    with pytest.raises(Forbidden, match="cannot create resource"):
        robot.apply(config_map("one"))
    made = config_map("one")
    made["metadata"]["namespace"] = SPACE
    api.install(made)
    robot.apply(config_map("one", a="1"))


def test_a_watch_needs_its_own_verb(api: ApiServer, robot: Kube) -> None:
    api.install(role(rule("list", "pods")), binding())
    with pytest.raises(Forbidden, match="cannot watch"):
        next(robot.watch("Pod"))


def review(kube: Kube, verb: str, resource: str) -> bool:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    wanted = {"namespace": SPACE, "verb": verb, "resource": resource}
    sent = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": wanted},
    }
    found: bool = kube._json("POST", path, "review", sent)["status"]["allowed"]
    return found


def test_everybody_may_ask_what_they_may_do(api: ApiServer, robot: Kube) -> None:
    api.install(role(rule("list", "pods")), binding())
    assert review(robot, "list", "pods")
    assert not review(robot, "delete", "pods")


def test_unused_and_missing_rights_are_found(api: ApiServer, robot: Kube) -> None:
    objects = [
        role(
            rule("get list", "pods"),
            rule("get", "configmaps", names="mine"),
            rule("patch", "deployments/scale", "apps"),
        ),
        binding(),
    ]
    api.install(*objects)
    robot.list("Pod")
    robot.get("ConfigMap", "mine")
    with pytest.raises(Forbidden):
        robot.delete("Pod", "one")
    unused = authorizing.unused_rules(api.requests, objects, ROBOT)
    assert [str(one) for one in unused] == [
        "Role ray-prod/robot: get pods",
        "Role ray-prod/robot: patch deployments/scale.apps",
    ]
    missing = authorizing.not_granted(api.requests, objects, ROBOT)
    assert [(one.verb, one.resource, one.name) for one in missing] == [
        ("delete", "pods", "one")
    ]


def test_rights_can_be_left_open(robot: Kube, api: ApiServer) -> None:
    with pytest.raises(Forbidden):
        robot.list("Pod")
    api.enforce_rbac = False
    assert robot.list("Pod") == []


def test_a_service_accounts_token_comes_from_the_server(
    api: ApiServer, tmp_path: Path
) -> None:
    config = api.kubeconfig(tmp_path / "config")
    kube = Kube.load(namespace=SPACE, kubeconfig=str(config))
    path = f"/api/v1/namespaces/{SPACE}/serviceaccounts/default/token"
    made = kube._json("POST", path, "token", {"spec": {}})
    assert made["status"]["token"] == api.token(
        f"system:serviceaccount:{SPACE}:default"
    )
    kube.close()


def test_requests_fail_as_often_as_wanted(api: ApiServer, tmp_path: Path) -> None:
    config = api.kubeconfig(tmp_path / "config")
    kube = Kube.load(namespace=SPACE, kubeconfig=str(config))
    api.fail(lambda call: call.verb == "create", 409, times=2)
    for _ in range(2):
        with pytest.raises(KubeError, match="a test lets this request fail"):
            kube.create(config_map("one"))
    kube.create(config_map("one"))
    kube.close()


def test_a_paused_server_keeps_its_objects_and_address(
    api: ApiServer, tmp_path: Path
) -> None:
    kube = Kube.load(
        namespace=SPACE, kubeconfig=str(api.kubeconfig(tmp_path / "config"))
    )
    made = kube.create(config_map("one"))
    url = api.url
    for _ in range(2):
        api.pause()
        with pytest.raises(Unreachable):
            kube.get("ConfigMap", "one")
        api.resume()
    assert api.url == url
    assert kube.get("ConfigMap", "one") == made
    kube.close()


@pytest.mark.slow
def test_many_watches_hear_of_every_pod_and_the_server_ends_soon(
    tmp_path: Path,
) -> None:
    watchers, pods = 100, 100
    heard: list[int] = []
    with ApiServer() as api:
        kube = Kube.load(
            namespace="default", kubeconfig=str(api.kubeconfig(tmp_path / "config"))
        )

        def listen() -> None:
            watch = kube.watch("Pod")
            heard.append(len([next(watch) for _ in range(pods)]))
            # It stays open until the server ends.
            assert list(watch) == []

        threads = [threading.Thread(target=listen) for _ in range(watchers)]
        for one in threads:
            one.start()
        for number in range(pods):
            kube.create(pod(f"pod-{number}"))
        deadline = time.monotonic() + 30
        while len(heard) < watchers and time.monotonic() < deadline:
            threading.Event().wait(0.02)
        began = time.monotonic()
    assert time.monotonic() - began < 1.0
    for one in threads:
        one.join(5)
    kube.close()
    assert heard == [pods] * watchers
