"""`rayshim k8s` against an API server that enforces Roles; an operator that acts."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from acting_operator import ActingOperator
from rayshim.k8s import names
from rayshim.k8s.api import KINDS, Kube
from rayshim.k8s.cli import k8s
from rayshim.k8s.crds import crd_objects
from rayshim.k8s.drill import DrillResult, Step
from rayshim.k8s.testing.localkube.apiserver import ApiServer
from rayshim.k8s.waiting import Waiting

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

EXAMPLE = Path(__file__).parents[2] / "k8s/deploy/platform.yaml"
PLATFORM = """\
name: demo
namespace: ray-prod
region: us-east-1
zones: [us-east-1a]
images: {{ cpu: "rayshim:1", gpu: "rayshim:1" }}
groups:
  cpu:
    shape: {{ cpus: 1, memory: 1Gi, store: 256Mi }}
    max: 3
    env: {{ MODE: "{mode}" }}
"""
OURS = names.labels("demo")


class Site:
    """A cluster with a platform file."""

    def __init__(self, api: ApiServer, folder: Path) -> None:
        self.api = api
        self.folder = folder
        self.config = folder / "platform.yaml"
        self.kubeconfig = api.kubeconfig(folder / "admin.kubeconfig")
        self.kube = Kube.load(namespace="ray-prod", kubeconfig=str(self.kubeconfig))
        self.write("a")

    def write(self, mode: str, more: str = "") -> None:
        self.config.write_text(PLATFORM.format(mode=mode) + more)

    def run(self, *arguments: str, kubeconfig: Path | None = None) -> Result:
        if arguments[0] != "render" and "--offline" not in arguments:
            place = str(kubeconfig or self.kubeconfig)
            arguments = (*arguments, "--kubeconfig", place)
        command = [*arguments, "-f", str(self.config)]
        return CliRunner().invoke(k8s, command, catch_exceptions=False)

    def ours(self) -> dict[str, dict[str, Any]]:
        """Objects with the platform's labels in the API server's memory."""
        found = {}
        for kind in KINDS.values():
            try:
                listed = self.kube.list(kind.name, OURS)
            except ConnectionError:
                continue
            for one in listed:
                found[f"{kind.name} {one['metadata']['name']}"] = one
        return found

    def wait_for(self, condition: Callable[[], bool]) -> None:
        assert Waiting(10.0).until(condition)

    def versions(self) -> dict[str, str]:
        return {
            name: one["metadata"]["resourceVersion"]
            for name, one in self.ours().items()
        }


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Site]:
    """Without CRDs, without controllers."""
    with ApiServer(enforce_rbac=True) as api:
        site = Site(api, tmp_path)
        yield site
        site.kube.close()


@pytest.fixture
def site(bare: Site) -> Site:
    """With the CRDs of the operator."""
    bare.api.install(*crd_objects())
    return bare


def head_of(kube: Kube) -> dict[str, Any]:
    found = kube.get("Deployment", "demo-scheduler")
    assert found is not None
    return found


def secret(kube: Kube, name: str) -> dict[str, str]:
    found = kube.get("Secret", name)
    assert found is not None
    return {
        key: base64.b64decode(value).decode() for key, value in found["data"].items()
    }


def test_up_twice_then_down_leaves_nothing(site: Site) -> None:
    with ActingOperator(site.kube):
        first = site.run("up", "--timeout", "20")
        assert first.exit_code == 0, first.output
        assert "Platform demo is up in namespace ray-prod" in first.stdout
        assert "Karpenter is not installed" in first.stdout
        before = site.versions()
        assert "DaskCluster demo" in before
        assert "Secret demo-token" in before
        second = site.run("up", "--timeout", "20", "--output", "json")
        assert second.exit_code == 0, second.output
        states = {one["state"] for one in json.loads(second.stdout)["objects"]}
        assert states == {"unchanged"}
        assert site.versions() == before

        gone = site.run("down", "--yes", "--timeout", "20")
        assert gone.exit_code == 0, gone.output
        assert "nothing was drained" in gone.stderr
    assert site.ours() == {}
    assert site.kube.get("Namespace", "ray-prod") is None
    again = site.run("down", "--yes", "--timeout", "20")
    assert again.exit_code == 0
    assert "Nothing of platform demo was there to remove" in again.stdout


def test_plan_writes_nothing_and_tells_what_up_would_do(site: Site) -> None:
    new = site.run("plan", "--output", "json")
    assert new.exit_code == 0, new.output
    rows = json.loads(new.stdout)["objects"]
    assert {one["state"] for one in rows} == {"created", "kind is missing"}
    assert {call.verb for call in site.api.requests} <= {"get", "list"}
    with ActingOperator(site.kube):
        assert site.run("up", "--timeout", "20").exit_code == 0
    assert "created: " not in site.run("plan").stdout
    site.write("b")
    changed = site.run("plan")
    assert changed.exit_code == 0
    assert "changed: DaskWorkerGroup demo-cpu" in changed.stdout
    path = "spec.worker.spec.containers[worker].env[MODE].value"
    assert f'{path}: "a" -> "b"' in changed.stdout


def test_what_the_autoscaler_scaled_stays_when_the_file_changes(site: Site) -> None:
    with ActingOperator(site.kube):
        assert site.run("up", "--timeout", "20").exit_code == 0
        scale = {"spec": {"worker": {"replicas": 2}}}
        site.kube.patch("DaskWorkerGroup", "demo-cpu", scale)
        kept = site.kube.get("DaskWorkerGroup", "demo-cpu")
        assert "changed" not in site.run("plan").stdout.replace("unchanged", "")
        site.wait_for(
            lambda: len(site.kube.list("Deployment", {names.GROUP: "cpu"})) == 2
        )
        site.write("b")
        done = site.run("up", "--timeout", "20")
        assert done.exit_code == 0, done.output
        assert "2 workers of cpu run an older specification" in done.stdout
        site.write("c")
        assert site.run("up", "--timeout", "20").exit_code == 0
    found = site.kube.get("DaskWorkerGroup", "demo-cpu")
    assert kept is not None and found is not None
    assert found["spec"]["worker"]["replicas"] == 2
    assert '"c"' in json.dumps(found["spec"])


def test_a_changed_head_is_replaced_only_when_asked(site: Site) -> None:
    with ActingOperator(site.kube):
        assert site.run("up", "--timeout", "20").exit_code == 0
        before = head_of(site.kube)["metadata"]["resourceVersion"]
        site.write("a", "head: { env: { COLOUR: red } }\n")
        told = site.run("up", "--timeout", "20")
        assert told.exit_code == 0, told.output
        assert "the head runs an older specification" in told.stdout
        assert head_of(site.kube)["metadata"]["resourceVersion"] == before
        done = site.run("up", "--timeout", "20", "--restart-head")
        assert done.exit_code == 0, done.output
        template = head_of(site.kube)["spec"]["template"]
        assert "COLOUR" in json.dumps(template["spec"])
        assert head_of(site.kube)["spec"]["strategy"] == {"type": "Recreate"}
        assert "older" not in site.run("up", "--timeout", "20").stdout


def test_a_rotated_password_reaches_all_that_use_it(site: Site) -> None:
    with ActingOperator(site.kube):
        assert site.run("up", "--timeout", "20").exit_code == 0
        token = secret(site.kube, "demo-token")
        new = base64.b64encode(b"another-one").decode()
        site.kube.patch("Secret", "demo-state", {"data": {"password": new}})
        stamp = head_of(site.kube)["spec"]["template"]["metadata"]["annotations"]
        done = site.run("up", "--timeout", "20")
        assert done.exit_code == 0, done.output
        assert "another-one" not in done.output
        found = secret(site.kube, "demo-state")
        assert found["valkey.conf"] == "requirepass another-one\n"
        assert found["url"].startswith("redis://:another-one@demo-state.")
        assert secret(site.kube, "demo-token") == token
        assert "replacing the head: a Secret has changed" in done.stderr
        template = head_of(site.kube)["spec"]["template"]
        assert template["metadata"]["annotations"] != stamp


def test_objects_of_others_are_never_touched(site: Site) -> None:
    meta = {"name": "ray-prod"}
    site.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    foreign = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "demo-platform"},
        "data": {"mine": "1"},
    }
    site.kube.create(foreign)
    refused = site.run("up", "--timeout", "20")
    assert refused.exit_code == 3
    assert "ConfigMap demo-platform in ray-prod is not of platform demo" in (
        refused.stderr
    )
    assert site.ours() == {}
    assert site.run("plan").exit_code == 3
    assert site.run("down", "--yes").exit_code == 0
    found = site.kube.get("ConfigMap", "demo-platform")
    assert found is not None and found["data"] == {"mine": "1"}


def test_a_namespace_with_objects_of_others_stays(site: Site) -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}}
    with ActingOperator(site.kube):
        assert site.run("up", "--timeout", "20").exit_code == 0
        site.kube.create(other)
        done = site.run("down", "--yes", "--timeout", "20")
        assert done.exit_code == 0, done.output
    assert "it holds ConfigMap theirs" in done.stderr
    assert list(site.ours()) == ["Namespace ray-prod"]
    assert site.kube.get("ConfigMap", "theirs") is not None


def test_down_keeps_the_state_if_asked(site: Site) -> None:
    with ActingOperator(site.kube):
        assert site.run("up", "--timeout", "20").exit_code == 0
        token = secret(site.kube, "demo-token")
        done = site.run("down", "--yes", "--keep-state", "--timeout", "20")
        assert done.exit_code == 0, done.output
        assert "StatefulSet demo-state" in done.stdout
        assert {"Secret demo-token", "StatefulSet demo-state"} <= set(site.ours())
        assert "DaskCluster demo" not in site.ours()
        assert site.run("up", "--timeout", "20").exit_code == 0
        assert secret(site.kube, "demo-token") == token


def test_down_asks_first(site: Site) -> None:
    with ActingOperator(site.kube):
        assert site.run("up", "--timeout", "20").exit_code == 0
    unanswered = site.run("down")
    assert unanswered.exit_code == 2
    assert "pass --yes" in unanswered.stderr
    assert "1 DaskCluster" in unanswered.stderr
    assert site.kube.get("DaskCluster", "demo") is not None


def test_an_operator_that_does_not_act_is_named(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayshim.k8s.installing.OPERATOR_S", 0.6)
    with ActingOperator(site.kube, acts_on_clusters=False) as operator:
        late = site.run("up", "--timeout", "20")
        assert late.exit_code == 4
        assert (
            "dask operator did not act on DaskCluster demo within 1 s: is it running "
            "and watching namespace ray-prod? (rayshim k8s status --operator)"
        ) in late.stderr
        looked = site.run("status", "--operator")
        assert looked.exit_code == 1
        assert "it made no Deployment of DaskCluster demo" in looked.stdout
        operator.acts_on_clusters = True
        assert site.run("up", "--timeout", "20").exit_code == 0


def test_a_head_that_does_not_come_up_is_explained(site: Site) -> None:
    with ActingOperator(site.kube, is_ready=False):
        late = site.run("up", "--timeout", "2")
    assert late.exit_code == 4
    assert "the head of demo is not ready after 2 s: pod demo-" in late.stderr
    assert "Traceback" not in late.output


def test_up_goes_on_after_it_was_interrupted(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Kube, made: dict[str, Any], **rest: Any) -> dict[str, Any]:
        if made["kind"] == "DaskCluster":
            raise KeyboardInterrupt
        return apply(self, made, **rest)

    apply = Kube.apply
    with ActingOperator(site.kube):
        with monkeypatch.context() as patched:
            patched.setattr(Kube, "apply", interrupt)
            ended = site.run("up", "--timeout", "20")
        assert ended.exit_code == 130
        assert "the same command goes on" in ended.stderr
        token = secret(site.kube, "demo-token")
        assert site.run("up", "--timeout", "20").exit_code == 0
        assert secret(site.kube, "demo-token") == token


def test_status_tells_problems_first(site: Site) -> None:
    absent = site.run("status")
    assert absent.exit_code == 1
    assert absent.stdout.startswith("PROBLEM DaskCluster demo is not in namespace")
    with ActingOperator(site.kube) as operator:
        assert site.run("up", "--timeout", "20").exit_code == 0
        well = site.run("status", "--output", "json")
        assert well.exit_code == 0, well.output
        report = json.loads(well.stdout)
        assert report["head"]["state"] == "ready"
        assert report["groups"][0]["max"] == 3
        assert report["warnings"] == ["the autoscaler has not told anything yet"]
        assert "Platform demo in ray-prod is well" in site.run("status").stdout
        operator.is_ready = False
        for pod in site.kube.list("Pod"):
            site.kube.delete("Pod", pod["metadata"]["name"], grace_s=0)
        broken = site.run("status")
        assert broken.exit_code == 1
        assert "PROBLEM no pod of the autoscaler is ready" in broken.stdout
    # With nobody who makes pods again.
    for pod in site.kube.list("Pod"):
        site.kube.delete("Pod", pod["metadata"]["name"], grace_s=0)
    text = "the head of demo is not there: Deployment demo-scheduler has no pod"
    assert text in site.run("status").stdout
    site.kube.delete("Deployment", "demo-scheduler")
    text = "the head of demo has no pod: did the dask operator act?"
    assert text in site.run("status").stdout


def test_a_cluster_without_the_operator_is_refused(bare: Site) -> None:
    for verb in ("plan", "up"):
        refused = bare.run(verb)
        assert refused.exit_code == 3
        assert "dask-kubernetes operator is not installed" in refused.stderr
    assert bare.ours() == {}
    looked = bare.run("status", "--operator")
    assert looked.exit_code == 1
    assert "the CRD of DaskCluster is not installed" in looked.stdout


def test_who_has_no_rights_is_told_what_is_lacking(site: Site, tmp_path: Path) -> None:
    nobody = site.api.kubeconfig(
        tmp_path / "nobody.kubeconfig", token=site.api.token("nobody")
    )
    refused = site.run("up", kubeconfig=nobody)
    assert refused.exit_code == 3
    assert "have an administrator grant it" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_the_role_of_people_is_enough_in_a_namespace_that_is_there(
    site: Site, tmp_path: Path
) -> None:
    person = site.api.kubeconfig(
        tmp_path / "person.kubeconfig", token=site.api.token("ann", ["demo-admin"])
    )
    with ActingOperator(site.kube):
        assert site.run("up", "--timeout", "20").exit_code == 0
        site.write("b")
        for verb in (("plan",), ("up", "--timeout", "20"), ("status",)):
            done = site.run(*verb, kubeconfig=person)
            assert done.exit_code == 0, done.output
        done = site.run("down", "--yes", "--timeout", "20", kubeconfig=person)
        assert done.exit_code == 0, done.output
    assert set(site.ours()) == {"Namespace ray-prod", "RoleBinding demo-admin"}
    assert "RoleBinding demo-admin is left to an administrator" in done.stderr


def test_a_kubeconfig_that_cannot_be_used_is_named(site: Site, tmp_path: Path) -> None:
    broken = tmp_path / "broken.kubeconfig"
    broken.write_text("clusters: [")
    refused = site.run("status", kubeconfig=broken)
    assert refused.exit_code == 3
    assert f"no Kubernetes cluster to talk to: kubeconfig {broken}" in refused.stderr
    wrong = site.api.kubeconfig(tmp_path / "wrong.kubeconfig", token="wrong")
    refused = site.run("status", kubeconfig=wrong)
    assert refused.exit_code == 3
    assert refused.stderr.rstrip().endswith("log in again")


def test_nothing_is_said_of_draining_where_nothing_is(site: Site) -> None:
    done = site.run("down", "--yes")
    assert done.exit_code == 0
    assert done.stdout == "Nothing of platform demo was there to remove\n"
    assert done.stderr == ""
    refused = site.run("drill", "head")
    assert refused.exit_code == 3
    assert "there is no Secret demo-token in ray-prod" in refused.stderr


def test_rendered_files_do_not_say_where_the_file_was(site: Site) -> None:
    folder = site.folder / "out"
    assert site.run("render", "-o", str(folder)).exit_code == 0
    for file in folder.rglob("*.yaml"):
        assert str(site.folder) not in file.read_text(), file


def test_an_api_server_that_is_away_is_named(site: Site) -> None:
    site.api.pause()
    away = site.run("status")
    assert away.exit_code == 3
    assert "does not answer" in away.stderr
    site.api.resume()


def test_the_example_costs_what_it_should(site: Site) -> None:
    shown = CliRunner().invoke(k8s, ["plan", "--offline", "-f", str(EXAMPLE)])
    assert shown.exit_code == 0, shown.output
    for amount in ("$8,760", "$4,480", "$10,220"):
        assert amount in shown.stdout
    more = ["plan", "--offline", "--scale", "10", "--output", "json", "--explain"]
    larger = CliRunner().invoke(k8s, [*more, "-f", str(EXAMPLE)])
    data = json.loads(larger.stdout)
    assert data["scale"] == 10
    assert data["cost"] and data["explain"]


def test_render_writes_the_same_bytes_and_replaces_nothing_unasked(site: Site) -> None:
    one, two = site.folder / "one", site.folder / "two"
    assert site.run("render", "-o", str(one)).exit_code == 0
    assert site.run("render", "-o", str(two)).exit_code == 0
    files = [path for path in one.rglob("*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        assert path.read_bytes() == (two / path.relative_to(one)).read_bytes()
    refused = site.run("render", "-o", str(one))
    assert refused.exit_code == 2
    assert "is not empty" in refused.stderr
    (one / "notes.txt").write_text("mine")
    forced = site.run("render", "-o", str(one), "--force")
    assert forced.exit_code == 0
    assert "left as they are: notes.txt" in forced.stderr


def test_a_faulty_file_is_refused_with_its_path(site: Site) -> None:
    site.config.write_text(site.config.read_text().replace("max: 3", "max: -3"))
    refused = site.run("plan", "--offline")
    assert refused.exit_code == 2
    assert "groups.cpu.max" in refused.stderr
    unknown = site.run("plan", "--offline", "--platform", "other")
    assert unknown.exit_code == 2


def test_a_drill_over_its_limit_is_a_failed_check(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(name: str, *args: Any, **rest: Any) -> DrillResult:
        return DrillResult(name, 130.0, 120.0, (Step(1.0, "killed"),))

    monkeypatch.setattr("rayshim.k8s.drill.run_drill", slow)
    late = site.run("drill", "head")
    assert late.exit_code == 1
    assert "FAILED head: 130.0 s of 120 s" in late.stdout
    assert site.run("drill", "nothing").exit_code == 2


def test_one_turn_of_the_autoscaler_tells_what_holds_it_back(site: Site) -> None:
    token = site.folder / "token"
    token.write_text("ab" * 32)
    token.chmod(0o600)
    with ActingOperator(site.kube):
        assert site.run("up", "--timeout", "20").exit_code == 0
        head = ("--head", "127.0.0.1:1", "--token-path", str(token))
        turn = site.run("autoscaler", "--once", "--identity", "me", *head)
    assert turn.exit_code == 1, turn.output
    told = json.loads(turn.stdout)
    assert "the head does not answer" in told["problems"][0]
    lease = site.kube.get("Lease", "demo-autoscaler")
    assert lease is not None
    assert not lease["spec"].get("holderIdentity")
    problems = json.loads(site.run("status", "--output", "json").stdout)["problems"]
    assert any("the head does not answer" in one for one in problems)


def test_the_autoscaler_ends_cleanly_when_told_to(site: Site) -> None:
    token = site.folder / "token"
    token.write_text("ab" * 32)
    token.chmod(0o600)
    with ActingOperator(site.kube):
        assert site.run("up", "--timeout", "20").exit_code == 0
    command = [sys.executable, "-c", "from rayshim.cli.main import main; main()"]
    command += ["k8s", "autoscaler", "-f", str(site.config), "--metrics-port", "0"]
    command += ["--kubeconfig", str(site.kubeconfig), "--identity", "me"]
    command += ["--head", "127.0.0.1:1", "--token-path", str(token)]

    def holder() -> str:
        lease = site.kube.get("Lease", "demo-autoscaler") or {"spec": {}}
        return str(lease["spec"].get("holderIdentity") or "")

    with subprocess.Popen(command) as process:
        try:
            site.wait_for(lambda: holder() == "me")
            process.terminate()
            assert process.wait(10) == 0
        finally:
            process.kill()
    assert holder() == ""
