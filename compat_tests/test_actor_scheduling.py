"""Where actors and tasks run: node affinity, labels, strategies by name."""

from __future__ import annotations

import pytest

import ray
from ray.exceptions import ActorUnschedulableError, TaskUnschedulableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

pytestmark = pytest.mark.usefixtures("ray_start")

UNKNOWN_NODE = "ab" * 28


@ray.remote
class Member:
    def node(self):
        return ray.get_runtime_context().get_node_id()

    def blocked(self):
        return ray.get(node.options(num_cpus=4).remote())


@ray.remote
def node():
    return ray.get_runtime_context().get_node_id()


def here():
    """Return the id of the only node."""
    return ray.get_runtime_context().get_node_id()


def affinity(node_id, *, soft):
    """Return the strategy for a node."""
    return NodeAffinitySchedulingStrategy(node_id=node_id, soft=soft)


@pytest.mark.parametrize("soft", [True, False])
def test_affinity_to_the_node(soft):
    strategy = affinity(here(), soft=soft)
    member = Member.options(scheduling_strategy=strategy).remote()
    assert ray.get(member.node.remote()) == here()
    assert ray.get(node.options(scheduling_strategy=strategy).remote()) == here()


def test_soft_affinity_to_an_unknown_node_runs_elsewhere():
    strategy = affinity(UNKNOWN_NODE, soft=True)
    member = Member.options(scheduling_strategy=strategy).remote()
    assert ray.get(member.node.remote()) == here()
    assert ray.get(node.options(scheduling_strategy=strategy).remote()) == here()


def test_hard_affinity_of_a_task_to_an_unknown_node_fails():
    strategy = affinity(UNKNOWN_NODE, soft=False)
    with pytest.raises(TaskUnschedulableError):
        ray.get(node.options(scheduling_strategy=strategy).remote())


def test_hard_affinity_of_an_actor_to_an_unknown_node_fails():
    strategy = affinity(UNKNOWN_NODE, soft=False)
    member = Member.options(scheduling_strategy=strategy).remote()
    with pytest.raises(ActorUnschedulableError):
        ray.get(member.node.remote())


@pytest.mark.parametrize("bad", ["ff" * 28, "short", "zz" * 28])
def test_ids_that_name_no_node_are_refused_at_once(bad):
    with pytest.raises(ValueError):
        affinity(bad, soft=False)


@pytest.mark.parametrize("strategy", ["DEFAULT", "SPREAD"])
def test_strategies_by_name(strategy):
    member = Member.options(scheduling_strategy=strategy).remote()
    assert ray.get(member.node.remote()) == here()


def test_label_selector_of_the_node_id():
    selector = {"ray.io/node-id": here()}
    member = Member.options(label_selector=selector).remote()
    assert ray.get(member.node.remote()) == here()


@pytest.mark.parametrize("selector", [{"colour": "green"}, {"ray.io/node-id": "!{me}"}])
def test_label_selector_that_fits_no_node_stays_pending(selector):
    filled = {key: value.format(me=here()) for key, value in selector.items()}
    member = Member.options(label_selector=filled).remote()
    ref = member.node.remote()
    assert ray.wait([ref], timeout=0.2) == ([], [ref])
    ray.kill(member)


def test_actor_blocked_in_get_keeps_its_cpus():
    member = Member.options(num_cpus=4).remote()
    ref = member.blocked.remote()
    assert ray.wait([ref], timeout=0.5) == ([], [ref])
    ray.kill(member)


def test_task_blocked_in_get_lends_its_cpus():
    @ray.remote(num_cpus=4)
    def parent():
        return ray.get(node.options(num_cpus=4).remote())

    assert ray.get(parent.remote(), timeout=30) == here()
