"""A cluster of real processes whose hosts speak TLS to each other."""

from __future__ import annotations

import socket
import ssl
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import rayshim as ray
from rayshim.adapters.wire.address import parse_tcp
from rayshim.adapters.wire.oneshot import OneShot
from rayshim.cli.cert import NAME, cert
from rayshim.cluster_utils import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    assert CliRunner().invoke(cert, [str(made)]).exit_code == 0
    return made


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ca", "cert", "key"):
            patch.setenv(f"RAYSHIM_TLS_{name.upper()}", str(folder / f"{name}.pem"))
        patch.setenv("RAYSHIM_TLS_NAME", NAME)
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        made.add_node(num_cpus=1, resources={"other": 1})
        ray.init(address=made.address, log_to_driver=False)
        yield made
        ray.shutdown()
        made.shutdown()


def test_tasks_actors_and_large_values_cross_nodes(cluster: Cluster) -> None:
    @ray.remote(resources={"other": 1}, num_cpus=0)
    def double(array: np.ndarray) -> np.ndarray:
        return array * 2

    @ray.remote(resources={"other": 0.5}, num_cpus=0)
    class Adder:
        def add(self, array: np.ndarray, number: int) -> np.ndarray:
            return array + number

    large = np.arange(3_000_000)  # 24 MB: through Flight, both ways
    doubled = double.remote(ray.put(large))
    assert (ray.get(doubled) == large * 2).all()
    adder = Adder.remote()
    small = ray.get([adder.add.remote(np.array([i]), 1) for i in range(200)])
    assert [int(one[0]) for one in small] == list(range(1, 201))
    assert (ray.get(adder.add.remote(doubled, 1)) == large * 2 + 1).all()


def _ports(cluster: Cluster) -> list[int]:
    """TCP ports that processes of the cluster listen at, but for HTTP."""
    import psutil

    http = {
        int(url.rpartition(":")[2])
        for url in (cluster_info()["http_address"], cluster_info()["dashboard_url"])
        if url
    }
    pids = {node.pid for node in [*cluster.list_all_nodes(), cluster._head]}
    children = [
        child for pid in pids for child in psutil.Process(pid).children(recursive=True)
    ]
    found = set()
    for process in [*map(psutil.Process, pids), *children]:
        for one in process.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN:
                found.add(one.laddr.port)
    return sorted(found - http - _metrics())


def cluster_info() -> dict[str, str]:
    from rayshim._core import current

    return {
        "dashboard_url": "",
        **current.require_peer().request("cluster_info", None),
    }


def _metrics() -> set[int]:
    return {int(node.get("MetricsExportPort") or 0) for node in ray.nodes()}


def test_every_port_speaks_tls_and_wants_a_certificate(cluster: Cluster) -> None:
    ports = _ports(cluster)
    assert len(ports) >= 5, ports
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    tried = 0
    for port in ports:
        try:
            plain = socket.create_connection(("127.0.0.1", port), 5)
        except ConnectionRefusedError:
            continue  # an executor that was not needed has left
        tried += 1
        with plain:
            plain.settimeout(1.0)
            try:
                plain.sendall(b"\0" * 64)
                said = plain.recv(64)
            except (TimeoutError, ConnectionError):
                said = b""
        assert not said.startswith(b"RSHM"), f"port {port} speaks without TLS"
        with socket.create_connection(("127.0.0.1", port), 5) as plain:
            with pytest.raises((OSError, ssl.SSLError)):
                with context.wrap_socket(plain) as secured:
                    secured.settimeout(5)
                    # With TLS 1.3 the refusal comes with the first read.
                    if not secured.recv(64):
                        raise ConnectionError("it ended")
    assert tried >= 5


def test_who_has_the_token_but_no_certificate_is_told(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CA", "CERT", "KEY", "NAME"):
        monkeypatch.delenv(f"RAYSHIM_TLS_{name}")
    place = parse_tcp(cluster.head_process_address)
    assert place.port
    with pytest.raises(ConnectionError):
        OneShot(cluster.head_process_address, cluster._token, 2.0)


def test_another_process_joins_with_certificates(cluster: Cluster) -> None:
    import subprocess

    program = textwrap.dedent(
        f"""
        import rayshim as ray
        ray.init(address={cluster.address!r}, log_to_driver=False)
        print(ray.get(ray.remote(lambda: 7).remote()))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "7\n", done.stderr
