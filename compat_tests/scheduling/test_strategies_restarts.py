"""Actors keep their strategy when they start again."""

from __future__ import annotations

import os

import pytest
from failures.placed import where

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnschedulableError,
    TaskUnschedulableError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

#: Real Ray takes seconds to start nodes and to notice their death.
pytestmark = pytest.mark.timeout(180)

LIMIT_S = 60


@ray.remote(num_cpus=0, max_restarts=3, max_task_retries=-1)
class Phoenix:
    """An actor that may die and says where it is."""

    def node(self):
        return ray.get_runtime_context().get_node_id()

    def pid(self):
        return os.getpid()


def restarted(actor, wait_until):
    """Kill the actor; return the node of its next life."""
    before = ray.get(actor.pid.remote(), timeout=LIMIT_S)
    ray.kill(actor, no_restart=False)
    wait_until(
        lambda: ray.get(actor.pid.remote(), timeout=LIMIT_S) != before, timeout_s=60
    )
    return ray.get(actor.node.remote(), timeout=LIMIT_S)


@pytest.mark.parametrize("soft", [False, True])
def test_affinity_is_kept(nodes, wait_until, soft):
    node = nodes.stand("a")
    strategy = NodeAffinitySchedulingStrategy(node.node_id, soft=soft)
    # Real Ray asks any node first for an actor that takes nothing, and that may not
    # know of the new one.
    actor = Phoenix.options(num_cpus=1, scheduling_strategy=strategy).remote()
    assert ray.get(actor.node.remote(), timeout=LIMIT_S) == node.node_id
    for _ in range(2):
        assert restarted(actor, wait_until) == node.node_id
    ray.kill(actor)


def test_selectors_are_kept(nodes, wait_until):
    node = nodes.add(labels={"zone": "north"})
    actor = Phoenix.options(label_selector={"zone": "north"}).remote()
    assert ray.get(actor.node.remote(), timeout=LIMIT_S) == node.node_id
    assert restarted(actor, wait_until) == node.node_id


def test_soft_affinity_moves_on_when_the_node_dies(nodes):
    node = nodes.add()
    strategy = NodeAffinitySchedulingStrategy(node.node_id, soft=True)
    actor = Phoenix.options(num_cpus=1, scheduling_strategy=strategy).remote()
    assert ray.get(actor.node.remote(), timeout=LIMIT_S) == node.node_id
    nodes.kill(node)
    assert ray.get(actor.node.remote(), timeout=LIMIT_S) != node.node_id


def test_hard_affinity_ends_with_the_node(nodes):
    node = nodes.add()
    strategy = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    actor = Phoenix.options(scheduling_strategy=strategy).remote()
    assert ray.get(actor.node.remote(), timeout=LIMIT_S) == node.node_id
    nodes.kill(node)
    with pytest.raises((ActorUnschedulableError, ActorDiedError)):
        ray.get(actor.node.remote(), timeout=LIMIT_S)


def test_a_fallback_is_taken_when_the_node_dies(nodes):
    first = nodes.add(labels={"zone": "north"})
    second = nodes.add(labels={"zone": "south"})
    actor = Phoenix.options(
        label_selector={"zone": "north"},
        fallback_strategy=[{"label_selector": {"zone": "south"}}],
    ).remote()
    assert ray.get(actor.node.remote(), timeout=LIMIT_S) == first.node_id
    nodes.kill(first)
    assert ray.get(actor.node.remote(), timeout=LIMIT_S) == second.node_id


def test_a_selector_waits_for_another_node(nodes):
    first = nodes.add(labels={"zone": "east"})
    actor = Phoenix.options(label_selector={"zone": "east"}).remote()
    assert ray.get(actor.node.remote(), timeout=LIMIT_S) == first.node_id
    nodes.kill(first)
    ref = actor.node.remote()
    assert ray.wait([ref], timeout=1) == ([], [ref])
    second = nodes.add(labels={"zone": "east"})
    assert ray.get(ref, timeout=LIMIT_S) == second.node_id


def test_a_task_that_waits_for_a_node_fails_when_it_dies(nodes):
    node = nodes.add(num_cpus=1)
    strategy = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    holder = Phoenix.options(num_cpus=1, scheduling_strategy=strategy).remote()
    ray.get(holder.node.remote(), timeout=LIMIT_S)
    ref = where.options(num_cpus=1, scheduling_strategy=strategy).remote()
    assert ray.wait([ref], timeout=0.5) == ([], [ref])
    nodes.kill(node)
    with pytest.raises(TaskUnschedulableError):
        ray.get(ref, timeout=LIMIT_S)


def test_a_soft_task_that_waits_for_a_node_goes_elsewhere_when_it_dies(nodes):
    node = nodes.add(num_cpus=1)
    strategy = NodeAffinitySchedulingStrategy(node.node_id, soft=True)
    holder = Phoenix.options(num_cpus=1, scheduling_strategy=strategy).remote()
    ray.get(holder.node.remote(), timeout=LIMIT_S)
    ref = where.options(num_cpus=1, scheduling_strategy=strategy).remote()
    assert ray.wait([ref], timeout=0.5) == ([], [ref])
    ray.kill(holder)
    nodes.kill(node)
    assert ray.get(ref, timeout=LIMIT_S)
