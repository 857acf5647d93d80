"""Lost values that are rebuilt by running their calls again."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest

import ray
from failures.placed import GET_LIMIT_S, LARGE, Keeper, filled, on, plus, total
from failures.witness import note_run, runs_in
from ray.exceptions import (
    GetTimeoutError,
    ObjectLostError,
    ObjectReconstructionFailedError,
)

#: Real Ray takes seconds to start nodes and to notice their death.
pytestmark = pytest.mark.timeout(180)


def get(ref):
    return ray.get(ref, timeout=GET_LIMIT_S)


def disk(**options):
    """Options of a call that only runs on nodes with the resource ``disk``."""
    return {"num_cpus": 0, "resources": {"disk": 0.01}, **options}


def made_there(*refs):
    """Wait until the values are made, without copying them here."""
    ready, pending = ray.wait(
        list(refs), num_returns=len(refs), timeout=GET_LIMIT_S, fetch_local=False
    )
    assert pending == []
    return ready


@ray.remote(num_cpus=0)
def noted(path, value, *needs):
    """Note the run and return a large array of the value plus those of `needs`."""
    note_run(path)
    return np.full(LARGE, float(value)) + sum(needs)


class Loss:
    """A node with the resource ``disk`` that is lost and replaced."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.node = nodes.add(resources={"disk": 1})

    def happen(self):
        self.nodes.kill(self.node)

    def replace(self):
        self.node = self.nodes.add(resources={"disk": 1})

    def happen_and_replace(self):
        self.happen()
        self.replace()


@pytest.fixture
def loss(nodes):
    return Loss(nodes)


def test_a_single_value(loss, tmp_path):
    runs = tmp_path / "runs"
    ref = noted.options(**disk()).remote(runs, 5)
    made_there(ref)
    assert runs_in(runs) == 1
    loss.happen_and_replace()
    assert get(ref).sum() == 5 * LARGE
    assert runs_in(runs) == 2


def test_a_value_is_rebuilt_after_a_graceful_removal(nodes, loss, tmp_path):
    runs = tmp_path / "runs"
    ref = noted.options(**disk()).remote(runs, 5)
    made_there(ref)
    nodes.remove(loss.node)
    loss.replace()
    assert get(ref).sum() == 5 * LARGE


def test_a_value_that_nobody_holds_is_not_rebuilt(loss, tmp_path):
    runs = tmp_path / "runs"
    ref = noted.options(**disk()).remote(runs, 5)
    made_there(ref)
    del ref
    loss.happen_and_replace()
    assert get(total.options(**disk()).remote(filled.remote(1))) == LARGE
    assert runs_in(runs) == 1


def test_a_chain(loss, tmp_path):
    paths = [tmp_path / str(number) for number in range(3)]
    first = noted.options(**disk()).remote(paths[0], 1)
    second = noted.options(**disk()).remote(paths[1], 10, first)
    third = noted.options(**disk()).remote(paths[2], 100, second)
    made_there(first, second, third)
    loss.happen_and_replace()
    assert get(third)[0] == 111
    assert [runs_in(path) for path in paths] == [2, 2, 2]
    assert get(first)[0] == 1
    assert [runs_in(path) for path in paths] == [2, 2, 2]


def test_a_chain_whose_first_values_were_dropped(loss, tmp_path):
    paths = [tmp_path / str(number) for number in range(3)]
    first = noted.options(**disk()).remote(paths[0], 1)
    second = noted.options(**disk()).remote(paths[1], 10, first)
    third = noted.options(**disk()).remote(paths[2], 100, second)
    made_there(third)
    del first, second
    loss.happen_and_replace()
    assert get(third)[0] == 111
    assert [runs_in(path) for path in paths] == [2, 2, 2]


def test_only_the_lost_part_of_a_chain_is_rebuilt(loss, tmp_path):
    paths = [tmp_path / str(number) for number in range(3)]
    first = noted.options(**on("head")).remote(paths[0], 1)
    second = noted.options(**disk()).remote(paths[1], 10, first)
    third = noted.options(**disk()).remote(paths[2], 100, second)
    made_there(third)
    loss.happen_and_replace()
    assert get(third)[0] == 111
    assert [runs_in(path) for path in paths] == [1, 2, 2]


def test_a_diamond(loss, tmp_path):
    paths = [tmp_path / str(number) for number in range(4)]
    source = noted.options(**disk()).remote(paths[0], 1)
    left = noted.options(**disk()).remote(paths[1], 10, source)
    right = noted.options(**disk()).remote(paths[2], 100, source)
    joined = noted.options(**disk()).remote(paths[3], 1000, left, right)
    made_there(joined)
    loss.happen_and_replace()
    assert get(joined)[0] == 1112
    assert [runs_in(path) for path in paths] == [2, 2, 2, 2]


def test_several_returns_are_rebuilt_by_one_run(loss, tmp_path):
    runs = tmp_path / "runs"

    @ray.remote(num_returns=3, **disk())
    def three():
        note_run(runs)
        return np.full(LARGE, 1.0), "small", np.full(LARGE, 3.0)

    first, second, third = three.remote()
    made_there(first, second, third)
    loss.happen_and_replace()
    values = get([first, third])
    assert [value[0] for value in values] == [1, 3]
    assert get(second) == "small"
    assert runs_in(runs) == 2


def test_values_of_a_finished_stream(loss, tmp_path):
    runs = tmp_path / "runs"

    @ray.remote(**disk())
    def stream():
        note_run(runs)
        for number in range(3):
            yield np.full(LARGE, float(number))

    refs = list(stream.remote())
    made_there(*refs)
    loss.happen_and_replace()
    assert [int(get(ref)[0]) for ref in refs] == [0, 1, 2]
    assert runs_in(runs) == 2


@pytest.mark.filterwarnings("ignore:.*dynamic")
def test_values_of_dynamic_returns(loss):
    @ray.remote(num_returns="dynamic", **disk())
    def dynamic():
        for number in range(3):
            yield np.full(LARGE, float(number))

    refs = list(get(dynamic.remote()))
    made_there(*refs)
    loss.happen_and_replace()
    assert [int(get(ref)[0]) for ref in refs] == [0, 1, 2]


def test_a_value_of_an_actor_that_restarts_and_retries(loss):
    keeper = Keeper.options(**disk(max_restarts=-1, max_task_retries=-1)).remote()
    ref = keeper.filled.remote(4)
    made_there(ref)
    loss.happen_and_replace()
    assert get(ref)[0] == 4


def test_a_value_of_an_actor_without_task_retries(loss):
    keeper = Keeper.options(**disk(max_restarts=-1)).remote()
    ref = keeper.filled.remote(4)
    made_there(ref)
    loss.happen_and_replace()
    with pytest.raises(ObjectReconstructionFailedError):
        get(ref)


def test_a_lost_value_is_an_argument(loss, nodes):
    nodes.stand("a")
    ref = filled.options(**disk()).remote(2)
    made_there(ref)
    loss.happen_and_replace()
    assert get(total.options(**on("a")).remote(ref)) == 2 * LARGE


def test_a_lost_value_is_an_argument_of_an_actor(loss, nodes):
    nodes.stand("a")
    keeper = Keeper.options(**on("a")).remote()
    ref = filled.options(**disk()).remote(2)
    made_there(ref)
    get(keeper.keep.remote([ref]))
    loss.happen_and_replace()
    assert get(keeper.total_kept.remote()) == 2 * LARGE


def test_a_lost_value_is_inside_another_value(loss, nodes):
    nodes.stand("a")
    inner = filled.options(**disk()).remote(2)
    made_there(inner)
    outer = ray.put({"inner": inner})
    del inner
    loss.happen_and_replace()

    @ray.remote(**on("a"))
    def read(mapping):
        return float(ray.get(mapping["inner"]).sum())

    assert get(read.remote(outer)) == 2 * LARGE


def test_a_chain_from_a_value_put_by_the_driver(loss):
    source = ray.put(np.full(LARGE, 7.0))
    ref = plus.options(**disk()).remote(source)
    made_there(ref)
    del source
    loss.happen_and_replace()
    assert get(ref)[0] == 8


def test_a_chain_from_a_value_whose_owner_died(loss):
    owner = Keeper.options(**disk()).remote()
    (source,) = get(owner.put.remote(1))
    ref = plus.options(**disk()).remote(source)
    made_there(ref)
    loss.happen_and_replace()
    with pytest.raises(ObjectLostError):
        get(ref)


def test_a_chain_from_a_value_without_retries(loss):
    source = filled.options(**disk(max_retries=0)).remote(1)
    ref = plus.options(**disk()).remote(source)
    made_there(ref)
    loss.happen_and_replace()
    with pytest.raises(ObjectReconstructionFailedError):
        get(ref)


def test_retries_are_used_up_by_rebuilding(loss, tmp_path):
    runs = tmp_path / "runs"
    ref = noted.options(**disk(max_retries=1)).remote(runs, 5)
    made_there(ref)
    loss.happen_and_replace()
    keeper = total.options(**disk()).remote(ref)
    assert get(keeper) == 5 * LARGE
    assert runs_in(runs) == 2
    loss.happen_and_replace()
    with pytest.raises(ObjectReconstructionFailedError) as caught:
        get(ref)
    assert ref.hex() in str(caught.value)
    assert runs_in(runs) == 2


def test_endless_retries_rebuild_again_and_again(loss, tmp_path):
    runs = tmp_path / "runs"
    ref = noted.options(**disk(max_retries=-1)).remote(runs, 5)
    made_there(ref)
    for expected in (2, 3):
        loss.happen_and_replace()
        assert get(total.options(**disk()).remote(ref)) == 5 * LARGE
        assert runs_in(runs) == expected


def test_rebuilding_waits_for_a_node(loss):
    ref = filled.options(**disk()).remote(5)
    made_there(ref)
    loss.happen()
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=1)
    future = ref.future()
    loss.replace()
    assert future.result(GET_LIMIT_S)[0] == 5


def test_many_getters_share_one_rebuilding(loss, tmp_path):
    runs = tmp_path / "runs"
    ref = noted.options(**disk()).remote(runs, 5)
    made_there(ref)
    loss.happen_and_replace()
    readers = [total.options(**on("head")).remote(ref) for _ in range(4)]
    values = []
    threads = [
        threading.Thread(target=lambda: values.append(get(ref)[0])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == [5] * 4
    assert get(readers) == [5 * LARGE] * 4
    assert runs_in(runs) == 2


def test_many_values_are_rebuilt_once_each(loss, tmp_path):
    paths = [tmp_path / str(number) for number in range(20)]
    refs = [
        noted.options(**disk()).remote(path, number)
        for number, path in enumerate(paths)
    ]
    made_there(*refs)
    loss.happen_and_replace()
    assert [int(value[0]) for value in get(refs)] == list(range(20))
    assert [runs_in(path) for path in paths] == [2] * 20


def test_values_on_other_nodes_are_not_rebuilt(loss, nodes, tmp_path):
    nodes.stand("a")
    lost, kept = tmp_path / "lost", tmp_path / "kept"
    refs = [
        noted.options(**disk()).remote(lost, 1),
        noted.options(**on("a")).remote(kept, 2),
    ]
    made_there(*refs)
    loss.happen_and_replace()
    assert [value[0] for value in get(refs)] == [1, 2]
    assert (runs_in(lost), runs_in(kept)) == (2, 1)


def test_wait_rebuilds_a_lost_value(loss):
    ref = filled.options(**disk()).remote(5)
    made_there(ref)
    loss.happen_and_replace()
    assert ray.wait([ref], timeout=GET_LIMIT_S) == ([ref], [])
    assert get(ref)[0] == 5


def test_awaiting_a_lost_value(loss):
    ref = filled.options(**disk()).remote(5)
    made_there(ref)
    loss.happen_and_replace()

    async def read():
        return (await ref)[0]

    assert asyncio.run(read()) == 5


def test_the_rebuilding_call_raises(loss, tmp_path):
    runs = tmp_path / "runs"

    @ray.remote(**disk())
    def once():
        if note_run(runs) > 1:
            raise KeyError("second run")
        return np.ones(LARGE)

    ref = once.remote()
    made_there(ref)
    loss.happen_and_replace()
    with pytest.raises(KeyError, match="second run"):
        get(ref)


def test_a_rebuilt_value_may_differ(loss, tmp_path):
    runs = tmp_path / "runs"

    @ray.remote(**disk())
    def run_number():
        return np.full(LARGE, float(note_run(runs)))

    ref = run_number.remote()
    made_there(ref)
    loss.happen_and_replace()
    assert get(ref)[0] == 2
    assert get(total.options(**disk()).remote(ref)) == 2 * LARGE


def test_a_node_is_lost_while_it_rebuilds(loss, tmp_path, wait_until):
    runs, gate = tmp_path / "runs", tmp_path / "gate"

    @ray.remote(**disk())
    def held():
        if note_run(runs) == 2:
            while not gate.exists():
                time.sleep(0.02)
        return np.full(LARGE, 6.0)

    ref = held.remote()
    made_there(ref)
    loss.happen_and_replace()
    future = ref.future()
    wait_until(lambda: runs_in(runs) == 2, timeout_s=40)
    loss.happen_and_replace()
    assert future.result(GET_LIMIT_S)[0] == 6
    assert runs_in(runs) == 3
    gate.touch()


def test_a_value_owned_by_a_worker_is_rebuilt_by_it(loss, nodes):
    nodes.stand("a")

    @ray.remote(**on("a"))
    class Owner:
        def start(self):
            self.ref = filled.options(**disk()).remote(3)
            ray.wait([self.ref], fetch_local=False)
            return [self.ref]

    owner = Owner.remote()
    (ref,) = get(owner.start.remote())
    loss.happen_and_replace()
    assert get(ref)[0] == 3


def test_a_rebuilt_call_uses_an_actor_handle(loss):
    keeper = Keeper.options(**on("head")).remote()

    @ray.remote(**disk())
    def counted(handle):
        return np.full(LARGE, float(ray.get(handle.add.remote())))

    ref = counted.remote(keeper)
    made_there(ref)
    loss.happen_and_replace()
    assert get(ref)[0] == 2


def test_a_retriable_task_whose_argument_is_lost_meanwhile(loss, tmp_path, wait_until):
    runs, gate = tmp_path / "runs", tmp_path / "gate"
    source = filled.options(**disk()).remote(2)
    made_there(source)

    @ray.remote(**disk())
    def held(array):
        note_run(runs)
        while not gate.exists():
            time.sleep(0.02)
        return float(array.sum())

    ref = held.remote(source)
    wait_until(lambda: runs_in(runs) == 1)
    loss.happen()
    gate.touch()
    loss.replace()
    assert get(ref) == 2 * LARGE
    assert runs_in(runs) == 2
