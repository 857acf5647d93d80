"""Values beyond the memory of the object store: spilled, restored, never lost."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest

import ray
from ray.exceptions import OutOfDiskError, RayTaskError

MB = 1 << 20
STORE = 80 * MB


@ray.remote
def make(number, size=10 * MB):
    return np.full(size, number, np.uint8)


@ray.remote
def first(value):
    return int(value[0])


@ray.remote
def count(*values):
    return sum(value.nbytes for value in values)


@pytest.fixture
def small_store(ray_fresh):
    ray_fresh(num_cpus=2, object_store_memory=STORE)


def full(number, size=10 * MB):
    return np.full(size, number, np.uint8)


def test_five_times_the_store_is_put_and_read(small_store):
    refs = [ray.put(full(i)) for i in range(40)]

    for number, ref in enumerate(refs):
        value = ray.get(ref)
        assert value[0] == value[-1] == number and value.nbytes == 10 * MB


def test_everything_is_read_at_once(small_store):
    refs = [ray.put(full(i)) for i in range(40)]

    values = ray.get(refs)

    assert [int(value[5]) for value in values] == list(range(40))
    assert [int(value[-1]) for value in values] == list(range(40))


def test_values_that_are_in_use_do_not_stop_a_put(small_store):
    held = []
    for number in range(20):
        ref = ray.put(full(number))
        held.append((ref, ray.get(ref)))

    assert [int(value[0]) for _, value in held] == list(range(20))


def test_views_stay_right_while_others_are_spilled(small_store):
    ref = ray.put(full(7))
    view = ray.get(ref)

    others = [ray.put(full(i)) for i in range(30)]

    assert (view == 7).all()
    assert ray.get(others[0])[0] == 0
    assert (view == 7).all()


def test_a_value_larger_than_the_store_is_put_and_read(small_store):
    ref = ray.put(full(3, 2 * STORE))

    value = ray.get(ref)
    assert value.nbytes == 2 * STORE and value[0] == value[-1] == 3
    assert ray.get(first.remote(ref)) == 3


def test_a_task_returns_a_value_larger_than_the_store(small_store):
    value = ray.get(make.remote(4, 2 * STORE))

    assert value.nbytes == 2 * STORE and value[-1] == 4


def test_results_beyond_the_store(small_store):
    refs = [make.remote(i) for i in range(30)]

    ready, rest = ray.wait(refs, num_returns=30, timeout=50)
    assert len(ready) == 30 and rest == []
    assert ray.get([first.remote(ref) for ref in refs]) == list(range(30))


def test_spilled_values_as_arguments(small_store):
    refs = [ray.put(full(i)) for i in range(30)]

    assert ray.get([first.remote(ref) for ref in refs]) == list(range(30))


def test_arguments_of_one_task_that_exceed_the_store(small_store):
    refs = [ray.put(full(i)) for i in range(16)]

    assert ray.get(count.remote(*refs)) == 160 * MB


def test_an_actor_keeps_more_than_the_store(small_store):
    @ray.remote
    class Keeper:
        def __init__(self):
            self.refs = []

        def add(self, number):
            self.refs.append(ray.put(full(number)))

        def total(self):
            return sum(int(ray.get(ref)[0]) for ref in self.refs)

    keeper = Keeper.remote()
    ray.get([keeper.add.remote(i) for i in range(25)])

    assert ray.get(keeper.total.remote()) == sum(range(25))


def test_wait_sees_spilled_values_as_ready(small_store):
    refs = [ray.put(full(i)) for i in range(30)]

    ready, rest = ray.wait(refs, num_returns=30, timeout=30)

    assert len(ready) == 30 and rest == []


def test_nested_references_to_spilled_values(small_store):
    inner = [ray.put(full(i)) for i in range(20)]
    outer = ray.put(inner)

    assert [int(ray.get(ref)[0]) for ref in ray.get(outer)] == list(range(20))


def test_a_spilled_value_is_read_again_and_again(small_store):
    refs = [ray.put(full(i)) for i in range(24)]

    for _ in range(3):
        assert [int(ray.get(ref)[0]) for ref in refs] == list(range(24))


def test_dropped_values_make_room(small_store):
    for number in range(60):
        ref = ray.put(full(number))
        assert ray.get(ref)[0] == number
        del ref


def test_many_values_of_mixed_sizes(small_store):
    sizes = [(i * 37 % 50 + 1) * 200_000 for i in range(60)]
    refs = [ray.put(full(i, size)) for i, size in enumerate(sizes)]

    for number in (*range(59, -1, -7), *range(0, 60, 5)):
        value = ray.get(refs[number])
        assert value.nbytes == sizes[number] and value[-1] == number


def test_spilled_values_are_copied_nowhere_by_a_slice(small_store):
    refs = [ray.put(full(i)) for i in range(20)]
    slices = [ray.get(ref)[100:200] for ref in refs]
    del refs
    gc.collect()

    more = [ray.put(full(99)) for _ in range(10)]

    assert [int(part[0]) for part in slices] == list(range(20))
    assert ray.get(more[-1])[0] == 99


def test_objects_that_are_not_arrays(small_store):
    refs = [ray.put({"number": i, "text": "x" * (4 * MB)}) for i in range(30)]

    for number, ref in enumerate(refs):
        value = ray.get(ref)
        assert value["number"] == number and len(value["text"]) == 4 * MB


def test_the_spilling_directory_is_used_and_left_empty(ray_fresh, tmp_path):
    folder = tmp_path / "spill"
    folder.mkdir()
    ray_fresh(
        num_cpus=1, object_store_memory=STORE, object_spilling_directory=str(folder)
    )
    refs = [ray.put(full(i)) for i in range(30)]
    assert any(path.is_file() for path in folder.rglob("*"))
    assert ray.get(refs[0])[0] == 0

    del refs
    ray.shutdown()
    deadline = time.monotonic() + 20
    while list(folder.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(folder.iterdir()) == []


def disk_is_full(backend):
    """Configuration of a cluster that may spill nothing."""
    if backend == "ray":
        return {"local_fs_capacity_threshold": 0.0}
    return {"spill_limit_bytes": 1}


def test_put_raises_when_the_disk_is_at_its_limit(ray_fresh, backend):
    ray_fresh(
        num_cpus=1, object_store_memory=STORE, _system_config=disk_is_full(backend)
    )
    refs = []

    with pytest.raises(OutOfDiskError):
        for number in range(20):
            refs.append(ray.put(full(number)))

    assert 5 <= len(refs) <= 8
    assert [int(ray.get(ref)[0]) for ref in refs] == list(range(len(refs)))


def test_a_task_raises_when_the_disk_is_at_its_limit(ray_fresh, backend):
    ray_fresh(
        num_cpus=1, object_store_memory=STORE, _system_config=disk_is_full(backend)
    )

    with pytest.raises(OutOfDiskError) as caught:
        ray.get(make.remote(1, 2 * STORE), timeout=40)
    assert isinstance(caught.value, RayTaskError)


def test_room_comes_back_after_the_disk_was_at_its_limit(ray_fresh, backend):
    ray_fresh(
        num_cpus=1, object_store_memory=STORE, _system_config=disk_is_full(backend)
    )
    refs = []
    with pytest.raises(OutOfDiskError):
        while True:
            refs.append(ray.put(full(len(refs))))
    del refs
    gc.collect()

    deadline = time.monotonic() + 20
    while True:
        try:
            ref = ray.put(full(1))
            break
        except OutOfDiskError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert ray.get(ref)[0] == 1


@pytest.mark.parametrize("size", [1, 75 * MB - 1])
def test_a_store_that_is_too_small_is_refused(ray_fresh, size):
    with pytest.raises(ValueError, match=r"object.store"):
        ray_fresh(num_cpus=1, object_store_memory=size)


def test_a_store_beyond_all_memory_is_refused(ray_fresh):
    with pytest.raises(ValueError, match="object_store_memory"):
        ray_fresh(num_cpus=1, object_store_memory=10**13)
