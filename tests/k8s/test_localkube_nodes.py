"""The local cluster runs what Deployments, Services and pods say, and cleans up."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from localkube_objects import (
    POD_IP,
    WAITING,
    Object,
    container,
    is_ready,
    pod,
    secret,
    service,
    state,
    workload,
)
from platforms import example_platform
from rayshim.k8s.api import Kube
from rayshim.k8s.rendering.workers import worker_groups
from rayshim.k8s.testing.localkube import FakeNode, LocalCluster, platform_nodes
from rayshim.k8s.testing.localkube.pod_environment import Mount, rewritten
from rayshim.k8s.testing.localkube.scheduling import obstacle

pytestmark = pytest.mark.slow

SERVER = ["python", "-m", "http.server", "--bind", "$(POD_IP)", "8000"]
READY = {"httpGet": {"port": 8000}, "periodSeconds": 10}


@pytest.fixture
def cluster(local_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The module's cluster, empty again after the test."""
    yield local_cluster
    kube = local_cluster.kube()
    for kind in ("Deployment", "StatefulSet", "Service", "Secret", "ConfigMap"):
        for one in kube.list(kind):
            kube.delete(kind, one["metadata"]["name"])
    for one in kube.list("PersistentVolumeClaim"):
        kube.delete("PersistentVolumeClaim", one["metadata"]["name"])
    for one in local_cluster.pods():
        kube.delete("Pod", one["metadata"]["name"], grace_s=0)
    local_cluster.wait_for("no pods", lambda: not local_cluster.pods())


@pytest.fixture
def kube(cluster: LocalCluster) -> Kube:
    return cluster.kube()


def wait_ready(cluster: LocalCluster, name: str) -> Object:
    kube = cluster.kube()

    def look() -> Object | None:
        found = kube.get("Pod", name)
        return found if is_ready(found) else None

    found = cluster.wait_for(f"pod {name} is ready", look)
    assert found is not None
    return found


def log_of(cluster: LocalCluster, name: str, word: str) -> str:
    def look() -> str:
        text = cluster.logs(name)
        return text if word in text else ""

    return cluster.wait_for(f"pod {name} says {word}", look)


def test_a_deployment_makes_a_pod_again_under_another_name_and_address(
    cluster: LocalCluster, kube: Kube
) -> None:
    kube.apply(workload("Deployment", "web", container(WAITING), replicas=2))
    cluster.wait_for("two are ready", lambda: ready_replicas(kube, "web") == 2)
    old = {one["metadata"]["name"]: one["status"]["podIP"] for one in cluster.pods()}
    victim = min(old)

    kube.delete("Pod", victim)
    cluster.wait_for("it is gone", lambda: kube.get("Pod", victim) is None)
    cluster.wait_for("two are ready", lambda: ready_replicas(kube, "web") == 2)

    new = {one["metadata"]["name"]: one["status"]["podIP"] for one in cluster.pods()}
    assert victim not in new
    assert len(set(new) & set(old)) == 1
    assert old[victim] not in new.values()


def ready_replicas(kube: Kube, name: str) -> int:
    found = (kube.get("Deployment", name) or {}).get("status") or {}
    return int(found.get("readyReplicas", 0))


def test_a_deployment_is_scaled_and_takes_its_pods_with_it(
    cluster: LocalCluster, kube: Kube
) -> None:
    kube.apply(workload("Deployment", "web", container(WAITING)))
    cluster.wait_for("one", lambda: ready_replicas(kube, "web") == 1)

    kube.patch("Deployment", "web", {"spec": {"replicas": 3}}, subresource="scale")
    cluster.wait_for("three", lambda: ready_replicas(kube, "web") == 3)
    kube.patch("Deployment", "web", {"spec": {"replicas": 1}}, subresource="scale")
    cluster.wait_for("one", lambda: len(cluster.pods()) == 1)
    kube.delete("Deployment", "web")

    cluster.wait_for("none", lambda: not cluster.pods())


def test_a_new_template_replaces_the_pods_when_the_new_ones_are_ready(
    cluster: LocalCluster, kube: Kube
) -> None:
    kube.apply(workload("Deployment", "web", container(WAITING)))
    cluster.wait_for("one", lambda: ready_replicas(kube, "web") == 1)
    (old,) = cluster.pods()

    changed = container(WAITING, env=[{"name": "WORD", "value": "new"}])
    kube.apply(workload("Deployment", "web", changed))

    def replaced() -> bool:
        names = [one["metadata"]["name"] for one in cluster.pods()]
        return len(names) == 1 and names != [old["metadata"]["name"]]

    cluster.wait_for("the old one is gone", replaced)
    (new,) = cluster.pods()
    assert is_ready(new)
    assert "word: new" in log_of(cluster, new["metadata"]["name"], "word")


def test_a_recreated_pod_starts_when_the_old_one_has_ended(
    cluster: LocalCluster, kube: Kube
) -> None:
    """Also if that takes longer than everything else."""
    slow = container(["sh", "-c", "trap 'sleep 0.5; exit' TERM; sleep 1000 & wait"])
    made = workload("Deployment", "again", slow, strategy={"type": "Recreate"})
    kube.apply(made)
    before = cluster.wait_for("the pod", lambda: ready_pods(cluster, "again"))
    made["spec"]["template"]["metadata"]["labels"]["version"] = "2"
    kube.apply(made)
    cluster.wait_for(
        "the other one",
        lambda: len(found := ready_pods(cluster, "again")) == 1 and found != before,
        5.0,
    )


def ready_pods(cluster: LocalCluster, app: str) -> list[str]:
    found = cluster.pods("default", {"app": app})
    return [one["metadata"]["name"] for one in found if is_ready(one)]


def test_a_service_leads_to_its_ready_pods_by_all_its_names(
    cluster: LocalCluster, kube: Kube
) -> None:
    kube.apply(service("web", "web", {8000: 8000}))
    cluster.wait_for("a name", lambda: cluster.resolve("web.default"))
    nowhere = cluster.resolve("web.default")
    with cluster.dns(), pytest.raises(ConnectionRefusedError):
        socket.create_connection(("web.default", 8000), 5)

    main = container(SERVER, env=[POD_IP], readinessProbe=READY)
    kube.apply(workload("Deployment", "web", main))
    cluster.wait_for("a pod", lambda: cluster.resolve("web.default") != nowhere)

    for host in (
        "web",
        "web.default",
        "web.default.svc",
        "WEB.default.svc.cluster.local.",
    ):
        assert cluster.resolve(host) == cluster.pods()[0]["status"]["podIP"]
    with cluster.dns():
        url = "http://web.default.svc.cluster.local:8000/"
        assert urllib.request.urlopen(url, timeout=5).status == 200
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo("web.default.svc.cluster.local", 8000)


def test_a_service_forwards_where_its_port_is_another_one(
    cluster: LocalCluster, kube: Kube
) -> None:
    kube.apply(service("web", "web", {80: 8000}))
    main = container(SERVER, env=[POD_IP], readinessProbe=READY)
    kube.apply(workload("Deployment", "web", main))
    cluster.wait_for("ready", lambda: ready_replicas(kube, "web") == 1)

    def fetch() -> int:
        with urllib.request.urlopen("http://web/", timeout=5) as answer:
            return int(answer.status)

    with cluster.dns():
        assert cluster.wait_for("an answer", fetch) == 200


def test_pods_of_a_statefulset_keep_name_dns_and_volume(
    cluster: LocalCluster, kube: Kube
) -> None:
    script = "test -e /data/n || echo first > /data/n; cat /data/n; exec sleep 1000"
    mount = {"name": "data", "mountPath": "/data"}
    main = container(["sh", "-c", script], volumeMounts=[mount])
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    kube.apply(service("db", "db", {6379: 6379}, clusterIP="None"))
    made = workload(
        "StatefulSet", "db", main, serviceName="db", volumeClaimTemplates=[claim]
    )
    kube.apply(made)
    first = wait_ready(cluster, "db-0")
    cluster.wait_for("its name", lambda: cluster.resolve("db-0.db"))

    kube.delete("Pod", "db-0")
    cluster.wait_for(
        "another one",
        lambda: (
            (now := kube.get("Pod", "db-0"))
            and now["metadata"]["uid"] != first["metadata"]["uid"]
            and is_ready(now)
        ),
    )

    again = wait_ready(cluster, "db-0")
    assert again["status"]["podIP"] != first["status"]["podIP"]
    assert "first" in log_of(cluster, "db-0", "first")
    cluster.wait_for(
        "the new address",
        lambda: cluster.resolve("db-0.db.default.svc") == again["status"]["podIP"],
    )
    (volume,) = kube.list("PersistentVolumeClaim")
    assert volume["metadata"]["name"] == "data-db-0"
    assert volume["status"]["phase"] == "Bound"


def test_arguments_environment_and_volumes_are_as_the_pod_says(
    cluster: LocalCluster, kube: Kube
) -> None:
    kube.apply(secret("keys", password=b"pw", token=b"tk"))
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "words", "namespace": "default"},
            "data": {"greeting": "hello"},
        }
    )
    script = (
        "import json, os, sys, pathlib; "
        "print(json.dumps([sys.argv[1:], dict(os.environ), "
        "pathlib.Path(sys.argv[2]).read_text(), os.environ['TMPDIR']]), flush=True); "
        "import time; time.sleep(1000)"
    )
    main = container(
        ["python", "-c", script],
        args=["--name=$(NAME)-$(MISSING)-$$(NAME)", "/etc/keys/token", "0.0.0.0:80"],
        env=[
            {
                "name": "NAME",
                "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
            },
            POD_IP,
            {
                "name": "PASSWORD",
                "valueFrom": {"secretKeyRef": {"name": "keys", "key": "password"}},
            },
            {
                "name": "GREETING",
                "valueFrom": {"configMapKeyRef": {"name": "words", "key": "greeting"}},
            },
            {
                "name": "MEMORY",
                "valueFrom": {
                    "resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}
                },
            },
            {"name": "KEY_FILE", "value": "file:///etc/keys/token,/etc/keyss"},
        ],
        resources={"limits": {"memory": "64Mi"}},
        volumeMounts=[{"name": "keys", "mountPath": "/etc/keys"}],
    )
    volume = {
        "name": "keys",
        "projected": {"sources": [{"secret": {"name": "keys"}}]},
    }
    kube.create(pod("probe", containers=[main], volumes=[volume]))

    text = log_of(cluster, "probe", "\n")
    address = wait_ready(cluster, "probe")["status"]["podIP"]
    arguments, env, token, tmp = json.loads(text)

    assert arguments[0] == "--name=probe-$(MISSING)-$(NAME)"
    assert token == "tk"
    assert arguments[2] == f"{address}:80"
    assert env["POD_IP"] == address
    assert (env["PASSWORD"], env["GREETING"], env["MEMORY"]) == ("pw", "hello", "64")
    assert env["KEY_FILE"] == f"file://{arguments[1]},/etc/keyss"
    assert len(tmp) < 40, "paths of sockets below it must fit 107 bytes"
    assert "PYTEST_CURRENT_TEST" not in env


def test_what_is_missing_or_not_supported_is_said_in_the_status(
    cluster: LocalCluster, kube: Kube
) -> None:
    main = container(WAITING, envFrom=[{"secretRef": {"name": "late"}}])
    kube.create(pod("waits", containers=[main]))
    kube.create(pod("odd", volumes=[{"name": "v", "hostPath": {"path": "/"}}]))

    def said(name: str) -> str:
        waiting = state(kube.get("Pod", name)).get("state", {}).get("waiting", {})
        return str(waiting.get("message", ""))

    cluster.wait_for("its message", lambda: said("waits") == 'secret "late" not found')
    cluster.wait_for("its message", lambda: "hostPath volume is not" in said("odd"))
    kube.apply(secret("late", WORD=b"now"))
    assert "word: now" in log_of(cluster, "waits", "word")


def test_a_container_that_crashes_is_started_again_with_back_off(
    cluster: LocalCluster, kube: Kube
) -> None:
    kube.create(pod("fails", ["sh", "-c", "echo run; exit 3"]))

    def loops() -> bool:
        found = state(kube.get("Pod", "fails"))
        reason = found.get("state", {}).get("waiting", {}).get("reason")
        return reason == "CrashLoopBackOff" and found["restartCount"] >= 2

    cluster.wait_for("CrashLoopBackOff", loops)
    last = state(kube.get("Pod", "fails"))["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"]) == (3, "Error")
    assert cluster.logs("fails", previous=True) == "run\n"


def test_a_pod_that_is_not_restarted_succeeds_or_fails(
    cluster: LocalCluster, kube: Kube
) -> None:
    kube.create(pod("good", ["true"], restartPolicy="Never"))
    kube.create(pod("bad", ["false"], restartPolicy="Never"))

    def phase(name: str) -> str:
        return str((kube.get("Pod", name) or {})["status"]["phase"])

    cluster.wait_for("ends", lambda: (phase("good"), phase("bad")) == ENDS)


ENDS = ("Succeeded", "Failed")


def test_programs_of_this_machine_may_lie_below_a_mounts_path(
    cluster: LocalCluster, kube: Kube
) -> None:
    here = {"name": "over", "mountPath": str(Path(sys.executable).parent)}
    main = container(["python", "-c", "print('ran')"], volumeMounts=[here])
    made = pod("under", containers=[main], restartPolicy="Never")
    made["spec"]["volumes"] = [{"name": "over", "emptyDir": {}}]
    kube.create(made)

    assert log_of(cluster, "under", "ran").startswith("ran\n")


def test_init_containers_run_first(cluster: LocalCluster, kube: Kube) -> None:
    shared = {"name": "shared", "mountPath": "/shared"}
    first = {
        **container(["sh", "-c", "echo made > /shared/file"], volumeMounts=[shared]),
        "name": "first",
    }
    main = container(
        ["sh", "-c", "cat /shared/file; exec sleep 1000"], volumeMounts=[shared]
    )
    made = pod("two", containers=[main], initContainers=[first])
    made["spec"]["volumes"] = [{"name": "shared", "emptyDir": {}}]
    kube.create(made)

    wait_ready(cluster, "two")
    assert log_of(cluster, "two", "made") == "made\n"


def test_liveness_restarts_in_place_and_readiness_follows(
    cluster: LocalCluster, kube: Kube
) -> None:
    script = "touch ok; sleep 0.5; rm ok; exec sleep 1000"
    probe = {"exec": {"command": ["test", "-e", "ok"]}}
    quick = {"periodSeconds": 1, "failureThreshold": 1, "initialDelaySeconds": 1}
    main = container(
        ["sh", "-c", script], readinessProbe=probe, livenessProbe={**probe, **quick}
    )
    kube.create(pod("dies", containers=[main], terminationGracePeriodSeconds=1))
    before = wait_ready(cluster, "dies")

    restarted = cluster.wait_for(
        "a restart",
        lambda: (now := kube.get("Pod", "dies")) and state(now)["restartCount"] and now,
    )

    assert isinstance(restarted, dict)
    assert restarted["status"]["podIP"] == before["status"]["podIP"]


def test_killing_a_container_kills_what_left_its_session(
    cluster: LocalCluster, kube: Kube
) -> None:
    script = "(setsid sleep 3333 &); sleep 0.05; exec sleep 1000"
    kube.create(pod("forks", ["sh", "-c", script]))
    wait_ready(cluster, "forks")
    stray = cluster.wait_for("the stray process", lambda: processes("3333"))

    cluster.kill_container("forks")
    cluster.wait_for(
        "a restart", lambda: state(kube.get("Pod", "forks")).get("restartCount") == 1
    )

    assert not any(psutil.pid_exists(pid) for pid in stray)
    assert state(kube.get("Pod", "forks"))["lastState"]["terminated"]["signal"] == 9


def processes(word: str) -> list[int]:
    return [
        one.pid
        for one in psutil.process_iter(["cmdline"])
        if word in (one.info["cmdline"] or ())
    ]


def test_deletion_asks_the_first_process_and_kills_after_the_grace_period(
    cluster: LocalCluster, kube: Kube
) -> None:
    polite = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    rude = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    kube.create(pod("polite", ["sh", "-c", polite]))
    kube.create(pod("rude", ["sh", "-c", rude]))
    for name in ("polite", "rude"):
        log_of(cluster, name, "up")

    began = time.monotonic()
    kube.delete("Pod", "polite")
    kube.delete("Pod", "rude", grace_s=1)
    cluster.wait_for("gone", lambda: not cluster.pods())

    assert "bye" in cluster.logs("polite")
    assert 0.9 < time.monotonic() - began < 5


def test_pods_go_where_they_fit(cluster: LocalCluster, kube: Kube) -> None:
    gpu = {"limits": {"nvidia.com/gpu": "3"}}
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    plain = pod("plain")
    first = pod(
        "first", containers=[container(WAITING, resources=gpu)], tolerations=tolerations
    )
    second = pod(
        "second",
        containers=[container(WAITING, resources=gpu)],
        tolerations=tolerations,
    )
    nowhere = pod("nowhere", nodeSelector={"zone": "mars"})
    for made in (plain, first):
        kube.create(made)
    wait_ready(cluster, "first")
    kube.create(second)
    kube.create(nowhere)

    def said(name: str) -> str:
        conditions = (kube.get("Pod", name) or {})["status"].get("conditions") or []
        found = [one for one in conditions if one.get("reason") == "Unschedulable"]
        return str(found[0]["message"]) if found else ""

    assert wait_ready(cluster, "plain")["spec"]["nodeName"] == "cpu-0"
    assert wait_ready(cluster, "first")["spec"]["nodeName"] == "gpu-0"
    assert cluster.wait_for("its message", lambda: said("second")) == (
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    )
    assert cluster.wait_for("its message", lambda: said("nowhere")) == (
        "0/3 nodes are available: 1 node(s) had untolerated taint "
        "{nvidia.com/gpu: true}, 2 node(s) didn't match Pod's node affinity/selector."
    )


def test_a_node_that_comes_takes_waiting_pods_and_one_that_goes_loses_them(
    cluster: LocalCluster, kube: Kube
) -> None:
    main = container(WAITING)
    kube.apply(
        workload("Deployment", "far", main, pod_spec={"nodeSelector": {"zone": "mars"}})
    )
    cluster.wait_for("a pod", cluster.pods)
    assert not ready_replicas(kube, "far")

    cluster.add_node(FakeNode("mars-0", labels={"zone": "mars"}))
    cluster.wait_for("ready", lambda: ready_replicas(kube, "far") == 1)
    (old,) = cluster.pods()
    cluster.remove_node("mars-0")

    def waits_again() -> bool:
        names = {one["metadata"]["name"] for one in cluster.pods()}
        return len(names) == 1 and old["metadata"]["name"] not in names

    cluster.wait_for("another pod that waits", waits_again)


def test_a_pod_talks_to_the_api_server_as_its_service_account(
    cluster: LocalCluster, kube: Kube
) -> None:
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "robot", "namespace": "default"},
        }
    )
    script = (
        "from rayshim.k8s.api import Kube; import time; "
        "print(len(Kube.load(namespace='default').list('Pod')), 'pods', flush=True); "
        "time.sleep(1000)"
    )
    kube.create(pod("asks", ["python", "-c", script], serviceAccountName="robot"))

    assert "1 pods" in log_of(cluster, "asks", "pods")
    users = {call.user for call in cluster.api.requests}
    assert "system:serviceaccount:default:robot" in users
    kube.delete("ServiceAccount", "robot")


def test_controllers_go_on_after_the_api_server_was_away(
    cluster: LocalCluster, kube: Kube
) -> None:
    kube.apply(workload("Deployment", "web", container(WAITING)))
    cluster.wait_for("one", lambda: ready_replicas(kube, "web") == 1)
    (old,) = cluster.pods()

    cluster.api.pause()
    cluster.kill_container(old["metadata"]["name"])
    cluster.api.resume()
    cluster.wait_for(
        "the restart is told",
        lambda: (
            state(kube.get("Pod", old["metadata"]["name"])).get("restartCount") == 1
        ),
    )
    kube.patch("Deployment", "web", {"spec": {"replicas": 2}})

    cluster.wait_for("two", lambda: ready_replicas(kube, "web") == 2)


def test_what_does_not_come_is_explained(cluster: LocalCluster, kube: Kube) -> None:
    kube.create(pod("fails", ["sh", "-c", "echo no config; exit 1"]))
    log_of(cluster, "fails", "no config")

    with pytest.raises(TimeoutError) as error:
        cluster.wait_for("the moon", lambda: False, timeout_s=0.1)

    assert "after 0.1 s still not there: the moon" in str(error.value)
    assert "default/fails: " in str(error.value)
    assert "| no config" in str(error.value)


def test_nodes_of_a_platform_take_what_it_renders() -> None:
    platform = example_platform()
    nodes = {one.name: one.to_object() for one in platform_nodes(platform)}
    groups = {one["metadata"]["name"]: one for one in worker_groups(platform)}

    for group in ("cpu-ingest", "gpu-train"):
        spec = groups[f"demo-{group}"]["spec"]["worker"]["spec"]
        made = pod("any", **spec)
        fits = [
            name for name, node in sorted(nodes.items()) if not obstacle(made, node, {})
        ]
        assert fits == [f"{group}-{number}" for number in range(4)]


def test_a_cluster_leaves_nothing_and_starts_quickly() -> None:
    began = time.monotonic()
    with LocalCluster(namespaces=["mine"]) as cluster:
        started_s = time.monotonic() - began
        kube = cluster.kube("mine")
        kube.create(
            {**pod("stays"), "metadata": {"name": "stays", "namespace": "mine"}}
        )
        cluster.wait_for("it runs", lambda: is_ready(kube.get("Pod", "stays")))
        folder = cluster.folder
        began = time.monotonic()

    assert time.monotonic() - began < 10
    assert started_s < 10
    assert not folder.exists()


def test_the_command_shows_how_to_reach_the_cluster_and_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "rayshim.k8s.testing.localkube"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        path = line.strip().removeprefix("export KUBECONFIG=")
        kube = Kube.load(namespace="default", kubeconfig=path)
        nodes = {one["metadata"]["name"] for one in kube.list("Node")}
        kube.close()
        process.send_signal(signal.SIGINT)
        process.stdout.read()

    assert nodes == {"cpu-0", "cpu-1", "gpu-0"}
    assert process.returncode == 0
    assert not Path(path).exists()


@pytest.mark.parametrize("slashes", ["///", "////"])
def test_a_mount_is_found_behind_the_slashes_of_a_url(slashes: str) -> None:
    mounts = [Mount("/var/lib/state", Path("/tmp/p/1"))]
    told = rewritten(f"sqlite:{slashes[:-1]}/var/lib/state/db", mounts)
    assert told == f"sqlite:{slashes[:-1]}/tmp/p/1/db"
