"""A whole platform on a local cluster: the real operator, `rayshim k8s up`, drivers."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayshim.k8s import names
from rayshim.k8s.api import Kube, Object
from rayshim.k8s.autoscaler import PlatformAutoscaler
from rayshim.k8s.config import Platform
from rayshim.k8s.demand import ClusterLink
from rayshim.k8s.loading import load_platform
from rayshim.k8s.reaching import credentials, reached
from rayshim.k8s.testing.localkube import LocalCluster

NAMESPACE = "ray-test"
#: A platform of three groups, small enough for one machine.
FILE = """
name: demo
namespace: ray-test
region: us-east-1
zones: [us-east-1a]
eks_cluster: test
runtime: {runtime}
images: {{cpu: "rayshim:0.1-cpu", gpu: "rayshim:0.1-gpu"}}
head:
  cpus: 1
  memory: 1Gi
  state: {{kind: {state}}}
tls: {{enabled: {tls}}}
groups:
  cpu-ingest:
    shape: {{cpus: 2, memory: 1Gi, store: 100Mi}}
    max: 3
    idle_timeout_s: {idle_s}
    cold_start_s: 20
  gpu-train:
    shape: {{cpus: 1, memory: 1Gi, store: 100Mi}}
    accelerator: {{type: L4, count: 1}}
    max: {gpu_max}
    idle_timeout_s: {idle_s}
    cold_start_s: 20
    upscaling_speed: 4
{more}
"""
#: To be put at the end of a file: a level of service, small enough for one replica.
SERVE_LEVEL = """
service_levels:
  serve:
    group: {group}
    requests_per_s: 10
    candidates: 40
    p99_ms: 80
    availability: 0.999
    latency_ms: {{network: 8, preprocess: 3, queue: 5, forward: 6, fan_out: 10}}
    tail_ms: 35
    batch: 8
    utilisation: 0.55
    zones: 1
"""


def write_file(
    folder: Path,
    *,
    runtime: str = "rayshim",
    tls: bool = False,
    idle_s: float = 2.0,
    gpu_max: int = 3,
    gangs: bool = False,
    more: str = "",
) -> Path:
    """A platform.yaml; ``more`` is put at its end."""
    extra = "    queue: train\n    gang: true\n" if gangs else ""
    if gangs:
        extra += (
            "queues:\n  train:\n    quota: {nvidia.com/gpu: 4}\n"
            "    borrowing: {nvidia.com/gpu: 0}\n    groups: [gpu-train]\n"
        )
    path = folder / "platform.yaml"
    state = "volume" if runtime == "rayshim" else "none"
    path.write_text(
        FILE.format(
            runtime=runtime,
            state=state,
            tls=str(tls).lower(),
            idle_s=idle_s,
            gpu_max=gpu_max,
            more=extra + more,
        )
    )
    return path


@dataclass
class Running:
    """A platform that is up."""

    cluster: LocalCluster
    path: Path
    platform: Platform
    kube: Kube
    #: Environment of processes that see the cluster as a pod does, token included.
    env: dict[str, str] = field(default_factory=dict)

    def command(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """`rayshim k8s`, as an administrator."""
        return k8s(self.cluster, *arguments, "-f", str(self.path), **env)

    def deployments(self, group: str = "") -> set[str]:
        """Names of the workers of a group, or of all."""
        labels = {names.GROUP: group} if group else {names.WORKER_GROUP_NAME: ""}
        return {
            one["metadata"]["name"]
            for one in self.kube.list("Deployment", labels)
            if names.WORKER_GROUP_NAME in one["metadata"]["labels"]
        }

    def replicas(self) -> dict[str, int]:
        """Worker group -> its replicas."""
        return {
            one["metadata"]["name"]: one["spec"]["worker"]["replicas"]
            for one in self.kube.list("DaskWorkerGroup")
        }

    def pods(self, group: str) -> list[Object]:
        """The pods of a group's workers."""
        return self.cluster.pods(NAMESPACE, {names.GROUP: group})

    def wait_for(
        self, what: str, condition: Callable[[], Any], timeout_s: float = 60.0
    ) -> Any:
        """Wait, and say how everything is if it does not come."""
        try:
            return self.cluster.wait_for(what, condition, timeout_s)
        except TimeoutError as error:
            told = self.kube.get("ConfigMap", names.status_map("demo")) or {}
            status = json.dumps(told.get("data", {}), indent=1)
            raise TimeoutError(f"{error}\n{self.replicas()}\n{status}") from None

    @contextmanager
    def link(self) -> Iterator[ClusterLink]:
        """To the head."""
        with (
            self.cluster.dns(NAMESPACE),
            reached(self.kube, self.platform) as link,
        ):
            yield link

    @contextmanager
    def autoscaler(self, **options: Any) -> Iterator[PlatformAutoscaler]:
        """One in this process, with the rights of its ServiceAccount."""
        account = names.autoscaler(self.platform.name)
        stop = threading.Event()
        with self.link() as link:
            scaler = PlatformAutoscaler(
                self.cluster.kube_as(account, NAMESPACE),
                link,
                self.platform,
                identity="test",
                interval_s=0.3,
                **options,
            )
            thread = threading.Thread(target=scaler.run, args=(stop,))
            thread.start()
            try:
                yield scaler
            finally:
                stop.set()
                thread.join()

    def driver(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        """A program that runs beside the test."""
        return subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, program: str, *arguments: str, limit_s: float = 90.0) -> Any:
        """What a driver tells in its last line, as JSON."""
        process = self.driver(program, *arguments)
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(
                f"{out}\n{err}\n{self.cluster.describe()}\n{self.replicas()}"
            ) from None
        assert process.returncode == 0, f"{out}\n{err}\n{self.cluster.describe()}"
        return json.loads(out.splitlines()[-1])


def k8s(
    cluster: LocalCluster, *arguments: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """`rayshim k8s`, as an administrator, in a process of its own."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("rayshim")), "k8s", *arguments],
        env={**cluster.environment(namespace=NAMESPACE), **env},
        capture_output=True,
        text=True,
        timeout=150,
    )


@contextmanager
def running(
    cluster: LocalCluster, path: Path, *, autoscaler_pods: int | None = None
) -> Iterator[Running]:
    """A platform that `up` brought, until `down` has removed it.

    Args:
        cluster: with operator.
        path: of its file.
        autoscaler_pods: None: as rendered; 0 for tests with one of their own.
    """
    platform = load_platform(path)
    done = k8s(cluster, "up", "-f", str(path), "--timeout", "90")
    assert done.returncode == 0, done.stdout + done.stderr + cluster.describe()
    kube = cluster.kube(NAMESPACE)
    one = Running(cluster, path, platform, kube)
    if autoscaler_pods is not None:
        name = names.autoscaler(platform.name)
        kube.patch("Deployment", name, {"spec": {"replicas": autoscaler_pods}})
        labels = {"app.kubernetes.io/component": "autoscaler"}
        one.wait_for(
            "the autoscaler's pods",
            lambda: len(cluster.pods(NAMESPACE, labels)) == autoscaler_pods,
        )
    with ExitStack() as stack:
        token, tls = stack.enter_context(credentials(kube, platform))
        one.env = cluster.environment(namespace=NAMESPACE)
        if token:
            one.env["RAYSHIM_TOKEN_PATH"] = token
            one.env["RAY_ADDRESS"] = f"ray://demo-scheduler.{NAMESPACE}:10001"
        if tls is not None:
            one.env |= {
                "RAYSHIM_TLS_CA": tls.ca,
                "RAYSHIM_TLS_CERT": tls.cert,
                "RAYSHIM_TLS_KEY": tls.key,
            }
        yield one
    done = k8s(cluster, "down", "-f", str(path), "--yes", "--timeout", "60")
    assert done.returncode == 0, done.stdout + done.stderr + cluster.describe()
    left = [
        f"{plural} {found['metadata']['name']}"
        for plural in ("pods", "deployments", "daskworkergroups", "daskclusters")
        for found in cluster.api.store.list(plural, NAMESPACE, "")
    ]
    assert not left, left
