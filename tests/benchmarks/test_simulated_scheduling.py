"""The simulated cluster of the scheduling benchmark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "scheduling"


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module with the world, as the benchmark's programs import it."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(FOLDER))
    import simulated_world

    yield simulated_world
    for name in set(sys.modules) - before:
        module_file = getattr(sys.modules[name], "__file__", None) or ""
        if Path(module_file).parent == FOLDER:
            del sys.modules[name]


def world_of(simulation: Any, nodes: int, **work: Any) -> Any:
    world = simulation.World(nodes, cpus=4, work=simulation.Work(**work), cost_s=0.0001)
    world.start()
    return world


def check(world: Any) -> None:
    for node in world.nodes:
        node.raylet.validate()


def test_a_seed_gives_the_same_world_again(simulation: Any) -> None:
    results = []
    for _ in range(2):
        world = world_of(simulation, 4, class_life_s=1.0, call_s=0.1)
        world.begin_work()
        world.run(3.0)
        results.append((world.local_s, world.spilled_s, dict(world.head.received)))

    assert results[0] == results[1]
    assert results[0][1], "nothing was spilled"


def test_what_one_node_cannot_run_runs_on_others(simulation: Any) -> None:
    world = world_of(simulation, 3)
    from simulated_owners import ClassLife

    ClassLife(world.nodes[0], 12, 1.0)
    world.run(1.0)
    check(world)

    assert world.free_cpus() == 0
    assert (len(world.local_s), len(world.spilled_s)) == (4, 8)


def test_all_leases_go_back(simulation: Any) -> None:
    world = world_of(simulation, 3)
    from simulated_owners import ClassLife

    for node in world.nodes:
        ClassLife(node, 6, 1.0)
    world.run(10.0)
    check(world)

    assert world.free_cpus() == 12
    assert not any(node.raylet.leases for node in world.nodes)


def test_a_spilled_lease_takes_the_head_and_four_ways(simulation: Any) -> None:
    world = world_of(simulation, 2)
    from simulated_owners import ClassLife

    ClassLife(world.nodes[0], 5, 1.0)
    world.run(0.5)
    network = world.network
    least_s = 2 * network.local_s + 4 * network.remote_s

    assert len(world.spilled_s) == 1
    assert least_s < world.spilled_s[0] < least_s + 0.001


def test_messages_wait_for_the_head_s_thread(simulation: Any) -> None:
    world = world_of(simulation, 8)
    from simulated_owners import ClassLife

    world.reset()
    for node in world.nodes[:4]:
        ClassLife(node, 8, 1.0)
    world.run(0.5)

    assert world.head.longest_wait_s > 10 * world.head._cost_s
    assert len(world.spilled_s) == 16


def test_nodes_that_join_together_are_told_of_together(simulation: Any) -> None:
    world = world_of(simulation, 40)

    told = world.head.sent["NodeTable"]
    # Of 0.5 s of joining, a table to each node in each 0.05 s, and the first ones.
    assert told <= 12 * 40
    assert world.head.received["JoinNode"] == 40
