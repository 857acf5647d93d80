"""Placement groups over three nodes: strategies, labels, lifetimes, namespaces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid

import pytest

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import (
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

#: Real Ray takes seconds to start nodes and drivers.
pytestmark = pytest.mark.timeout(180)

ONE = {"CPU": 1}
LIMIT_S = 40
STORE_BYTES = 100 * 1024 * 1024
CPUS = 6


@pytest.fixture(scope="module")
def trio(shared_cluster):
    """Nodes "head", "a" and "b" with two CPUs each; name of a node -> its id."""
    shared_cluster.stop()
    options = {"num_cpus": 2, "object_store_memory": STORE_BYTES}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "include_dashboard": False,
            "labels": {"zone": "head"},
            **options,
        },
    )
    for zone in ("a", "b"):
        cluster.add_node(labels={"zone": zone, "tier": "gold"}, **options)
    cluster.wait_for_nodes()
    ray.init(
        address=cluster.address,
        namespace="main",
        logging_level="ERROR",
        log_to_driver=False,
    )
    ids = {row["Labels"]["zone"]: row["NodeID"] for row in ray.nodes()}
    ids["address"] = cluster.address
    yield ids
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def make(trio, wait_until):
    """Make groups that are removed at the end of the test."""
    made = []

    def new(bundles, *, wait=True, **options):
        group = placement_group(bundles, **options)
        made.append(group)
        if wait:
            assert group.wait(LIMIT_S)
        return group

    yield new
    for group in made:
        remove_placement_group(group)
    wait_until(lambda: ray.available_resources().get("CPU") == CPUS, timeout_s=LIMIT_S)


@pytest.fixture
def zones(trio):
    """Return the zones of a group's bundles."""
    names = {node_id: name for name, node_id in trio.items()}

    def of(group):
        places = placement_group_table(group)["bundles_to_node_id"]
        return [names[places[index]] for index in sorted(places)]

    return of


def state(group):
    return placement_group_table(group).get("state")


def progress(group):
    return placement_group_table(group)["stats"]["scheduling_state"]


def get(ref):
    return ray.get(ref, timeout=LIMIT_S)


@ray.remote
def where():
    return ray.get_runtime_context().get_node_id()


@ray.remote(num_cpus=0)
class Maker:
    """Makes a group and keeps nothing of it."""

    def make(self, **options):
        group = placement_group([ONE], **options)
        assert group.wait(LIMIT_S)
        return group

    def has(self, name):
        try:
            return get_placement_group(name) is not None
        except ValueError:
            return False

    def pid(self):
        return os.getpid()


def test_pack_uses_one_node_if_it_can(make, zones):
    assert len(set(zones(make([ONE, ONE])))) == 1


def test_pack_uses_few_nodes(make, zones):
    assert len(set(zones(make([ONE] * 4)))) == 2


def test_spread_uses_many_nodes(make, zones):
    assert len(set(zones(make([ONE] * 3, strategy="SPREAD")))) == 3


def test_spread_uses_nodes_twice_if_it_must(make, zones):
    found = zones(make([ONE] * 4, strategy="SPREAD"))
    assert sorted(found.count(zone) for zone in set(found)) == [1, 1, 2]


def test_strict_pack_uses_one_node(make, zones):
    assert len(set(zones(make([ONE, ONE], strategy="STRICT_PACK")))) == 1


def test_strict_spread_uses_a_node_for_each_bundle(make, zones):
    found = zones(make([ONE] * 3, strategy="STRICT_SPREAD"))
    assert sorted(found) == ["a", "b", "head"]


@pytest.mark.parametrize(
    ("count", "strategy"), [(3, "STRICT_PACK"), (4, "STRICT_SPREAD")]
)
def test_a_strict_group_that_no_nodes_can_hold(make, count, strategy, wait_until):
    group = make([ONE] * count, strategy=strategy, wait=False)
    assert not group.wait(0.5)
    wait_until(lambda: progress(group) == "INFEASIBLE")
    assert state(group) == "PENDING"


def test_nothing_of_a_group_is_reserved_before_all_of_it(make):
    make([{"CPU": 2}] * 2, strategy="STRICT_SPREAD")
    waiting = make([{"CPU": 2}] * 2, strategy="STRICT_SPREAD", wait=False)
    assert not waiting.wait(1)
    assert make([{"CPU": 2}]).wait(LIMIT_S)
    assert not waiting.wait(0)


def test_a_soft_target_is_tried_first(make, zones, trio):
    for zone in ("b", "head"):
        group = make(
            [ONE, ONE], strategy="STRICT_PACK", _soft_target_node_id=trio[zone]
        )
        assert zones(group) == [zone, zone]


def test_a_soft_target_without_room_is_left(make, zones, trio):
    make([{"CPU": 2}], bundle_label_selector=[{"zone": "b"}])
    group = make([ONE], strategy="STRICT_PACK", _soft_target_node_id=trio["b"])
    assert zones(group)[0] != "b"


def test_a_soft_target_that_is_not_there(make):
    make([ONE], strategy="STRICT_PACK", _soft_target_node_id="ab" * 28)


def test_each_bundle_has_its_labels(make, zones):
    selectors = [{"zone": "b"}, {"zone": "!b"}, {"zone": "in(a,b)", "tier": "gold"}]
    found = zones(make([ONE] * 3, bundle_label_selector=selectors))
    assert found[0] == "b"
    assert found[1] in ("a", "head")
    assert found[2] in ("a", "b")


def test_labels_and_a_node_for_each(make, zones):
    selectors = [{"tier": "gold"}] * 2
    group = make([ONE] * 2, strategy="STRICT_SPREAD", bundle_label_selector=selectors)
    assert sorted(zones(group)) == ["a", "b"]


def test_labels_that_one_node_does_not_have(make, wait_until):
    group = make(
        [ONE, ONE],
        wait=False,
        strategy="STRICT_PACK",
        bundle_label_selector=[{"zone": "a"}, {"zone": "b"}],
    )
    wait_until(lambda: progress(group) == "INFEASIBLE")


def test_tasks_follow_the_labels_of_their_bundle(make, trio):
    group = make([ONE, ONE], bundle_label_selector=[{"zone": "a"}, {"zone": "b"}])
    for index, zone in enumerate("ab"):
        strategy = PlacementGroupSchedulingStrategy(group, index)
        ref = where.options(scheduling_strategy=strategy).remote()
        assert get(ref) == trio[zone]


def test_a_topology_is_one_value_of_a_label(make, zones):
    group = make([ONE] * 4, topology_strategy={"tier": "STRICT_PACK"})
    assert sorted(zones(group)) == ["a", "a", "b", "b"]


@pytest.mark.parametrize(("label", "count"), [("tier", 5), ("zone", 3)])
def test_a_topology_without_room_in_one_value(make, label, count, wait_until):
    strategy = {label: "STRICT_PACK"}
    group = make([ONE] * count, topology_strategy=strategy, wait=False)
    wait_until(lambda: progress(group) == "INFEASIBLE")


def test_a_topology_with_a_strategy(make, zones):
    strategy = {"tier": "STRICT_PACK", "ray.io/node-id": "STRICT_SPREAD"}
    group = make([ONE, ONE], topology_strategy=strategy)
    assert sorted(zones(group)) == ["a", "b"]
    assert placement_group_table(group)["strategy"] == "STRICT_SPREAD"


def test_a_group_survives_the_actor_that_made_it(trio, make):
    maker = Maker.remote()
    group = get(maker.make.remote())
    ray.kill(maker)
    time.sleep(1)
    assert state(group) == "CREATED"
    remove_placement_group(group)


def test_a_group_ends_with_the_detached_actor_that_made_it(trio, make, wait_until):
    maker = Maker.options(name=uuid.uuid4().hex, lifetime="detached").remote()
    group = get(maker.make.remote())
    assert state(group) == "CREATED"
    ray.kill(maker)
    wait_until(lambda: state(group) == "REMOVED")


def test_a_restart_of_a_detached_actor_ends_its_groups(trio, make, wait_until):
    maker = Maker.options(
        name=uuid.uuid4().hex, lifetime="detached", max_restarts=1, max_task_retries=-1
    ).remote()
    group = get(maker.make.remote())
    os.kill(get(maker.pid.remote()), signal.SIGKILL)
    wait_until(lambda: state(group) == "REMOVED")
    assert get(maker.pid.remote())
    ray.kill(maker)


DRIVER = """
import importlib, json, sys
backend, address, namespace = sys.argv[1:4]
if backend == "rayshim":
    import rayshim
    rayshim.install_as_ray()
import ray
from ray.util.placement_group import *
from ray.util.placement_group import (
    get_placement_group, placement_group, placement_group_table
)
ray.init(address=address, namespace=namespace, logging_level="ERROR",
         log_to_driver=False)
"""


@pytest.fixture
def run_job(trio, backend):
    """Run lines as a driver of its own and return what it prints as JSON."""

    def run(script, namespace="main"):
        text = DRIVER + textwrap.dedent(script)
        command = [sys.executable, "-c", text, backend, trio["address"], namespace]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.strip().splitlines()[-1])

    return run


def states(prefix):
    return {
        row["name"].removeprefix(prefix): row["state"]
        for row in placement_group_table().values()
        if row["name"].startswith(prefix)
    }


def test_what_outlives_a_job(make, run_job, wait_until):
    prefix = uuid.uuid4().hex[:8]
    printed = run_job(
        f"""
        @ray.remote(num_cpus=0)
        class Maker:
            def make(self, name):
                group = placement_group([{{"CPU": 0.1}}], name={prefix!r} + name)
                return group.wait(30)

        @ray.remote(num_cpus=0)
        def build(name):
            group = placement_group([{{"CPU": 0.1}}], name={prefix!r} + name)
            return group.wait(30)

        detached = Maker.options(name={prefix!r}, lifetime="detached").remote()
        plain = Maker.remote()
        made = [detached.make.remote("detached actor"), plain.make.remote("actor")]
        print(json.dumps(ray.get(made + [build.remote("task")])))
        for name, lifetime in (("driver", None), ("detached", "detached")):
            group = placement_group(
                [{{"CPU": 0.1}}], name={prefix!r} + name, lifetime=lifetime
            )
            assert group.wait(30)
        print(json.dumps(len(placement_group_table())))
        """
    )
    assert printed >= 5
    gone = {"actor": "REMOVED", "driver": "REMOVED", "task": "REMOVED"}
    kept = {"detached actor": "CREATED", "detached": "CREATED"}
    wait_until(lambda: states(prefix) == {**gone, **kept}, timeout_s=LIMIT_S)
    ray.kill(ray.get_actor(prefix))
    kept["detached actor"] = "REMOVED"
    wait_until(lambda: states(prefix) == {**gone, **kept}, timeout_s=LIMIT_S)
    remove_placement_group(get_placement_group(prefix + "detached"))


def test_names_are_names_of_a_namespace(make, run_job):
    name = uuid.uuid4().hex
    group = make([ONE], name=name)
    script = f"""
    try:
        found = get_placement_group({name!r}).id.hex()
    except ValueError as error:
        found = str(error)
    is_made = False
    if "Failed" in found:
        is_made = placement_group([{{"CPU": 1}}], name={name!r}).wait(30)
    print(json.dumps([found, is_made]))
    """
    found, is_made = run_job(script, namespace="other")
    assert "Failed to look up" in found
    assert is_made
    assert get_placement_group(name) == group
    assert run_job(script) == [group.id.hex(), False]


def test_actors_look_in_the_namespace_of_their_job(make):
    name, other = uuid.uuid4().hex, uuid.uuid4().hex
    make([ONE], name=name)
    maker = Maker.options(namespace="elsewhere", name=uuid.uuid4().hex).remote()
    assert get(maker.has.remote(name))
    group = get(maker.make.remote(name=other))
    assert get_placement_group(other) == group
    remove_placement_group(group)
    ray.kill(maker)
