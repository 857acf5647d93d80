"""Drivers that attach to a cluster, and what they share."""

from __future__ import annotations

import os
import signal

import pytest

import ray
from failures.placed import GET_LIMIT_S, Keeper, on, where
from ray.exceptions import ActorDiedError, OwnerDiedError

#: Real Ray takes seconds to start nodes and to notice their death.
pytestmark = pytest.mark.timeout(180)

ATTACH = """
    import sys
    import ray

    ray.init(
        address=sys.argv[1],
        namespace=sys.argv[2] if len(sys.argv) > 2 else None,
        logging_level="ERROR",
        log_to_driver=False,
    )
"""


@pytest.fixture
def attach(nodes, run_driver):
    """Run a script as a second driver of the module's cluster."""

    def run(body, namespace="failures", **options):
        script = ATTACH + body
        return run_driver(script, nodes.cluster.address, namespace, **options).stdout

    return run


def test_a_second_init_is_refused(nodes):
    with pytest.raises(RuntimeError, match=r"ray\.init twice"):
        ray.init(address=nodes.cluster.address)
    again = ray.init(address=nodes.cluster.address, ignore_reinit_error=True)
    assert again.address_info["node_id"] == nodes.head_id


def test_options_of_a_new_cluster_are_refused_with_an_address(nodes, run_driver):
    script = """
        import sys
        import ray

        for options in (
            {"num_cpus": 1},
            {"num_gpus": 1},
            {"resources": {"a": 1}},
            {"labels": {"a": "b"}},
            {"object_store_memory": 10**8},
        ):
            try:
                ray.init(address=sys.argv[1], **options)
            except ValueError as error:
                assert "must not be provided" in str(error), error
                assert next(iter(options)) in str(error), error
                print("refused")
            ray.shutdown()
    """
    done = run_driver(script, nodes.cluster.address)
    assert done.stdout.split() == ["refused"] * 5


def test_drivers_see_one_cluster_and_have_their_own_job(nodes, attach):
    nodes.stand("a")
    out = attach("""
    print(ray.get_runtime_context().get_job_id())
    print(ray.get_runtime_context().get_node_id())
    print(sorted(row["NodeID"] for row in ray.nodes() if row["Alive"]))
    print(ray.cluster_resources()["a"])
    """)
    job, node, alive, amount = out.splitlines()
    assert job != ray.get_runtime_context().get_job_id()
    assert node == nodes.head_id
    assert alive == str(sorted(row["NodeID"] for row in ray.nodes() if row["Alive"]))
    assert float(amount) == 10


@pytest.mark.parametrize(
    "address",
    [
        "auto",
        pytest.param(None, marks=pytest.mark.differs("init-joins-any-cluster")),
    ],
)
def test_a_driver_finds_the_cluster_of_this_machine(nodes, run_driver, address):
    script = f"""
        import ray

        ray.init(address={address!r}, log_to_driver=False)
        print(ray.get_runtime_context().get_node_id())
    """
    assert run_driver(script).stdout.split() == [nodes.head_id]


def test_tasks_of_two_drivers_run_on_the_same_nodes(nodes, attach):
    there = nodes.stand("a")
    out = attach("""
    @ray.remote(num_cpus=0, resources={"a": 1})
    def where():
        return ray.get_runtime_context().get_node_id()

    print(ray.get(where.remote()))
    """)
    assert out.split() == [there.node_id]
    assert ray.get(where.options(**on("a")).remote()) == there.node_id


def test_a_named_actor_is_found_by_another_driver(nodes, attach):
    nodes.stand("a")
    keeper = Keeper.options(name="found", **on("a")).remote()
    assert ray.get(keeper.add.remote()) == 1
    out = attach("""
    print(ray.get(ray.get_actor("found").add.remote()))
    """)
    assert out.split() == ["2"]
    assert ray.get(keeper.add.remote()) == 3


def test_namespaces_keep_names_apart(nodes, attach):
    keeper = Keeper.options(name="apart").remote()
    ray.get(keeper.add.remote())
    out = attach(
        """
    try:
        ray.get_actor("apart")
    except ValueError:
        print("not here")
    print(ray.get(ray.get_actor("apart", namespace="failures").add.remote()))
    """,
        namespace="elsewhere",
    )
    assert out.splitlines() == ["not here", "2"]


def test_a_detached_actor_outlives_its_driver(nodes, attach):
    there = nodes.stand("a")
    attach("""
    @ray.remote(num_cpus=0, resources={"a": 1}, name="stays", lifetime="detached")
    class Counter:
        def __init__(self):
            self.count = 0

        def add(self):
            self.count += 1
            return self.count, ray.get_runtime_context().get_node_id()

    ray.get(Counter.remote().add.remote())
    """)
    stays = ray.get_actor("stays")
    assert ray.get(stays.add.remote(), timeout=GET_LIMIT_S) == (2, there.node_id)
    ray.kill(stays)


def test_a_named_actor_ends_with_its_driver(nodes, attach, wait_until):
    nodes.stand("a")
    attach("""
    @ray.remote(num_cpus=0, resources={"a": 1}, name="goes")
    class Short:
        def hello(self):
            return 1

    ray.get(Short.remote().hello.remote())
    """)

    def gone():
        try:
            ray.get_actor("goes")
        except ValueError:
            return True
        return False

    wait_until(gone)
    wait_until(lambda: ray.available_resources().get("a") == 10)


@pytest.mark.parametrize("was_read", [False, True])
def test_values_of_a_driver_go_with_it(nodes, attach, wait_until, was_read):
    nodes.stand("a")
    name = f"holder-{was_read}"
    keeper = Keeper.options(name=name, **on("a")).remote()
    ray.get(keeper.add.remote())
    attach(f"""
    import numpy as np

    ref = ray.put(np.ones(100_000))
    holder = ray.get_actor("{name}")
    ray.get(holder.keep.remote([ref]))
    if {was_read}:
        assert ray.get(holder.total_kept.remote()) == 100_000
    """)

    def lost():
        try:
            ray.get(keeper.total_kept.remote(), timeout=GET_LIMIT_S)
        except OwnerDiedError:
            return True
        return False

    wait_until(lost)


def test_a_killed_driver_gives_its_resources_back(nodes, start_driver, wait_until):
    nodes.stand("a")
    body = """
    import time

    @ray.remote(num_cpus=0, resources={"a": 6}, max_retries=0)
    def hold():
        time.sleep(300)

    @ray.remote(num_cpus=0, name="killed")
    class Named:
        def hello(self):
            return 1

    named = Named.remote()
    ray.get(named.hello.remote())
    ref = hold.remote()
    print("holds", flush=True)
    ray.get(ref)
    """
    driver = start_driver(ATTACH + body, nodes.cluster.address, "failures")
    wait_until(lambda: ray.available_resources().get("a", 0) <= 4, timeout_s=40)
    queued = where.options(num_cpus=0, resources={"a": 6}).remote()
    assert ray.wait([queued], timeout=0.3) == ([], [queued])
    named = ray.get_actor("killed")
    os.killpg(driver.pid, signal.SIGKILL)
    assert ray.get(queued, timeout=GET_LIMIT_S) == nodes.stand("a").node_id
    with pytest.raises(ActorDiedError):
        while True:
            ray.get(named.hello.remote(), timeout=GET_LIMIT_S)


def test_lines_printed_on_another_node_reach_the_driver(nodes, run_driver):
    nodes.stand("a")
    script = """
        import sys
        import time
        import ray

        ray.init(address=sys.argv[1])

        @ray.remote(num_cpus=0, resources={"a": 1})
        def speak():
            print("a line from afar")

        ray.get(speak.remote())
        time.sleep(3)
    """
    done = run_driver(script, nodes.cluster.address)
    lines = (done.stdout + done.stderr).splitlines()
    (line,) = [line for line in lines if "a line from afar" in line]
    assert "speak pid=" in line
