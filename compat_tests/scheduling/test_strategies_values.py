"""What strategies, selectors and fallbacks may be."""

from __future__ import annotations

import pytest

import ray
from ray.util.scheduling_strategies import (
    In,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    NotIn,
)

pytestmark = pytest.mark.usefixtures("ray_start")

SOME_NODE = "ab" * 28


@ray.remote(num_cpus=0)
def task():
    return ray.get_runtime_context().get_node_id()


@ray.remote(num_cpus=0)
class Actor:
    def node(self):
        return ray.get_runtime_context().get_node_id()


@pytest.mark.parametrize(
    ("selector", "error"),
    [
        ({"zone": None}, ValueError),
        ({"zone": 1}, TypeError),
        ({1: "x"}, TypeError),
        ({"zone": "!"}, ValueError),
        ({"zone": "!!x"}, ValueError),
        ({"zone": " x"}, ValueError),
        ({"zone": "in()"}, ValueError),
        ({"zone": "in( x)"}, ValueError),
        ({"zone": "in(x , y)"}, ValueError),
        ({"zone": "in(x"}, ValueError),
        ({"zone": "*"}, ValueError),
        ({"zone": "-x"}, ValueError),
        ({"zone": "x" * 64}, ValueError),
        ({"-zone": "x"}, ValueError),
        ({"a/b/c": "x"}, ValueError),
        ({"x" * 64: "x"}, ValueError),
        ({"": "x"}, ValueError),
        ("zone", TypeError),
        ([], TypeError),
    ],
)
def test_wrong_selectors(selector, error):
    with pytest.raises(error):
        task.options(label_selector=selector).remote()
    with pytest.raises(error):
        Actor.options(label_selector=selector).remote()


@pytest.mark.parametrize(
    ("fallback", "error"),
    [
        ([{}], ValueError),
        (["x"], ValueError),
        ([{"resources": {}}], ValueError),
        ([{"label_selector": "x"}], ValueError),
        ([{"label_selector": {"zone": "!!"}}], ValueError),
        ({"label_selector": {}}, TypeError),
        ("x", TypeError),
    ],
)
def test_wrong_fallbacks(fallback, error):
    with pytest.raises(error):
        task.options(fallback_strategy=fallback).remote()
    with pytest.raises(error):
        Actor.options(fallback_strategy=fallback).remote()


@pytest.mark.parametrize(
    ("strategy", "error"),
    [
        ("bad", ValueError),
        ("spread", ValueError),
        ("", ValueError),
        (5, TypeError),
        (object(), TypeError),
        (In("x"), TypeError),
        (SOME_NODE, ValueError),
    ],
)
def test_wrong_strategies(strategy, error):
    with pytest.raises(error):
        task.options(scheduling_strategy=strategy).remote()
    with pytest.raises(error):
        Actor.options(scheduling_strategy=strategy).remote()


@pytest.mark.parametrize(
    ("node_id", "error"),
    [
        ("", ValueError),
        (SOME_NODE[:10], ValueError),
        ("zz" * 28, ValueError),
        ("ff" * 28, ValueError),
        (b"x", ValueError),
        (None, AttributeError),
        (5, AttributeError),
    ],
)
def test_wrong_ids_of_nodes(node_id, error):
    with pytest.raises(error):
        NodeAffinitySchedulingStrategy(node_id, soft=False)


def test_flags_of_affinity_go_with_soft():
    with pytest.raises(ValueError, match="_spill_on_unavailable"):
        NodeAffinitySchedulingStrategy(
            SOME_NODE, soft=False, _spill_on_unavailable=True
        )
    with pytest.raises(ValueError, match="_fail_on_unavailable"):
        NodeAffinitySchedulingStrategy(SOME_NODE, soft=True, _fail_on_unavailable=True)
    with pytest.raises(TypeError):
        NodeAffinitySchedulingStrategy(SOME_NODE)


def test_affinity_keeps_what_it_was_given():
    strategy = NodeAffinitySchedulingStrategy(SOME_NODE.upper(), soft=True)
    assert (strategy.node_id, strategy.soft) == (SOME_NODE.upper(), True)


@pytest.mark.parametrize("hard", [["x"], {"a": "b"}, {1: In("x")}, {}, None, "x"])
def test_wrong_conditions(hard):
    with pytest.raises(ValueError):
        NodeLabelSchedulingStrategy(hard)
    with pytest.raises(ValueError):
        NodeLabelSchedulingStrategy(None, soft=hard)


def test_conditions_must_be_given():
    with pytest.raises(TypeError):
        NodeLabelSchedulingStrategy()


@pytest.mark.parametrize("operator", [In, NotIn])
def test_operators_take_text(operator):
    assert operator("a", "b").values == ["a", "b"]
    with pytest.raises(ValueError):
        operator()
    with pytest.raises(ValueError):
        operator("a", 1)


def test_a_group_and_a_strategy_do_not_go_together():
    group = ray.util.placement_group([{"CPU": 1}])
    with pytest.raises(ValueError):
        task.options(placement_group=group, scheduling_strategy="SPREAD").remote()
    with pytest.raises(ValueError):
        Actor.options(placement_group=group, scheduling_strategy="SPREAD").remote()
    ray.util.remove_placement_group(group)


def test_decorators_refuse_what_options_refuse():
    with pytest.raises(ValueError):
        ray.remote(label_selector={"-x": "y"})(lambda: 1)
    with pytest.raises(ValueError):
        ray.remote(fallback_strategy=[{}])(type("Other", (), {}))


def test_hard_affinity_to_a_node_that_is_too_small_fails_on_one_node_too():
    here = ray.get_runtime_context().get_node_id()
    strategy = NodeAffinitySchedulingStrategy(here, soft=False)
    with pytest.raises(ray.exceptions.TaskUnschedulableError):
        ray.get(
            task.options(num_cpus=99, scheduling_strategy=strategy).remote(),
            timeout=30,
        )
    actor = Actor.options(num_cpus=99, scheduling_strategy=strategy).remote()
    with pytest.raises(ray.exceptions.ActorUnschedulableError):
        ray.get(actor.node.remote(), timeout=30)


def test_soft_affinity_to_a_node_that_is_too_small_waits_on_one_node():
    here = ray.get_runtime_context().get_node_id()
    strategy = NodeAffinitySchedulingStrategy(here, soft=True)
    ref = task.options(num_cpus=99, scheduling_strategy=strategy).remote()
    assert ray.wait([ref], timeout=0.5) == ([], [ref])
    ray.cancel(ref)


@pytest.mark.parametrize("cpus", [1, 99])
def test_calls_that_may_not_wait_fail_on_one_node_too(cpus, wait_until):
    here = ray.get_runtime_context().get_node_id()
    strategy = NodeAffinitySchedulingStrategy(
        here, soft=False, _fail_on_unavailable=True
    )
    holder = Actor.options(num_cpus=4).remote()
    ray.get(holder.node.remote(), timeout=30)
    options = {"num_cpus": cpus, "scheduling_strategy": strategy}
    with pytest.raises(ray.exceptions.TaskUnschedulableError):
        ray.get(task.options(**options).remote(), timeout=30)
    actor = Actor.options(**options).remote()
    with pytest.raises(ray.exceptions.ActorUnschedulableError):
        ray.get(actor.node.remote(), timeout=30)
    ray.kill(holder)
    wait_until(lambda: ray.available_resources().get("CPU") == 4)
