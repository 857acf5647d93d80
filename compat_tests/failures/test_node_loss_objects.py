"""Values that cannot be rebuilt when a node dies, and those that survive."""

from __future__ import annotations

import time

import numpy as np
import pytest

import ray
from failures.placed import GET_LIMIT_S, LARGE, Keeper, filled, on, plus, total
from failures.witness import note_run, runs_in
from ray.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    ObjectLostError,
    ObjectReconstructionFailedError,
    OwnerDiedError,
    RayTaskError,
)

#: Real Ray takes seconds to start nodes and to notice their death.
pytestmark = pytest.mark.timeout(180)


def get(ref):
    return ray.get(ref, timeout=GET_LIMIT_S)


def disk(**options):
    """Options of a call that only runs on nodes with the resource ``disk``."""
    return {"num_cpus": 0, "resources": {"disk": 0.01}, **options}


def made_there(nodes, ref):
    """Wait until a value is made, without copying it here."""
    ready, _ = ray.wait([ref], timeout=GET_LIMIT_S, fetch_local=False)
    assert ready == [ref]
    return ref


@ray.remote(num_cpus=0)
def noted(path, value):
    note_run(path)
    return np.full(LARGE, float(value))


@ray.remote(num_cpus=0)
def put_there(value):
    return [ray.put(np.full(LARGE, float(value)))]


@pytest.mark.parametrize("how", ["kill", "remove"])
def test_a_value_put_by_an_actor_of_the_lost_node(nodes, how):
    node = nodes.add(resources={"disk": 1})
    keeper = Keeper.options(**disk()).remote()
    (ref,) = get(keeper.put.remote(1))
    getattr(nodes, how)(node)
    with pytest.raises(OwnerDiedError) as caught:
        get(ref)
    assert isinstance(caught.value, ObjectLostError)
    assert ref.hex() in str(caught.value)
    assert node.node_id[:8] in str(caught.value)


def test_a_value_put_by_a_task_of_the_lost_node(nodes):
    node = nodes.add(resources={"disk": 1})
    (ref,) = get(put_there.options(**disk()).remote(1))
    nodes.kill(node)
    with pytest.raises(OwnerDiedError):
        get(ref)


def test_a_value_whose_owner_died_is_ready(nodes):
    node = nodes.add(resources={"disk": 1})
    keeper = Keeper.options(**disk()).remote()
    (ref,) = get(keeper.put.remote(1))
    nodes.kill(node)
    assert ray.wait([ref], timeout=GET_LIMIT_S) == ([ref], [])


def test_a_task_that_needs_the_lost_value_fails(nodes):
    nodes.stand("a")
    node = nodes.add(resources={"disk": 1})
    keeper = Keeper.options(**disk()).remote()
    (ref,) = get(keeper.put.remote(1))
    nodes.kill(node)
    with pytest.raises(OwnerDiedError) as caught:
        get(total.options(**on("a")).remote(ref))
    assert isinstance(caught.value, RayTaskError)


def test_a_borrower_on_a_third_node_hears_of_the_owners_death(nodes):
    nodes.stand("a")
    node = nodes.add(resources={"disk": 1})
    owner = Keeper.options(**disk()).remote()
    (ref,) = get(owner.put.remote(1))
    borrower = Keeper.options(**on("a")).remote()
    get(borrower.keep.remote([ref]))
    nodes.kill(node)
    with pytest.raises(OwnerDiedError):
        get(borrower.total_kept.remote())


def test_the_result_of_a_child_task_goes_with_its_owner(nodes):
    nodes.stand("a")
    node = nodes.add(resources={"disk": 1})

    @ray.remote(**disk())
    class Owner:
        def start(self):
            return [filled.options(**on("a")).remote(1)]

    owner = Owner.remote()
    (ref,) = get(owner.start.remote())
    nodes.kill(node)
    with pytest.raises(OwnerDiedError):
        get(ref)


def test_a_get_that_waits_ends_with_the_owner(nodes, tmp_path, wait_until):
    nodes.stand("a")
    node = nodes.add(resources={"disk": 1})
    runs, gate = tmp_path / "runs", tmp_path / "gate"

    @ray.remote(**on("a"))
    def held():
        note_run(runs)
        while not gate.exists():
            time.sleep(0.02)

    @ray.remote(**disk())
    class Owner:
        def start(self):
            return [held.remote()]

    owner = Owner.remote()
    (ref,) = get(owner.start.remote())
    wait_until(lambda: runs_in(runs) == 1)
    future = ref.future()
    assert not future.done()
    nodes.kill(node)
    with pytest.raises(OwnerDiedError):
        future.result(GET_LIMIT_S)
    gate.touch()


def test_a_value_without_retries_is_not_rebuilt(nodes, tmp_path):
    node = nodes.add(resources={"disk": 1})
    runs = tmp_path / "runs"
    ref = made_there(nodes, noted.options(**disk(max_retries=0)).remote(runs, 1))
    nodes.kill(node)
    nodes.add(resources={"disk": 1})
    with pytest.raises(ObjectReconstructionFailedError) as caught:
        get(ref)
    assert ref.hex() in str(caught.value)
    assert "max_retries=0" in str(caught.value)
    assert runs_in(runs) == 1


def test_a_result_of_an_actor_is_not_rebuilt(nodes):
    node = nodes.add(resources={"disk": 1})
    keeper = Keeper.options(**disk()).remote()
    ref = made_there(nodes, keeper.filled.remote(1))
    nodes.kill(node)
    with pytest.raises((ObjectReconstructionFailedError, ActorDiedError)):
        get(ref)


def test_small_results_survive_with_their_owner(nodes):
    node = nodes.add(resources={"disk": 1})

    @ray.remote(**disk(max_retries=0))
    def small():
        return "small"

    ref = made_there(nodes, small.remote())
    nodes.kill(node)
    assert get(ref) == "small"


def test_a_value_that_was_read_here_survives(nodes, tmp_path):
    node = nodes.add(resources={"disk": 1})
    runs = tmp_path / "runs"
    ref = noted.options(**disk(max_retries=0)).remote(runs, 9)
    assert get(ref)[0] == 9
    nodes.kill(node)
    assert get(ref).sum() == 9 * LARGE
    assert get(total.options(**on("head")).remote(ref)) == 9 * LARGE
    assert runs_in(runs) == 1


def test_a_view_stays_valid_when_its_node_is_gone(nodes):
    node = nodes.add(resources={"disk": 1})
    ref = filled.options(**disk(max_retries=0)).remote(9)
    view = get(ref)
    nodes.kill(node)
    del ref
    assert view.sum() == 9 * LARGE


def test_a_value_that_was_read_on_a_third_node_survives(nodes, tmp_path):
    nodes.stand("a")
    node = nodes.add(resources={"disk": 1})
    runs = tmp_path / "runs"
    ref = noted.options(**disk()).remote(runs, 2)
    keeper = Keeper.options(**on("a")).remote()
    get(keeper.keep.remote([ref]))
    assert get(keeper.total_kept.remote()) == 2 * LARGE
    nodes.kill(node)
    assert get(ref).sum() == 2 * LARGE
    assert runs_in(runs) == 1


def test_a_value_put_by_the_driver_survives_its_readers(nodes):
    node = nodes.add(resources={"disk": 1})
    ref = ray.put(np.full(LARGE, 3.0))
    assert get(total.options(**disk()).remote(ref)) == 3 * LARGE
    nodes.kill(node)
    assert get(ref)[0] == 3
    other = nodes.add(resources={"disk": 1})
    assert get(total.options(**disk()).remote(ref)) == 3 * LARGE
    assert other.node_id != node.node_id


def test_a_lost_borrower_does_not_keep_a_value(nodes):
    node = nodes.add(resources={"disk": 1})
    borrower = Keeper.options(**disk()).remote()
    ref = ray.put(np.full(LARGE, 3.0))
    get(borrower.keep.remote([ref]))
    assert get(borrower.total_kept.remote()) == 3 * LARGE
    nodes.kill(node)
    assert get(ref)[0] == 3
    assert get(plus.options(**on("head")).remote(ref))[0] == 4


def test_get_with_timeout_while_no_node_can_rebuild(nodes):
    node = nodes.add(resources={"disk": 1})
    ref = made_there(nodes, filled.options(**disk()).remote(5))
    nodes.kill(node)
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=1)
    assert ray.wait([ref], timeout=0.3) == ([], [ref])
    nodes.add(resources={"disk": 1})
    assert get(ref)[0] == 5


def test_one_lost_value_among_good_ones(nodes):
    node = nodes.add(resources={"disk": 1})
    keeper = Keeper.options(**disk()).remote()
    (lost,) = get(keeper.put.remote(1))
    good = [ray.put(np.full(LARGE, 1.0)), filled.options(**on("head")).remote(2)]
    nodes.kill(node)
    with pytest.raises(OwnerDiedError):
        get([*good, lost])
    assert [value[0] for value in get(good)] == [1, 2]
