"""The client of Kubernetes: what it sends, and what its errors say."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from api_objects import config_map, dask_crds, namespace, pod, worker_group
from rayshim.k8s import names
from rayshim.k8s.api import (
    KINDS,
    Conflict,
    Forbidden,
    Invalid,
    Kube,
    NotFound,
    Unreachable,
    selector,
)
from rayshim.k8s.testing.localkube.apiserver import ApiServer

SPACE = "ray-prod"
ROBOT = f"system:serviceaccount:{SPACE}:robot"


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with ApiServer(enforce_rbac=True) as server:
        server.install(namespace(SPACE), *dask_crds())
        yield server


@pytest.fixture
def kube(api: ApiServer, tmp_path: Path) -> Iterator[Kube]:
    made = Kube.load(
        namespace=SPACE, kubeconfig=str(api.kubeconfig(tmp_path / "config"))
    )
    yield made
    api.heal()
    for kind in ("Pod", "ConfigMap", "DaskWorkerGroup"):
        for one in made.list(kind):
            made.delete(kind, one["metadata"]["name"], grace_s=0)
    made.close()


@pytest.fixture
def robot(api: ApiServer, tmp_path: Path) -> Iterator[Kube]:
    config = api.kubeconfig(tmp_path / "robot", token=api.token(ROBOT))
    made = Kube.load(namespace=SPACE, kubeconfig=str(config))
    yield made
    made.close()


def test_paths() -> None:
    assert KINDS["Pod"].path("a", "b") == "/api/v1/namespaces/a/pods/b"
    assert KINDS["Node"].path("a", "b") == "/api/v1/nodes/b"
    assert KINDS["Deployment"].path(None) == "/apis/apps/v1/deployments"


def test_selectors() -> None:
    assert selector({"a": "b", "c": ""}) == "a=b,c"


def test_reading_what_is_not_there(kube: Kube) -> None:
    assert kube.get("Pod", "none") is None
    assert kube.list("Pod", {"a": "b"}) == []
    assert kube.list("PodMonitor") == []  # The kind is not installed.
    assert kube.delete("Pod", "none") is False


def test_listing_by_labels_in_one_namespace_or_all(kube: Kube) -> None:
    kube.create(config_map("one"))
    made = config_map("two")
    made["metadata"] |= {"namespace": "default", "labels": {"a": "b"}}
    kube.create(made)
    assert [one["metadata"]["name"] for one in kube.list("ConfigMap")] == ["one"]
    found = kube.list("ConfigMap", {"a": "b"}, everywhere=True)
    assert [one["metadata"]["name"] for one in found] == ["two"]
    assert kube.list("ConfigMap", {"a": ""}, namespace="default")
    kube.delete("ConfigMap", "two", namespace="default")


def test_apply_creates_and_changes(api: ApiServer, kube: Kube) -> None:
    kube.apply(worker_group("one"))
    made = worker_group("one")
    made["spec"]["worker"]["replicas"] = 3
    kube.apply(made, dry_run=True)
    before = kube.get("DaskWorkerGroup", "one")
    assert before is not None
    assert before["spec"]["worker"]["replicas"] == 1
    assert kube.apply(made)["spec"]["worker"]["replicas"] == 3
    managers = kube.get("DaskWorkerGroup", "one")
    assert managers is not None
    assert [one["manager"] for one in managers["metadata"]["managedFields"]] == [
        names.FIELD_MANAGER
    ]


def test_a_conflict_names_the_object(kube: Kube) -> None:
    old = kube.create(config_map("one", a="1"))
    words = 'create ConfigMap one in ray-prod: configmaps "one" already exists'
    with pytest.raises(Conflict, match=words) as caught:
        kube.create(config_map("one"))
    assert (caught.value.status, caught.value.reason) == (409, "AlreadyExists")
    kube.patch("ConfigMap", "one", {"data": {"a": "2"}})
    with pytest.raises(Conflict, match="please apply your changes to the latest"):
        kube.replace(old)


def test_forbidden_says_who_may_not_do_what(robot: Kube) -> None:
    words = (
        f'list pods in ray-prod: pods is forbidden: User "{ROBOT}" cannot list '
        'resource "pods" in API group "" in the namespace "ray-prod"'
    )
    with pytest.raises(Forbidden, match=words) as caught:
        robot.list("Pod")
    assert caught.value.status == 403


def test_a_wrong_token_asks_to_log_in_again(api: ApiServer, tmp_path: Path) -> None:
    config = api.kubeconfig(tmp_path / "config", token="wrong")
    kube = Kube.load(namespace=SPACE, kubeconfig=str(config))
    with pytest.raises(Forbidden, match=r"credentials were refused.*log in again"):
        kube.list("Pod")
    kube.close()


def test_invalid_names_the_field(kube: Kube) -> None:
    made = worker_group("one")
    made["spec"]["worker"]["replicas"] = "many"
    with pytest.raises(Invalid, match=r"spec\.worker\.replicas") as caught:
        kube.apply(made)
    assert caught.value.status == 422


def test_objects_of_unknown_kinds_are_not_found(kube: Kube) -> None:
    made = {
        "apiVersion": "cert-manager.io/v1",
        "kind": "Certificate",
        "metadata": {"name": "one"},
    }
    with pytest.raises(NotFound, match="could not find the requested resource"):
        kube.apply(made)


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_server_in_trouble_is_unreachable(
    api: ApiServer, kube: Kube, code: int
) -> None:
    api.fail(lambda call: call.verb == "list", code)
    with pytest.raises(Unreachable, match=f"list pods in ray-prod: {code}"):
        kube.list("Pod")
    assert kube.list("Pod") == []


def test_a_dropped_connection_is_unreachable(api: ApiServer, kube: Kube) -> None:
    api.fail(lambda call: call.verb == "delete", "drop")
    with pytest.raises(Unreachable, match="delete Pod one: the API server at http"):
        kube.delete("Pod", "one")


def test_a_server_that_is_gone_is_unreachable_until_it_is_back(tmp_path: Path) -> None:
    with ApiServer() as api:
        config = api.kubeconfig(tmp_path / "config")
        kube = Kube.load(namespace="default", kubeconfig=str(config))
        kube.create(config_map("one"))
        api.pause()
        with pytest.raises(Unreachable, match="does not answer"):
            kube.get("ConfigMap", "one")
        api.resume()
        assert kube.get("ConfigMap", "one") is not None
        kube.close()


def test_a_watch_says_when_its_server_goes(tmp_path: Path) -> None:
    with ApiServer() as api:
        config = api.kubeconfig(tmp_path / "config")
        kube = Kube.load(namespace="default", kubeconfig=str(config))
        kube.create(pod("one"))
        watch = kube.watch("Pod")
        assert next(watch)[0] == "ADDED"
        pausing = threading.Thread(target=api.pause)
        pausing.start()
        with pytest.raises(Unreachable, match="watch pods: the API server went away"):
            next(watch)
        pausing.join()
        kube.close()


def test_without_an_answer_a_request_ends(api: ApiServer, kube: Kube) -> None:
    api.fail(lambda call: call.verb == "get", "hang")
    with pytest.raises(Unreachable):
        kube._send("GET", KINDS["Pod"].path(SPACE, "one"), "get Pod one", timeout_s=0.1)


def test_no_cluster_to_talk_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(Unreachable, match="Set KUBECONFIG, or pass --context"):
        Kube.load(namespace=SPACE, kubeconfig=str(tmp_path / "none"))


def test_a_port_that_nobody_serves(api: ApiServer, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        config = api.kubeconfig(tmp_path / "config")
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        config.write_text(config.read_text().replace(api.url, url))
        kube = Kube.load(namespace=SPACE, kubeconfig=str(config))
        with pytest.raises(Unreachable, match=f"the API server at {url} does not"):
            kube.list("Pod")
        kube.close()


def test_https_with_the_servers_certificate(tmp_path: Path) -> None:
    with ApiServer(tls=True) as api:
        config = api.kubeconfig(tmp_path / "config")
        kube = Kube.load(namespace="default", kubeconfig=str(config))
        assert api.url.startswith("https://")
        assert kube.list("Namespace")
        kube.close()
