"""NodeLabelSchedulingStrategy: hard and soft conditions on labels."""

from __future__ import annotations

import pytest
from failures.placed import where

import ray
from ray.util.scheduling_strategies import (
    DoesNotExist,
    Exists,
    In,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    NotIn,
)
from scheduling.labelled import Member, is_pending

#: Real Ray takes seconds to start nodes and to notice their death.
pytestmark = pytest.mark.timeout(180)


def by_labels(hard, **options):
    """Return the options of a call with the strategy."""
    return {"scheduling_strategy": NodeLabelSchedulingStrategy(hard, **options)}


@pytest.mark.parametrize(
    ("hard", "soft", "names"),
    [
        ({"zone": In("north")}, None, {"north"}),
        ({"zone": In("moon", "south")}, None, {"south"}),
        ({"zone": NotIn("north", "south")}, None, {"head"}),
        ({"zone": Exists()}, None, {"north", "south"}),
        ({"zone": DoesNotExist()}, None, {"head"}),
        ({"zone": Exists(), "tier": NotIn("gold")}, None, {"south"}),
        ({"zone": In("north", "south")}, {"tier": In("silver")}, {"south"}),
        ({"zone": Exists()}, {"spot": Exists()}, {"north"}),
        ({"zone": Exists()}, {"spot": DoesNotExist()}, {"south"}),
        ({"zone": NotIn("north")}, {"zone": Exists()}, {"south"}),
        ({"zone": In("north")}, {"zone": In("moon")}, {"north"}),
        (None, {"zone": In("south")}, {"south"}),
        ({}, {"zone": In("moon")}, {"head", "north", "south"}),
    ],
)
def test_tasks_run_where_conditions_hold(labelled, hard, soft, names):
    task = where.options(**by_labels(hard, soft=soft))
    assert set(labelled.of(*[task.remote() for _ in range(3)])) <= names


def test_what_no_node_fulfils_waits(labelled):
    ref = where.options(**by_labels({"zone": In("moon")})).remote()
    assert is_pending(ref)
    ray.cancel(ref)


def test_soft_conditions_give_way_when_the_node_cannot(labelled):
    strategy = by_labels({"zone": Exists()}, soft={"zone": In("south")})
    task = where.options(**strategy, resources={"north": 1})
    assert labelled.of(task.remote()) == ["north"]


def test_a_selector_and_the_strategy_both_count(labelled):
    options = by_labels({"zone": Exists()})
    task = where.options(**options, label_selector={"tier": "gold"})
    assert labelled.of(task.remote()) == ["north"]
    options = by_labels({"zone": In("south")})
    ref = where.options(**options, label_selector={"tier": "gold"}).remote()
    assert is_pending(ref)
    ray.cancel(ref)


def test_a_selector_and_the_strategy_may_name_the_same_label(labelled):
    options = by_labels({"zone": Exists()})
    task = where.options(**options, label_selector={"zone": "!north"})
    assert labelled.of(*[task.remote() for _ in range(3)]) == ["south"] * 3


def test_a_selector_and_affinity_both_count(labelled):
    strategy = NodeAffinitySchedulingStrategy(labelled.ids["north"], soft=False)
    task = where.options(scheduling_strategy=strategy, label_selector={"zone": "north"})
    assert labelled.of(task.remote()) == ["north"]


def test_affinity_gives_way_to_a_selector(labelled):
    strategy = NodeAffinitySchedulingStrategy(labelled.ids["north"], soft=True)
    task = where.options(scheduling_strategy=strategy, label_selector={"zone": "south"})
    assert labelled.of(task.remote()) == ["south"]


def test_hard_affinity_to_a_node_that_a_selector_forbids_fails(labelled):
    strategy = NodeAffinitySchedulingStrategy(labelled.ids["north"], soft=False)
    task = where.options(scheduling_strategy=strategy, label_selector={"zone": "south"})
    with pytest.raises(ray.exceptions.TaskUnschedulableError):
        ray.get(task.remote(), timeout=30)


@pytest.mark.differs("label-strategy-of-actors")
def test_actors_mind_the_strategy(labelled):
    options = by_labels({"zone": In("south")}, soft={"zone": In("moon")})
    member = Member.options(**options).remote()
    other = Member.options(**by_labels({"zone": In("moon")})).remote()
    refs = [member.node.remote(), other.node.remote()]
    ready, waiting = ray.wait(refs, num_returns=2, timeout=10)
    ray.kill(other)
    assert (ready, waiting) == (refs[:1], refs[1:])
    assert labelled.of(*ready) == ["south"]


@pytest.mark.differs("spaces-in-label-selectors")
def test_spaces_between_values_do_not_count(labelled):
    ref = where.options(label_selector={"zone": "in(moon, south)"}).remote()
    ready, _ = ray.wait([ref], timeout=10)
    if not ready:
        ray.cancel(ref)
    assert ready == [ref]
