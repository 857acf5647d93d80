"""Explanations of live sessions: what waits says so, with numbers, to whoever asks."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

import rayshim as ray
from live_session import wait_until
from rayshim._core import current
from rayshim.cli.main import main
from rayshim.cluster_utils import Cluster
from rayshim.util.placement_group import placement_group, remove_placement_group
from rayshim.util.scheduling_strategies import NodeAffinitySchedulingStrategy

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    ray.shutdown()
    ray.init(
        num_cpus=2,
        resources={"slot": 1},
        log_to_driver=False,
        logging_level="ERROR",
        _system_config={"dask": "off"},
    )
    yield
    ray.shutdown()


@ray.remote(num_cpus=0)
def one(*_: Any) -> int:
    return 1


@ray.remote(num_cpus=0, max_concurrency=2, concurrency_groups={"few": 1})
class Gate:
    """Calls that last as long as it is told."""

    def __init__(self) -> None:
        self.is_open = False

    def open(self) -> None:
        self.is_open = True

    def wait(self) -> None:
        while not self.is_open:
            time.sleep(0.01)

    @ray.method(concurrency_group="few")
    def wait_in_group(self) -> None:
        self.wait()

    def pending(self) -> list[Any]:
        self.ref = one.options(num_cpus=64).remote()
        return [self.ref]


@pytest.fixture
def gate(session: None) -> Iterator[Any]:
    gate = Gate.remote()
    ray.get(gate.__ray_ready__.remote())
    yield gate
    ray.get(gate.open.remote())


@ray.remote(num_cpus=0)
def hold(gate: Any) -> None:
    ray.get(gate.wait_in_group.remote())


def reasons(target: Any, *kinds: str) -> dict[str, Any]:
    """Kind -> reason, once there is one of each of the kinds."""

    def look() -> dict[str, Any] | None:
        found = {one.kind: one for one in ray.explain(target).reasons}
        return found if found.keys() >= set(kinds) else None

    return dict(wait_until(look))


def test_holders_of_a_resource_are_named(session: None, gate: Any) -> None:
    busy = hold.options(resources={"slot": 1}).remote(gate)
    wait_until(lambda: ray.available_resources().get("slot", 0) == 0)
    ref = one.options(resources={"slot": 1}).remote()
    found = reasons(ref, "queued", "resources")
    numbers = found["resources"].numbers
    assert numbers["needed"] == {"slot": 1.0}
    assert numbers["free"] == {"slot": 0.0}
    (holder,) = numbers["holders"]
    assert holder["who"].startswith("hold") and holder["held"] == {"slot": 1.0}
    assert found["queued"].numbers["ahead"] == 0
    ray.get(gate.open.remote())
    assert ray.get([ref, busy]) == [1, None]
    assert ray.explain(ref).state == "ready"


def test_missing_argument_leads_to_what_its_own_call_waits_for(session: None) -> None:
    first = one.options(num_cpus=64, name="first").remote()
    ref = one.remote(one.remote(first))
    found = ray.explain(ref)
    assert found.state == "waiting"
    assert found.kinds[:2] == ("argument", "argument")
    assert found.is_infeasible
    assert "lease of first" in str(found) or "first {CPU: 64}" in str(found)
    ray.cancel(first)


def test_call_that_a_full_concurrency_group_holds_back(gate: Any) -> None:
    busy = gate.wait_in_group.remote()
    ref = gate.wait_in_group.remote()
    found = wait_until(
        lambda: [one for one in ray.explain(ref).reasons if "group" in one.numbers]
    )
    assert found[0].numbers["group"] == "few"
    assert found[0].numbers["limit"] == 1
    assert found[0].numbers["running"] == ["Gate.wait_in_group"]
    del busy


def test_reference_of_another_process_is_explained_by_its_owner(gate: Any) -> None:
    (ref,) = ray.get(gate.pending.remote())
    found = reasons(ref, "owner", "infeasible")
    assert found["infeasible"].numbers["lacking"] == {"CPU": 62.0}


def test_group_and_the_reference_that_waits_for_it(session: None) -> None:
    group = placement_group([{"CPU": 1}, {"CPU": 9}])
    ready = group.ready()
    assert "bundle 1 needs {CPU: 9}" in str(ray.explain(group))
    assert reasons(ready, "group", "infeasible")
    remove_placement_group(group)
    wait_until(lambda: ray.explain(group).state == "removed")


def test_every_id_is_explained_and_so_is_the_beginning_of_one(session: None) -> None:
    ref = one.options(num_cpus=64).remote()
    actor = Gate.options(num_cpus=64).remote()
    group = placement_group([{"CPU": 64}])
    ids = [ref.task_id(), actor._actor_id, group.id]
    texts = [ref.hex(), ref.hex()[:16], *[one.hex() for one in ids]]
    for target in [*ids, *texts, actor, group]:
        assert ray.explain(target).is_infeasible, target
    node = ray.nodes()[0]["NodeID"]
    assert ray.explain(node).state == "alive"
    with pytest.raises(ValueError, match="nobody in this cluster knows"):
        ray.explain("00ff" * 7)
    for text in ("", " ", "0" * 81):
        with pytest.raises(ValueError, match="is no id"):
            ray.explain(text)
    with pytest.raises(ValueError, match="is no id"):
        ray.explain("not hex")
    with pytest.raises(TypeError, match="explain"):
        ray.explain(3)
    ray.cancel(ref)
    ray.kill(actor)
    remove_placement_group(group)


def test_timeout_tells_the_first_reasons(session: None) -> None:
    ref = one.options(num_cpus=64).remote()
    with pytest.raises(ray.exceptions.GetTimeoutError, match=r"lacking|at most") as got:
        ray.get(ref, timeout=0.3)
    assert "needs {CPU: 64}" in str(got.value)
    begun = time.monotonic()
    with pytest.raises(ray.exceptions.GetTimeoutError):
        ray.get(ref, timeout=0)
    assert time.monotonic() - begun < 0.25
    ray.cancel(ref)


def rows(kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = current.require_peer().request(
        "state", {"kind": kind}
    )
    return found


def test_tables_say_what_is_infeasible(session: None) -> None:
    ref = one.options(num_cpus=64).remote()
    actor = Gate.options(num_cpus=64).remote()
    group = placement_group([{"CPU": 64}])
    wait_until(lambda: "INFEASIBLE" in [row["state"] for row in rows("leases")])
    wait_until(lambda: "INFEASIBLE" in [row["state"] for row in rows("demand")])
    wait_until(lambda: any(row["is_infeasible"] for row in rows("actors")))
    wait_until(lambda: any(row["is_infeasible"] for row in rows("placement_groups")))
    ray.cancel(ref)
    ray.kill(actor)
    remove_placement_group(group)


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["why", *arguments])
    return done.exit_code, done.output


def test_command_finds_the_session_and_explains(session: None) -> None:
    ref = one.options(num_cpus=64).remote()
    code, text = run(ref.hex()[:16])
    assert code == 0
    assert "infeasible: " in text and "ask for less" in text
    code, text = run(ref.hex(), "--format", "json")
    (found,) = json.loads(text)["explanations"]
    assert code == 0
    assert [reason["kind"] for reason in found["reasons"]] == ["queued", "infeasible"]
    ray.cancel(ref)


def test_exit_codes_of_the_command(session: None, tmp_path: Any) -> None:
    assert run("00ff00ff00ff")[0] == 1
    assert run("xyz")[0] == 1
    assert run("")[0] == 1
    assert run()[0] == 2
    code, text = run("00ff00ff00ff", "--temp-dir", str(tmp_path))
    assert code == 3
    assert text.startswith("Error: ")
    assert run("00ff00ff00ff", "--address", "127.0.0.1:1")[0] == 3


def test_what_does_not_begin_is_explained_once_though_nobody_waits(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    ray.shutdown()
    ray.init(num_cpus=1, _system_config={"dask": "off", "pending_warn_s": 0.4})
    logger = logging.getLogger("rayshim")
    logger.addHandler(caplog.handler)
    try:
        refs = [one.options(num_cpus=64).remote() for _ in range(3)]
        actor = Gate.options(num_cpus=65).remote()

        def told() -> list[str]:
            texts = [record.getMessage() for record in caplog.records]
            return [text for text in texts if "nothing came of" in text]

        wait_until(lambda: len(told()) == 2)
        with pytest.raises(ray.exceptions.GetTimeoutError):
            ray.get(refs, timeout=1.0)
        assert len(told()) == 2
        assert any("CPU: 64" in text for text in told())
        assert any("CPU: 65" in text for text in told())
        # It was told at once, too, by the control service.
        shown = capfd.readouterr().err
        assert shown.count("cannot be met by any node: one {CPU: 64}") == 1
        assert "cannot be met by any node: actor Gate" in shown
        del actor
    finally:
        logger.removeHandler(caplog.handler)
        ray.shutdown()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=2, resources={"slot": 1}, labels={"zone": "east"})
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_nearest_node_of_a_cluster(cluster: Cluster) -> None:
    ref = one.options(num_cpus=2, resources={"slot": 3}).remote()
    numbers = reasons(ref, "infeasible")["infeasible"].numbers
    assert numbers["lacking"] == {"slot": 2.0}
    ray.cancel(ref)


def test_labels_of_a_cluster(cluster: Cluster) -> None:
    ref = one.options(label_selector={"zone": "west"}).remote()
    assert "zone is east" in reasons(ref, "labels")["labels"].text
    ray.cancel(ref)


def test_holders_on_the_nodes_of_a_cluster(cluster: Cluster) -> None:
    gate = Gate.remote()
    busy = hold.options(resources={"slot": 1}).remote(gate)
    wait_until(lambda: ray.available_resources().get("slot", 0) == 0)
    ref = one.options(resources={"slot": 1}).remote()
    wait_until(lambda: "in use by hold" in str(ray.explain(ref)))
    code, text = run(ref.hex(), "--address", cluster.address)
    assert code == 0
    assert "in use by hold" in text
    ray.get(gate.open.remote(), timeout=20)
    assert ray.get([ref, busy], timeout=20) == [1, None]


def test_node_that_must_be_taken_is_named(cluster: Cluster) -> None:
    here = ray.get_runtime_context().get_node_id()
    strategy = NodeAffinitySchedulingStrategy(here, soft=False)
    ref = one.options(num_cpus=5, scheduling_strategy=strategy).remote()

    def told() -> str:
        try:
            ray.get(ref, timeout=0.05)
        except ray.exceptions.GetTimeoutError:
            text = str(ray.explain(ref))
        except ray.exceptions.RayError as error:
            text = str(error)
        return text if here[:8] in text and "CPU: 5" in text else ""

    wait_until(told)
    ray.cancel(ref)


def test_nodes_and_actors_are_described_in_words(cluster: Cluster) -> None:
    far = next(n for n in ray.nodes() if "slot" in n["Resources"])["NodeID"]
    text = str(ray.explain(far))
    assert "CPU: 2" in text.rpartition(" of ")[2] and "'" not in text
    gate = Gate.options(num_cpus=0).remote()
    ray.get(gate.open.remote(), timeout=20)
    assert "{}" not in str(ray.explain(gate))


def test_command_does_not_name_nodes_that_cannot_answer(cluster: Cluster) -> None:
    code, text = run("00ff00ff00ff")
    assert code == 1
    assert cluster.address in text
    assert "does not answer" not in text
