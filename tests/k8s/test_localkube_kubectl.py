"""kubectl works with the test cluster's API server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from api_objects import CRDS, deployment, worker_group
from rayshim.k8s.testing.localkube.apiserver import ApiServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl"),
]

ROBOT = "system:serviceaccount:default:robot"


class Kubectl:
    """Runs kubectl, with a home and kubeconfig of its own."""

    def __init__(self, folder: Path, config: Path) -> None:
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "KUBECONFIG": str(config),
        }

    def __call__(self, *words: str, given: str = "", code: int = 0) -> str:
        found = subprocess.run(
            ["kubectl", *words],
            input=given,
            capture_output=True,
            text=True,
            timeout=30,
            env=self.environment,
        )
        assert found.returncode == code, found.stdout + found.stderr
        return found.stdout + (found.stderr if code else "")


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    # kubectl sends no token over http.
    with ApiServer(tls=True, enforce_rbac=True) as server:
        yield server


@pytest.fixture(scope="module")
def kubectl(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    folder = tmp_path_factory.mktemp("kubectl")
    made = Kubectl(folder, api.kubeconfig(folder / "config"))
    made("apply", "--server-side", "-f", str(CRDS))
    return made


def test_apply_get_scale_delete(api: ApiServer, kubectl: Kubectl) -> None:
    text = yaml.safe_dump(worker_group("one"))
    assert "created" in kubectl("apply", "-f", "-", given=text)
    assert "unchanged" in kubectl("apply", "-f", "-", given=text)
    kubectl("scale", "--replicas=5", "daskworkergroup", "one")
    made = json.loads(kubectl("get", "daskworkergroup", "one", "-o", "json"))
    assert made["spec"]["worker"]["replicas"] == 5
    heads, row = kubectl("get", "daskworkers", "-o", "wide").splitlines()
    assert heads.split() == ["NAME", "WORKERS", "AGE"]
    assert row.split()[:2] == ["one", "5"]
    assert "deleted" in kubectl("delete", "daskworkergroup", "one")
    assert api.store.get("daskworkergroups", "one", "default") is None


def test_server_side_apply_and_its_conflicts(kubectl: Kubectl) -> None:
    made = worker_group("two")
    text = yaml.safe_dump(made)
    apply = ("apply", "--server-side", "-f", "-")
    assert "serverside-applied" in kubectl(*apply, given=text)
    kubectl("scale", "--replicas=5", "daskworkergroup", "two")
    made["spec"]["worker"]["replicas"] = 2
    text = yaml.safe_dump(made)
    refused = kubectl(*apply, given=text, code=1)
    assert "conflict" in refused
    assert ".spec.worker.replicas" in refused
    kubectl(*apply, "--force-conflicts", given=text)
    kubectl("delete", "daskworkergroup", "two")


def test_built_in_kinds_are_merged_and_checked(kubectl: Kubectl) -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    given = yaml.safe_dump(deployment("web", env=env))
    kubectl("apply", "-f", "-", given=given)
    kubectl("apply", "-f", "-", given=yaml.safe_dump(deployment("web", env=env[1:])))
    made = json.loads(kubectl("get", "deploy", "web", "-o", "json"))
    container = made["spec"]["template"]["spec"]["containers"][0]
    assert container["env"] == [{"name": "B", "value": "2"}]
    wrong = yaml.safe_dump(deployment("web", imag="x"))
    refused = kubectl("apply", "-f", "-", given=wrong, code=1)
    assert 'unknown field "spec.template.spec.containers[0].imag"' in refused
    assert "0/1" in kubectl("get", "deploy")
    kubectl("delete", "deploy", "web")


def test_namespaces_come_and_go(kubectl: Kubectl) -> None:
    assert "created" in kubectl("create", "namespace", "passing")
    assert "Active" in kubectl("get", "namespace", "passing")
    assert "deleted" in kubectl("delete", "namespace", "passing")
    assert "not found" in kubectl("get", "namespace", "passing", code=1)


def test_rights_can_be_asked_for(
    api: ApiServer, kubectl: Kubectl, tmp_path: Path
) -> None:
    assert kubectl("auth", "can-i", "create", "pods").strip() == "yes"
    config = api.kubeconfig(tmp_path / "robot", token=api.token(ROBOT))
    robot = Kubectl(tmp_path, config)
    assert "no" in robot("auth", "can-i", "create", "pods", code=1)
    assert ROBOT in robot("auth", "whoami")
    refused = robot("get", "pods", code=1)
    assert f'pods is forbidden: User "{ROBOT}" cannot list resource "pods"' in refused


def test_watching(api: ApiServer, kubectl: Kubectl) -> None:
    process = subprocess.Popen(
        ["kubectl", "get", "daskworkergroups", "--watch", "-o", "name"],
        stdout=subprocess.PIPE,
        text=True,
        env=kubectl.environment,
    )
    try:
        made = worker_group("seen")
        api.install({**made, "metadata": {**made["metadata"], "namespace": "default"}})
        assert process.stdout is not None
        assert process.stdout.readline() == (
            "daskworkergroup.kubernetes.dask.org/seen\n"
        )
    finally:
        process.kill()
        process.communicate()
        kubectl("delete", "daskworkergroup", "seen")
