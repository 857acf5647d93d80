"""Resources are exact, and GPU indices are shared by fractions only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayshim.lineage.resources import (
    Allocation,
    ResourceSet,
    describe,
    to_amounts,
    to_units,
)


def node(**amounts: float) -> ResourceSet:
    return ResourceSet(to_units(amounts))


def taken(resources: ResourceSet, **amounts: float) -> Allocation:
    allocation = resources.acquire(to_units(amounts))
    assert allocation is not None
    return allocation


def test_units_are_exact_for_tenths() -> None:
    assert to_units({"CPU": 0.1, "x": 0.3, "nothing": 0.0}) == {"CPU": 1000, "x": 3000}
    assert to_amounts({"CPU": 1000}) == {"CPU": 0.1}
    assert describe({"CPU": 10000, "GPU": 5000}) == "{CPU: 1, GPU: 0.5}"


def test_a_thousand_tenths_leave_no_dust() -> None:
    resources = node(CPU=100)
    held = [taken(resources, CPU=0.1) for _ in range(1000)]
    assert resources.acquire(to_units({"CPU": 0.1})) is None
    for allocation in held:
        resources.release(allocation)
    assert to_amounts(resources.available) == {"CPU": 100.0}


def test_acquire_takes_all_or_nothing() -> None:
    resources = node(CPU=2, x=1)
    assert resources.acquire(to_units({"CPU": 1, "x": 2})) is None
    assert to_amounts(resources.available) == {"CPU": 2.0, "x": 1.0}


def test_half_gpus_share_an_index_until_it_is_full() -> None:
    resources = node(GPU=2)
    indices = [taken(resources, GPU=0.5).gpu_ids for _ in range(4)]
    assert indices == [[0], [0], [1], [1]]


def test_whole_gpus_take_indices_that_nobody_holds() -> None:
    resources = node(GPU=3)
    half = taken(resources, GPU=0.5)
    both = taken(resources, GPU=2)
    assert (half.gpu_ids, both.gpu_ids) == ([0], [1, 2])
    assert resources.acquire(to_units({"GPU": 1})) is None
    assert resources.missing(to_units({"GPU": 1})) == {"GPU": 5000}
    resources.release(both)
    assert taken(resources, GPU=1).gpu_ids == [1]


def test_fractions_that_sum_up_do_not_make_a_gpu() -> None:
    resources = node(GPU=2)
    taken(resources, GPU=0.6)
    taken(resources, GPU=0.6)
    assert to_amounts(resources.available) == {"GPU": 0.8}
    assert resources.acquire(to_units({"GPU": 0.6})) is None
    assert resources.missing(to_units({"GPU": 0.6})) == {"GPU": 6000}


def test_lent_cpus_come_back_even_below_zero() -> None:
    resources = node(CPU=1)
    waiting = taken(resources, CPU=1)
    assert resources.lend_cpu(waiting)
    assert not resources.lend_cpu(waiting)
    other = taken(resources, CPU=1)
    resources.reclaim_cpu(waiting)
    assert to_amounts(resources.available) == {"CPU": -1.0}
    assert resources.acquire(to_units({"CPU": 0.1})) is None
    resources.release(other)
    resources.release(waiting)
    assert to_amounts(resources.available) == {"CPU": 1.0}


def test_release_while_lent_gives_back_once() -> None:
    resources = node(CPU=1)
    allocation = taken(resources, CPU=1)
    resources.lend_cpu(allocation)
    resources.release(allocation)
    assert to_amounts(resources.available) == {"CPU": 1.0}


def test_shrink_keeps_what_is_needed() -> None:
    resources = node(CPU=2, GPU=2)
    allocation = taken(resources, CPU=1, GPU=2)
    resources.shrink(allocation, to_units({"GPU": 1}))
    assert allocation.gpu_ids == [0]
    assert to_amounts(resources.available) == {"CPU": 2.0, "GPU": 1.0}
    resources.validate([allocation])


def test_a_bundle_gives_its_rest_back_to_the_node() -> None:
    resources = node(CPU=4, GPU=1)
    bundle = taken(resources, CPU=2, GPU=1)
    inside = ResourceSet(bundle.units, bundle.gpus)
    lease = taken(inside, CPU=1, GPU=0.5)
    resources.release_rest(inside)
    assert to_amounts(resources.available) == {"CPU": 3.0, "GPU": 0.5}
    resources.validate([lease])


@pytest.mark.parametrize(
    ("need", "is_feasible"),
    [({"CPU": 2}, True), ({"CPU": 3}, False), ({"y": 1}, False)],
)
def test_feasible_means_by_total(need: dict[str, float], is_feasible: bool) -> None:
    resources = node(CPU=2)
    taken(resources, CPU=2)
    assert resources.is_feasible(to_units(need)) is is_feasible


NEEDS = st.fixed_dictionaries(
    {},
    optional={
        "CPU": st.sampled_from([0.1, 0.5, 1, 2]),
        "GPU": st.sampled_from([0.25, 0.5, 0.7, 1, 2]),
        "x": st.sampled_from([0.3, 1]),
    },
)
ACTIONS = st.sampled_from(["take", "take", "give", "lend", "reclaim", "shrink"])


@given(st.lists(st.tuples(ACTIONS, NEEDS, st.integers(0, 99)), max_size=40))
def test_books_always_balance(steps: list[tuple[str, dict[str, float], int]]) -> None:
    resources = node(CPU=3, GPU=2, x=1)
    held: list[Allocation] = []
    for action, need, which in steps:
        if action == "take":
            missing = resources.missing(to_units(need))
            allocation = resources.acquire(to_units(need))
            assert (allocation is None) == bool(missing)
            if allocation is not None:
                held.append(allocation)
        elif held:
            one = held[which % len(held)]
            if action == "give":
                held.remove(one)
                resources.release(one)
            elif action == "lend":
                resources.lend_cpu(one)
            elif action == "reclaim":
                resources.reclaim_cpu(one)
            else:
                resources.shrink(one, to_units(need))
        resources.validate(held)
