"""The Roles of a platform allow what is done with it, and nothing else.

A whole session, with Roles enforced: the first `up` is an administrator's, the rest is
done by a person with the platform's Role, and by the autoscaler in its pods.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayshim.k8s import names
from rayshim.k8s.loading import load_platform
from rayshim.k8s.removing import labelled
from rayshim.k8s.render import render
from rayshim.k8s.testing.localkube import LocalCluster, authorizing, platform_nodes
from rayshim.k8s.testing.localkube.resources import schemaless_crd
from test_platform_removal import install_certificates
from whole_platforms import NAMESPACE, SERVE_LEVEL, Running, k8s, running, write_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

PERSON, GROUP = "ann", "demo-admin"
ROBOT = f"system:serviceaccount:{NAMESPACE}:demo-autoscaler"
#: Of kinds that localkube knows nothing of: (group, version, plural, kind).
FOREIGN = (
    ("cert-manager.io", "v1", "certificates", "Certificate"),
    ("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor"),
    ("monitoring.coreos.com", "v1", "prometheusrules", "PrometheusRule"),
    ("monitoring.coreos.com", "v1", "servicemonitors", "ServiceMonitor"),
)
MORE = "\ningress: {host: rank.example.com}" + SERVE_LEVEL.format(group="cpu-ingest")
WORK = """
import sys
import rayshim as ray
from rayshim.util import placement_group, remove_placement_group

ray.init(log_to_driver=False)

@ray.remote(num_cpus=2)
def work():
    pass

ray.get([work.remote() for _ in range(4)], timeout=60)
if len(sys.argv) > 1:
    group = placement_group([{"GPU": 1}] * 2, strategy="STRICT_SPREAD")
    ray.get(group.ready(), timeout=60)
    remove_placement_group(group)
print("true")
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_file(
        tmp_path_factory.mktemp("rights"), tls=True, gangs=True, more=MORE
    )
    text = made.read_text()
    tls = "tls: {enabled: true, source: cert-manager, issuer: ca}"
    assert "tls: {enabled: true}" in text
    made.write_text(text.replace("tls: {enabled: true}", tls))
    return made


@pytest.fixture(scope="module")
def platform(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    nodes = platform_nodes(load_platform(path))
    with LocalCluster(
        nodes, namespaces=[NAMESPACE], operator=True, kueue=True, enforce_rbac=True
    ) as cluster:
        cluster.api.install(*(schemaless_crd(*one) for one in FOREIGN))
        install_certificates(cluster, tmp_path_factory.mktemp("certificates"))
        with running(cluster, path) as one:
            yield one


def test_every_call_is_allowed_and_every_right_is_used(
    platform: Running, path: Path, tmp_path: Path
) -> None:
    api = platform.cluster.api
    rendered = render(load_platform(path)).objects
    token = api.token(PERSON, [GROUP])
    config = api.kubeconfig(tmp_path / "person", token=token, namespace=NAMESPACE)

    def person(*arguments: str, of: Path = path) -> str:
        done = k8s(platform.cluster, *arguments, "-f", str(of), KUBECONFIG=str(config))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # Twice, so that the same things are told again.
    for more in ((), ("gang",)):
        platform.run(WORK, *more)
        platform.wait_for("no worker", lambda: not platform.deployments())
    autoscaler = authorizing.unused_rules(api.requests, rendered, ROBOT)
    person("status")
    person("plan")
    person("drill", "serve-replica")
    delete_all_but_rights(platform)
    # What lacks in it is put there.
    platform.kube.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": names.token_secret("demo"),
                "labels": names.labels("demo"),
            },
        }
    )
    person("up")
    other = tmp_path / "platform.yaml"
    other.write_text(path.read_text().replace("{kind: volume}", "{kind: valkey}"))
    person("up", of=other)
    person("down", "--yes", of=other)

    assert not authorizing.not_granted(api.requests, rendered, ROBOT)
    assert not autoscaler, list(map(str, autoscaler))
    # Beyond the namespace a person only looks, and does without.
    refused = authorizing.not_granted(api.requests, rendered, PERSON, [GROUP])
    beyond = {
        (one.verb, one.resource) for one in refused if one.namespace in ("", one.name)
    }
    within = [one for one in refused if (one.verb, one.resource) not in beyond]
    assert not within
    assert {verb for verb, _ in beyond} <= {"get", "list"}
    unused = authorizing.unused_rules(api.requests, rendered, PERSON, [GROUP])
    assert not unused, list(map(str, unused))


def delete_all_but_rights(platform: Running) -> None:
    """As an administrator who starts over."""
    kept = ("Namespace", "Role", "RoleBinding")
    for one in list(labelled(platform.kube, "demo")):
        if one["kind"] not in kept and "namespace" in one["metadata"]:
            platform.kube.delete(one["kind"], one["metadata"]["name"])
    platform.wait_for("nothing of it", lambda: not platform.cluster.pods(NAMESPACE, {}))
