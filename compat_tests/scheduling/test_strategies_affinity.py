"""SPREAD, DEFAULT and node affinity over three nodes."""

from __future__ import annotations

import pytest
from failures.placed import nap, where

import ray
from ray.exceptions import ActorUnschedulableError, TaskUnschedulableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from scheduling.labelled import CPUS, Member, is_pending

#: Real Ray takes seconds to start nodes and to notice their death.
pytestmark = pytest.mark.timeout(180)

#: Limit of a call that must end.
LIMIT_S = 40


def to(node_id, **options):
    """Return options that ask for a node; hard unless ``soft`` is given."""
    soft = options.pop("soft", False)
    strategy = NodeAffinitySchedulingStrategy(node_id, soft, **options)
    return {"scheduling_strategy": strategy}


@pytest.fixture
def busy(labelled, wait_until):
    """Fill the CPUs of a node by name until the test ends."""
    made = []

    def fill(name, cpus):
        made.append(Member.options(num_cpus=cpus, **to(labelled.ids[name])).remote())
        assert labelled.of(made[-1].node.remote()) == [name]
        return made[-1]

    yield fill
    for member in made:
        ray.kill(member)
    wait_until(
        lambda: ray.available_resources().get("CPU") == 1 + 2 * CPUS, timeout_s=40
    )


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("name", ["head", "north"])
def test_affinity_to_a_node_that_is_free(labelled, name, soft):
    options = to(labelled.ids[name], soft=soft)
    member = Member.options(num_cpus=1, **options).remote()
    task = where.options(**options)
    refs = [task.remote() for _ in range(3)]
    assert labelled.of(*refs, member.node.remote()) == [name] * 4
    ray.kill(member)


@pytest.mark.parametrize("soft", [None, "yes"])
def test_soft_is_true_or_false_as_python_sees_it(labelled, soft):
    task = where.options(**to(labelled.ids["north"], soft=soft))
    assert labelled.of(task.remote()) == ["north"]


@pytest.mark.parametrize("name", ["head", "north"])
@pytest.mark.parametrize("soft", [False, True])
def test_a_full_node_is_waited_for(labelled, busy, soft, name):
    cpus = 1 if name == "head" else CPUS
    holder = busy(name, cpus)
    ref = where.options(num_cpus=1, **to(labelled.ids[name], soft=soft)).remote()
    assert is_pending(ref)
    ray.kill(holder)
    assert labelled.of(ref) == [name]


@pytest.mark.parametrize("name", ["head", "north"])
def test_a_full_node_is_left_if_that_is_allowed(labelled, busy, name):
    busy(name, 1 if name == "head" else CPUS)
    options = to(labelled.ids[name], soft=True, _spill_on_unavailable=True)
    member = Member.options(num_cpus=1, **options).remote()
    ref = where.options(num_cpus=1, **options).remote()
    assert name not in labelled.of(ref, member.node.remote())
    ray.kill(member)


@pytest.mark.parametrize("name", ["head", "north"])
def test_a_full_node_fails_calls_that_want_that(labelled, busy, name):
    busy(name, 1 if name == "head" else CPUS)
    options = to(labelled.ids[name], _fail_on_unavailable=True)
    with pytest.raises(TaskUnschedulableError):
        ray.get(where.options(num_cpus=1, **options).remote(), timeout=LIMIT_S)
    member = Member.options(num_cpus=1, **options).remote()
    with pytest.raises(ActorUnschedulableError):
        ray.get(member.node.remote(), timeout=LIMIT_S)


@pytest.mark.parametrize("name", ["head", "north"])
def test_what_takes_nothing_fits_on_a_full_node(labelled, busy, name):
    busy(name, 1 if name == "head" else CPUS)
    options = to(labelled.ids[name], _fail_on_unavailable=True)
    assert labelled.of(where.options(**options).remote()) == [name]


@pytest.mark.parametrize("name", ["head", "north"])
def test_a_node_that_is_too_small_fails_hard_calls(labelled, name):
    options = to(labelled.ids[name])
    with pytest.raises(TaskUnschedulableError, match="soft=False"):
        ray.get(where.options(num_cpus=9, **options).remote(), timeout=LIMIT_S)
    member = Member.options(num_cpus=9, **options).remote()
    with pytest.raises(ActorUnschedulableError, match="soft=False"):
        ray.get(member.node.remote(), timeout=LIMIT_S)


def test_a_node_without_the_resource_fails_hard_calls(labelled):
    options = to(labelled.ids["north"])
    with pytest.raises(TaskUnschedulableError):
        ray.get(
            where.options(resources={"south": 1}, **options).remote(), timeout=LIMIT_S
        )


def test_a_node_that_is_too_small_is_left_by_soft_calls(labelled):
    options = to(labelled.ids["head"], soft=True)
    member = Member.options(num_cpus=2, **options).remote()
    assert labelled.of(member.node.remote())[0] in ("north", "south")
    ray.kill(member)
    options = to(labelled.ids["north"], soft=True)
    ref = where.options(resources={"south": 1}, **options).remote()
    assert labelled.of(ref) == ["south"]


def test_soft_calls_that_fit_nowhere_wait(labelled):
    ref = where.options(num_cpus=9, **to(labelled.ids["north"], soft=True)).remote()
    assert is_pending(ref)
    ray.cancel(ref)


def test_ids_may_be_in_capitals(labelled):
    options = to(labelled.ids["north"].upper())
    assert labelled.of(where.options(**options).remote()) == ["north"]


def test_children_choose_anew(labelled):
    @ray.remote(num_cpus=0)
    def parent():
        return ray.get(where.options(resources={"south": 1}).remote())

    assert labelled.of(parent.options(**to(labelled.ids["north"])).remote()) == [
        "south"
    ]


def test_a_task_may_send_its_child_to_another_node(labelled):
    @ray.remote(num_cpus=0)
    def parent(node_id):
        strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
        return ray.get(where.options(scheduling_strategy=strategy).remote())

    ref = parent.options(**to(labelled.ids["north"])).remote(labelled.ids["south"])
    assert labelled.of(ref) == ["south"]


def test_spread_goes_around(labelled):
    task = where.options(scheduling_strategy="SPREAD")
    names = [labelled.of(task.remote())[0] for _ in range(9)]
    assert set(names) == {"head", "north", "south"}


def test_spread_calls_run_on_all_nodes_at_once(labelled):
    task = nap.options(num_cpus=1, scheduling_strategy="SPREAD")
    names = set(labelled.of(*[task.remote(1) for _ in range(5)]))
    assert names == {"head", "north", "south"}


def test_spread_actors_go_around(labelled):
    spread = Member.options(num_cpus=1, scheduling_strategy="SPREAD")
    members = [spread.remote() for _ in range(4)]
    names = labelled.of(*[member.node.remote() for member in members])
    assert len(set(names)) >= 2
    for member in members:
        ray.kill(member)


def test_spread_uses_nodes_that_are_large_enough_only(labelled):
    task = where.options(num_cpus=2, scheduling_strategy="SPREAD")
    assert "head" not in labelled.of(*[task.remote() for _ in range(4)])


def test_default_says_nothing(labelled):
    task = where.options(scheduling_strategy="DEFAULT", resources={"north": 1})
    assert labelled.of(task.remote()) == ["north"]
