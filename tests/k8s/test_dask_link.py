"""The link to Dask's own scheduler: what its state means, and real processes of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from distributed import Client, Security

from dask_processes import DaskProcesses, wait_until
from rayshim.adapters.dask.platform_demand import demand_of, has_left
from rayshim.adapters.dask.platform_link import DaskLink
from rayshim.adapters.wire.tls import Credentials
from rayshim.cli.cert import cert
from rayshim.lineage.demand import NODE_GROUP_LABEL, Demand, NodeFacts

GPU = {"GPU": 1.0}


def shape(
    resources: dict[str, float] | None = None,
    count: int = 1,
    *,
    workers: tuple[str, ...] = (),
    hosts: tuple[str, ...] = (),
    is_loose: bool = False,
) -> list[Any]:
    return [resources or {}, list(workers), list(hosts), is_loose, "train", count]


def worker(address: str = "tcp://10.0.0.1:1", **more: Any) -> dict[str, Any]:
    about = {
        "address": address,
        "name": "demo-gpu-train-worker-0123456789",
        "ip": "10.0.0.1",
        "status": "running",
        "nthreads": 2,
        "resources": {"GPU": 1.0},
        "tasks": [],
        "has_actors": False,
        "keys": 0,
        "sole_bytes": 0,
    }
    return {**about, **more}


def found(*workers: dict[str, Any], waiting: list[list[Any]] | None = None) -> Demand:
    return demand_of(
        {"instance": "s", "workers": list(workers), "waiting": waiting or []},
        time_s=100.0,
        labels_of=lambda name: {NODE_GROUP_LABEL: "gpu-train"},
        idle_s={"tcp://10.0.0.1:1": 7.0},
    )


def test_tasks_beyond_a_workers_resources_are_demand() -> None:
    demand = found(worker(tasks=[shape(GPU, 4)]))

    (lease,) = demand.leases
    assert (lease.resources, lease.count) == (GPU, 3)
    assert not lease.is_infeasible
    (node,) = demand.nodes
    assert node.available == {"CPU": 2.0, "GPU": 0.0}
    assert node.total == {"CPU": 2.0, "GPU": 1.0}


def test_a_task_that_asks_for_nothing_needs_a_cpu() -> None:
    demand = found(worker(tasks=[shape(count=5)]), waiting=[shape(count=2)])

    assert [(one.resources, one.count) for one in demand.leases] == [({"CPU": 1.0}, 5)]
    assert demand.nodes[0].available == {"CPU": 0.0, "GPU": 1.0}


def test_what_a_worker_says_of_cpus_counts_and_not_its_threads() -> None:
    demand = found(worker(resources={"CPU": 8.0}, tasks=[shape(count=9)]))

    assert demand.leases[0].count == 1
    assert demand.nodes[0].total == {"CPU": 8.0}


def test_what_waits_for_a_worker_that_no_node_could_be_is_infeasible() -> None:
    demand = found(worker(), waiting=[shape({"GPU": 8.0})])

    assert demand.leases[0].is_infeasible


def test_equal_tasks_are_counted_together_and_oldest_ones_remembered() -> None:
    facts = {"instance": "s", "workers": [worker(tasks=[shape(GPU, 2)])]}
    demand = demand_of(
        {**facts, "waiting": [shape(GPU, 3)]},
        time_s=0.0,
        labels_of=lambda name: {},
        idle_s={},
        oldest_s=lambda key: 12.0,
    )

    assert [(one.count, one.oldest_s) for one in demand.leases] == [(4, 12.0)]


def test_a_task_that_is_tied_to_a_worker_waits_for_that_one() -> None:
    there, gone = "tcp://10.0.0.1:1", "tcp://10.0.0.9:9"
    demand = found(
        worker(),
        waiting=[
            shape(GPU, workers=(gone,)),
            shape({"GPU": 0.5}, hosts=("10.0.0.1",)),
            shape({"GPU": 0.25}, workers=(gone,), is_loose=True),
        ],
    )

    assert [one.node_ids for one in demand.leases] == [(gone,), (there,), ()]


def test_a_busy_worker_is_not_idle_and_a_retired_one_has_left() -> None:
    busy = worker(tasks=[shape()])
    actor = worker(has_actors=True)
    retired = worker(status="closing_gracefully")
    moving = worker(status="closing_gracefully", keys=1, sole_bytes=80)

    assert found(worker()).nodes[0].idle_s == 7.0
    assert found(busy).nodes[0].idle_s == 0.0
    assert found(actor).nodes[0].idle_s == 0.0
    assert found(retired).nodes == ()
    assert has_left(retired) and not has_left(moving)
    (node,) = found(moving).nodes
    assert node.is_draining and node.sole_copies_bytes == 80
    assert node.available == {"CPU": 0.0, "GPU": 0.0}


# Real processes.


def labels_of(name: str) -> dict[str, str]:
    group, worker, _ = name.removeprefix("demo-").partition("-worker-")
    return {NODE_GROUP_LABEL: group} if worker else {}


def waiting_task() -> Callable[[str], str]:
    """A task that ends when a file is there; local, so that it travels by value."""

    def hold(path: str) -> str:
        import os
        import time

        while not os.path.exists(path):
            time.sleep(0.02)
        return path

    return hold


hold = waiting_task()


def client_of(dask: DaskProcesses, security: Security | None = None) -> Client:
    return Client(dask.address, security=security, set_as_default=False, timeout="20s")


@pytest.fixture(scope="module")
def dask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskProcesses]:
    processes = DaskProcesses(tmp_path_factory.mktemp("dask"))
    for index in range(2):
        processes.start_worker(f"demo-gpu-train-worker-{index:010x}", "GPU=1")
    processes.start_worker(f"demo-cpu-ingest-worker-{9:010x}", "CPU=2", nthreads=2)
    yield processes
    processes.close()


@pytest.fixture
def link(dask: DaskProcesses) -> Iterator[DaskLink]:
    made = DaskLink(dask.address, labels_of=labels_of)
    yield made
    made.close()


def demand_when(
    link: DaskLink, condition: Callable[[Demand], Any], what: str
) -> Demand:
    kept: list[Demand] = []

    def look() -> bool:
        try:
            kept[:] = [link.demand()]
        except ConnectionError:
            return False
        return bool(condition(kept[0]))

    wait_until(look, what)
    return kept[0]


def nodes_of(demand: Demand, group: str) -> list[NodeFacts]:
    return [one for one in demand.nodes if one.group == group]


@pytest.mark.slow
def test_a_pile_of_gpu_tasks_on_one_worker_is_demand(
    dask: DaskProcesses, link: DaskLink, tmp_path: Path
) -> None:
    demand_when(link, lambda found: len(found.nodes) == 3, "three workers")
    go = tmp_path / "go"
    with client_of(dask) as client:
        futures = [
            client.submit(hold, str(go), resources=GPU, pure=False) for _ in range(6)
        ]
        try:
            demand = demand_when(
                link,
                lambda found: sum(one.count for one in found.leases) == 4,
                "six tasks for two GPUs: four that lack one",
            )
        finally:
            go.touch()
        client.gather(futures)
    (lease,) = demand.leases
    assert lease.resources == GPU and lease.label == "hold"
    assert not lease.is_infeasible
    assert {one.available["GPU"] for one in nodes_of(demand, "gpu-train")} == {0.0}
    (cpu,) = nodes_of(demand, "cpu-ingest")
    assert cpu.available == {"CPU": 2.0} and cpu.total == {"CPU": 2.0}
    idle = demand_when(
        link,
        lambda found: not found.leases and all(one.idle_s for one in found.nodes),
        "no demand and idle workers",
    )
    assert idle.instance == demand.instance


@pytest.mark.slow
def test_tasks_that_no_worker_has_resources_for_are_infeasible(
    dask: DaskProcesses, link: DaskLink
) -> None:
    with client_of(dask) as client:
        future = client.submit(hold, "/", resources={"GPU": 8}, pure=False)
        demand = demand_when(link, lambda found: found.leases, "a task that waits")
        future.cancel()
    assert demand.leases[0].resources == {"GPU": 8.0}
    assert demand.leases[0].is_infeasible


@pytest.mark.slow
def test_a_worker_leaves_only_without_tasks_and_its_values_move(
    dask: DaskProcesses, link: DaskLink, tmp_path: Path
) -> None:
    name = f"demo-gpu-train-worker-{7:010x}"
    dask.start_worker(name, "GPU=1 leaving=1")
    leaving = demand_when(
        link,
        lambda found: any("leaving" in one.total for one in found.nodes),
        "the worker",
    )
    (victim,) = (one for one in leaving.nodes if "leaving" in one.total)
    go = tmp_path / "go"
    with client_of(dask) as client:
        held = client.submit(bytes, 50_000, resources={"leaving": 1}, pure=False)
        busy = client.submit(hold, str(go), resources={"leaving": 1}, pure=False)
        demand_when(
            link, lambda found: _of(found, victim).available["leaving"] == 0, "work"
        )

        assert link.drain(victim.node_id, "idle")
        assert link.drain_notes()[victim.node_id] == "refused: it has work"
        assert not _of(link.demand(), victim).is_draining
        go.touch()
        client.gather([busy])
        demand = demand_when(
            link, lambda found: _of(found, victim).idle_s > 0, "an idle worker"
        )
        assert _of(demand, victim).sole_copies_bytes > 50_000

        assert link.drain(victim.node_id, "idle")
        after = demand_when(
            link,
            lambda found: victim.node_id not in {one.node_id for one in found.nodes},
            "the worker left",
        )
        # It does not end by itself: what restarts containers would have it join anew.
        assert dask.processes[name].poll() is None
        assert len(after.nodes) == 3
        dask.end(name, signal.SIGTERM)
        assert len(client.gather(held)) == 50_000
    assert not link.drain(victim.node_id, "again") or victim.node_id not in {
        one.node_id for one in link.demand().nodes
    }


def _of(demand: Demand, node: NodeFacts) -> NodeFacts:
    return next(one for one in demand.nodes if one.node_id == node.node_id)


@pytest.mark.slow
def test_a_scheduler_that_is_away_does_not_answer_and_a_new_one_is_another(
    tmp_path: Path,
) -> None:
    dask = DaskProcesses(tmp_path)
    link = DaskLink(dask.address, limit_s=1.0)
    try:
        first = demand_when(link, lambda found: True, "the scheduler")
        dask.end("scheduler")
        began = time.monotonic()
        with pytest.raises(
            ConnectionError, match=r"the head at tcp:.* does not answer"
        ):
            link.demand()
        assert time.monotonic() - began < 5
        dask.start_scheduler()
        second = demand_when(link, lambda found: True, "the next scheduler")
        assert second.instance != first.instance
    finally:
        link.close()
        dask.close()


@pytest.mark.slow
def test_with_certificates_only_those_who_have_one_are_answered(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    assert CliRunner().invoke(cert, [str(folder)]).exit_code == 0
    files = Credentials(*(str(folder / f"{n}.pem") for n in ("ca", "cert", "key")))
    dask = DaskProcesses(tmp_path, files)
    names = [f"demo-gpu-train-worker-{index:010x}" for index in range(2)]
    for name in names:
        dask.start_worker(name, "GPU=1")
    link = DaskLink(dask.address, labels_of=labels_of, tls=files)
    plain = DaskLink(dask.address.replace("tls", "tcp"), limit_s=2.0)
    security = Security(
        require_encryption=True,
        tls_ca_file=files.ca,
        tls_client_cert=files.cert,
        tls_client_key=files.key,
    )
    try:
        demand = demand_when(link, lambda found: len(found.nodes) == 2, "two workers")
        with client_of(dask, security) as client:
            held = client.submit(bytes, 50_000, pure=False)
            client.gather(held)
            with_data = demand_when(
                link,
                lambda found: any(one.sole_copies_bytes for one in found.nodes),
                "a worker with data",
            )
            (victim,) = (one for one in with_data.nodes if one.sole_copies_bytes)
            assert link.drain(victim.node_id, "idle")
            demand_when(link, lambda found: len(found.nodes) == 1, "one worker left")
            assert len(client.gather(held)) == 50_000
        with pytest.raises(ConnectionError, match="does not answer"):
            plain.demand()
    finally:
        plain.close()
        link.close()
        dask.close()
    assert {one.group for one in demand.nodes} == {"gpu-train"}
