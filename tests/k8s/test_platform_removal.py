"""Of two GPU workers the named one goes; no other does, and no value is lost."""

from __future__ import annotations

import base64
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayshim.k8s.loading import load_platform
from rayshim.k8s.testing.localkube import LocalCluster, platform_nodes
from whole_platforms import NAMESPACE, Running, running, write_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

RAYSHIM = """
import os, sys, time
import rayshim as ray

ray.init(log_to_driver=False)

@ray.remote(num_cpus=2, max_retries=0)
def ingest(path):
    while not os.path.exists(path):
        time.sleep(0.05)

@ray.remote(num_cpus=0, num_gpus=1, max_retries=0)
def make(i):
    time.sleep(0.5)
    return bytes([i]) * 5_000_000

held = ingest.remote(sys.argv[1])
made = [make.remote(i) for i in range(2)]
ray.wait(made, num_returns=2, timeout=60, fetch_local=False)
print("made", flush=True)
sys.stdin.readline()
values = ray.get(made, timeout=60)
print([(len(one), one[0]) for one in values] == [(5_000_000, 0), (5_000_000, 1)])
"""
DASK = """
import os, sys, time
from distributed import Client, Security

TLS = [os.environ.get(f"RAYSHIM_TLS_{one}") for one in ("CA", "CERT", "KEY")]
scheme, security = "tcp", None
if TLS[0]:
    scheme = "tls"
    security = Security(
        tls_ca_file=TLS[0],
        tls_client_cert=TLS[1],
        tls_client_key=TLS[2],
        require_encryption=True,
    )

def ingest(path, i=0):
    while not os.path.exists(path):
        time.sleep(0.05)

def make(i):
    return bytes([i]) * 5_000_000

where = f"{scheme}://demo-scheduler.ray-test:8786"
with Client(where, security=security) as client:
    held = client.submit(ingest, sys.argv[1], resources={"CPU": 2})
    # Both workers are wanted until both have a value to make.
    first = [
        client.submit(ingest, sys.argv[2], i, resources={"GPU": 1}) for i in range(2)
    ]
    found = []
    while len(found) < 2:
        workers = client.scheduler_info(n_workers=-1)["workers"]
        found = [at for at, one in workers.items() if "gpu-train" in one["name"]]
        time.sleep(0.05)
    made = [
        client.submit(make, i, workers=[at], resources={"GPU": 1})
        for i, at in enumerate(found)
    ]
    open(sys.argv[2], "w").close()
    for one in made:
        one.result()
    del first, one
    print("made", flush=True)
    sys.stdin.readline()
    values = client.gather(made)
    print([(len(one), one[0]) for one in values] == [(5_000_000, 0), (5_000_000, 1)])
"""
PROGRAMS = {"rayshim": RAYSHIM, "dask": DASK}
MIN = "    min: 1\n"


@pytest.fixture(params=["rayshim-tls", "dask", "dask-tls"])
def platform(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[str, Running]]:
    runtime, _, tls = request.param.partition("-")
    path = write_file(tmp_path, runtime=runtime, tls=bool(tls), more=MIN, gpu_max=2)
    nodes = platform_nodes(load_platform(path))
    with LocalCluster(
        nodes, namespaces=[NAMESPACE], operator=True, enforce_rbac=True
    ) as cluster:
        if tls:
            install_certificates(cluster, tmp_path / "certificates")
        with running(cluster, path, autoscaler_pods=0) as one:
            yield runtime, one


def install_certificates(cluster: LocalCluster, folder: Path) -> None:
    command = [str(Path(sys.executable).with_name("rayshim")), "cert", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    files = {"ca.crt": "ca.pem", "tls.crt": "cert.pem", "tls.key": "key.pem"}
    cluster.kube(NAMESPACE).create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": "rayshim-tls"},
            "data": {
                key: base64.b64encode((folder / name).read_bytes()).decode()
                for key, name in files.items()
            },
        }
    )


def test_the_named_worker_goes_and_no_value(
    platform: tuple[str, Running], tmp_path: Path
) -> None:
    runtime, one = platform
    gate = tmp_path / "gate"
    if one.platform.tls.is_enabled:
        assert is_refused_in_plain_text(one)
    driver = one.driver(PROGRAMS[runtime], str(gate), str(tmp_path / "both"))
    try:
        with one.autoscaler() as scaler:
            wait_for_line(one, driver, "made")
            before = one.deployments("gpu-train")
            ingest = one.deployments("cpu-ingest")
            one.wait_for("one of two", lambda: len(one.deployments("gpu-train")) == 1)
            one.wait_for("replicas", lambda: one.replicas()["demo-gpu-train"] == 1)
            assert len(before) == 2 and one.deployments("gpu-train") < before
            assert one.deployments("cpu-ingest") == ingest and len(ingest) == 1
            assert not scaler.status.problems
            gate.touch()
            out, err = driver.communicate("\n", timeout=60)
        assert out.splitlines()[-1:] == ["True"], out + err + one.cluster.describe()
    finally:
        driver.kill()
        driver.communicate()
    if runtime == "dask" and not one.platform.tls.is_enabled:
        the_operator_alone_removes_another(one, tmp_path)


def the_operator_alone_removes_another(one: Running, tmp_path: Path) -> None:
    """Known behaviour of the operator, and why ``replicas`` is never lowered first.

    If this fails, the operator may have learned to choose within a group: read its
    ``retire_workers`` again, and the order of writes in k8s/carrying_out.py with it.
    """
    gate = tmp_path / "second gate"
    for group, count in (("gpu-train", 2), ("cpu-ingest", 1)):
        change = {"spec": {"worker": {"replicas": count}}}
        one.kube.patch("DaskWorkerGroup", f"demo-{group}", change)
    one.wait_for("all workers", lambda: len(one.deployments()) == 3)
    driver = one.driver(DASK, str(gate), str(tmp_path / "both again"))
    gate.touch()
    try:
        wait_for_line(one, driver, "made")
        before = one.deployments()
        change = {"spec": {"worker": {"replicas": 1}}}
        one.kube.patch("DaskWorkerGroup", "demo-gpu-train", change)
        one.wait_for("one less", lambda: len(one.deployments()) == 2)
        (gone,) = before - one.deployments()
        assert gone.startswith("demo-cpu-ingest"), gone
    finally:
        driver.kill()
        driver.communicate()


def wait_for_line(one: Running, driver: subprocess.Popen[str], line: str) -> None:
    """Let a driver get as far as this; says how everything is if it does not."""
    assert driver.stdout is not None
    readable, _, _ = select.select([driver.stdout], [], [], 60.0)
    told = driver.stdout.readline() if readable else ""
    assert told.strip() == line, f"{told}\n{one.cluster.describe()}\n{one.replicas()}"


def is_refused_in_plain_text(one: Running) -> bool:
    """Whether a client without certificates gets nothing of the head."""
    port = 8786 if one.platform.runtime == "dask" else 6379
    address = one.cluster.resolve("demo-scheduler", NAMESPACE)
    assert address is not None
    with socket.create_connection((address, port), 10.0) as plain:
        plain.settimeout(10.0)
        plain.sendall(b"\x00" * 64)
        try:
            # TLS answers with an alert at most; nothing of the protocol behind it.
            answer = plain.recv(1024)
        except ConnectionError:
            return True
    return answer == b"" or answer[:1] == b"\x15"
