"""Links to the head of a platform, against a real one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dask_processes import wait_until
from platforms import dask_platform, example_platform, tls_platform
from rayshim.adapters.wire.address import parse_tcp
from rayshim.adapters.wire.oneshot import OneShot
from rayshim.cluster_utils import Cluster
from rayshim.k8s import names
from rayshim.k8s.demand import (
    WorkerName,
    fetch_demand,
    labels_of,
    open_link,
    parse_worker,
    tls_files,
)
from rayshim.lineage.demand import NODE_GROUP_LABEL, Demand

PLATFORM = example_platform()
WORKER = "demo-gpu-train-worker-0123456789"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (WORKER, WorkerName("gpu-train")),
        ("demo-cpu-worker-worker-0123456789", WorkerName("cpu-worker")),
        (
            "demo-gpu-train-g7f20c1d2e-worker-0123456789",
            WorkerName("gpu-train", "g7f20c1d2e"),
        ),
        ("demo-default-worker-0123456789", WorkerName("default")),
        ("demo-gpu-train-worker-012345678", None),
        ("other-gpu-train-worker-0123456789", None),
        ("tcp://10.0.0.1:4321", None),
    ],
)
def test_a_workers_name_says_its_group(name: str, found: WorkerName | None) -> None:
    assert parse_worker("demo", name) == found


def test_a_group_whose_name_ends_like_a_gang_is_a_group() -> None:
    name = "demo-gpu-g7f20c1d2e-worker-0123456789"

    assert parse_worker("demo", name) == WorkerName("gpu", "g7f20c1d2e")
    known = parse_worker("demo", name, ["gpu-g7f20c1d2e"])
    assert known == WorkerName("gpu-g7f20c1d2e")


def test_labels_of_a_dask_worker_are_those_that_a_node_would_have() -> None:
    labels = labels_of(PLATFORM)

    found = labels("demo-gpu-train-g7f20c1d2e-worker-0123456789")
    assert found[NODE_GROUP_LABEL] == "gpu-train"
    assert found["ray.io/accelerator-type"] == "A10G"
    assert found[names.GANG] == "g7f20c1d2e"
    assert found[names.WORKER] == "demo-gpu-train-g7f20c1d2e-worker-0123456789"
    assert labels("somebody-elses") == {}


def test_a_link_needs_the_token_and_certificates(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"token file .* cannot be read"):
        open_link(PLATFORM, token_path=tmp_path / "token")
    (tmp_path / "token").write_text("ab" * 32)
    with pytest.raises(ValueError, match=r"TLS: '.*ca\.crt' is no file"):
        open_link(
            tls_platform(),
            token_path=tmp_path / "token",
            tls=tls_files(str(tmp_path)),
        )


def test_a_dask_platform_is_asked_at_its_scheduler(tmp_path: Path) -> None:
    link = open_link(dask_platform(), host="127.0.0.1", port=1, limit_s=1.0)
    try:
        with pytest.raises(ConnectionError, match=r"head at tcp://127.* not answer"):
            link.demand()
    finally:
        link.close()
        link.close()
    with pytest.raises(RuntimeError, match="was closed"):
        link.demand()


# A real head.


@dataclass
class Head:
    cluster: Cluster
    port: int
    token_path: str


@pytest.fixture
def head() -> Iterator[Head]:
    labels = {NODE_GROUP_LABEL: "gpu-train", names.WORKER: WORKER}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    cluster.add_node(num_cpus=1, labels=labels, resources={"accelerator_type:A10G": 1})
    place = parse_tcp(cluster.head_process_address)
    token_path = cluster._head.config["token_path"]  # type: ignore[union-attr]
    yield Head(cluster, place.port, token_path)
    cluster.shutdown()


@pytest.mark.slow
def test_the_link_outlives_the_head_and_looks_its_name_up_anew(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = names.head_host(PLATFORM.name, PLATFORM.namespace)
    asked: list[str] = []
    look_up = socket.getaddrinfo

    def resolve(name: Any, *arguments: Any, **options: Any) -> Any:
        if name == host:
            asked.append(name)
            name = "127.0.0.1"
        return look_up(name, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    link = open_link(PLATFORM, port=head.port, token_path=head.token_path)
    try:
        first = link.demand()
        assert {one.group for one in first.nodes} == {"", "gpu-train"}
        node = next(one for one in first.nodes if one.group)
        assert node.labels[names.WORKER] == WORKER
        assert node.total["accelerator_type:A10G"] == 1
        assert link.demand().instance == first.instance and len(asked) == 1

        assert head.cluster.head_node is not None
        head.cluster.head_node.kill_gcs_server()
        with pytest.raises(ConnectionError, match=f"head at {host}:{head.port} does"):
            link.demand()
        head.cluster.head_node.start_gcs_server()

        def again() -> Demand | None:
            try:
                found = link.demand()
            except ConnectionError:
                return None
            return found if len(found.nodes) == 2 else None

        second = wait_until(again, "the nodes came back")
        assert second.instance != first.instance
        assert len(asked) > 1
        assert link.drain_notes() == {one.node_id: "" for one in second.nodes}
        assert not link.drain("ab" * 28, "no such node")
        link.report({"version": 1, "infeasible": []})
    finally:
        link.close()


@pytest.mark.slow
def test_the_demand_over_http_needs_the_token(head: Head) -> None:
    token = Path(head.token_path).read_text().strip()
    with OneShot(head.cluster.head_process_address, bytes.fromhex(token)) as control:
        place = control.ask("cluster_info")["http_address"]
    found = fetch_demand(f"http://{place}", token)
    assert {one.group for one in found.nodes} == {"", "gpu-train"}
    with pytest.raises(ConnectionError, match="the token is not this cluster's"):
        fetch_demand(f"http://{place}", os.urandom(32).hex())
    with pytest.raises(ConnectionError, match="does not answer"):
        fetch_demand("http://127.0.0.1:9", token)
