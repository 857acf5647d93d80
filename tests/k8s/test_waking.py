"""Changes in Kubernetes wake the autoscaler, and its writes are guarded for real."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from api_objects import dask_crds, namespace, worker_group
from rayshim.k8s import names
from rayshim.k8s.api import Conflict, Kube
from rayshim.k8s.election import Election
from rayshim.k8s.event_log import About, EventLog, Happening
from rayshim.k8s.testing.localkube.apiserver import ApiServer
from rayshim.k8s.waking import Watches

pytestmark = [pytest.mark.slow]

SPACE = "ray-prod"


@pytest.fixture(scope="module")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    with ApiServer() as server:
        server.install(namespace(SPACE), *dask_crds())
        config = server.kubeconfig(tmp_path_factory.mktemp("kube") / "config")
        made = Kube.load(namespace=SPACE, kubeconfig=str(config))
        yield made
        made.close()


def test_a_change_wakes_and_leaving_ends_the_watches_at_once(kube: Kube) -> None:
    wake = threading.Event()
    with Watches(kube, "demo", wake):
        made = worker_group("demo-cpu")
        made["metadata"]["labels"] = {names.PLATFORM: "demo"}
        kube.create(made)
        assert wake.wait(10)
        wake.clear()
        change = {"spec": {"worker": {"replicas": 3}}}
        kube.patch("DaskWorkerGroup", "demo-cpu", change)
        assert wake.wait(10)
        left_s = time.monotonic()
    assert time.monotonic() - left_s < 3  # A watch lasts a minute.


def test_writes_with_an_old_version_or_another_uid_are_refused(kube: Kube) -> None:
    old = kube.create(worker_group("demo-guard"))["metadata"]
    change = {"spec": {"worker": {"replicas": 7}}}
    kube.patch("DaskWorkerGroup", "demo-guard", change)

    with pytest.raises(Conflict):
        kube.patch(
            "DaskWorkerGroup",
            "demo-guard",
            {"metadata": {"resourceVersion": old["resourceVersion"]}, **change},
        )
    with pytest.raises(Conflict):
        kube.patch("DaskWorkerGroup", "demo-guard", {"metadata": {"uid": "other"}})
    with pytest.raises(Conflict):
        kube.delete("DaskWorkerGroup", "demo-guard", uid="other")


def test_the_lease_is_one_that_kubernetes_takes(kube: Kube) -> None:
    one = Election(kube, "demo-autoscaler", "one")
    two = Election(kube, "demo-autoscaler", "two")

    assert one.campaign()
    assert one.campaign()
    assert not two.campaign()
    one.release()
    assert two.campaign()


def test_events_are_ones_that_kubernetes_takes(kube: Kube) -> None:
    log = EventLog(kube, "demo", "one")
    about = About("DaskWorkerGroup", "demo-cpu")
    for count in (1, 2):
        log.tell(Happening(about, "ScaledUp", f"replicas is {count} now"))

    (event,) = kube.list("Event")
    assert event["count"] == 2
    assert event["message"] == "replicas is 2 now"
