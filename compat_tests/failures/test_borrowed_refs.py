"""References that outlive the tasks, actors and variables that held them."""

from __future__ import annotations

import itertools
import os
import pickle
import signal

import numpy as np
import pytest

import ray
from failures.witness import DEADLINE_S, is_running, note_run, wait_for_file
from ray import cloudpickle
from ray.exceptions import OwnerDiedError

pytestmark = pytest.mark.usefixtures("ray_start")

SIZE = 300_000
ORDERS = list(itertools.permutations(["inner", "outer", "holder"]))


@ray.remote
def echo(value):
    return value


@ray.remote
def total(refs):
    return int(ray.get(refs[0], timeout=DEADLINE_S).sum())


@ray.remote
class Holder:
    """Keeps references in its state."""

    def __init__(self, refs=None):
        self.refs = refs

    def hold(self, refs):
        self.refs = refs

    def drop(self):
        self.refs = None

    def give(self):
        return self.refs

    def total(self):
        return int(ray.get(self.refs[0], timeout=DEADLINE_S).sum())

    def pid(self):
        return os.getpid()


@pytest.fixture
def kill(wait_until):
    """Return a function that kills an actor's process and waits for its end."""

    def end(actor):
        pid = ray.get(actor.pid.remote())
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_running(pid))

    return end


def put_array():
    return ray.put(np.ones(SIZE))


@pytest.mark.parametrize("order", ORDERS)
def test_any_last_holder_keeps_the_object(order):
    """`inner` is held by a variable, by an object and by an actor."""
    holder = Holder.remote()
    refs = {"inner": put_array()}
    refs["outer"] = ray.put([refs["inner"]])
    ray.get(holder.hold.remote([refs["inner"]]))
    for name in order[:2]:
        if name == "holder":
            ray.get(holder.drop.remote())
        else:
            del refs[name]
    last = {
        "inner": lambda: int(ray.get(refs["inner"]).sum()),
        "outer": lambda: int(ray.get(ray.get(refs["outer"])[0]).sum()),
        "holder": lambda: ray.get(holder.total.remote(), timeout=DEADLINE_S),
    }
    assert last[order[2]]() == SIZE


def test_reference_handed_from_actor_to_actor():
    chain = [Holder.remote() for _ in range(3)]
    ray.get(chain[0].hold.remote([put_array()]))
    for giver, taker in itertools.pairwise(chain):
        ray.get(taker.hold.remote(ray.get(giver.give.remote())))
        ray.get(giver.drop.remote())
    assert ray.get(chain[-1].total.remote(), timeout=DEADLINE_S) == SIZE


def test_reference_handed_on_without_the_drivers_help():
    @ray.remote
    def move(giver, taker):
        ray.get(taker.hold.remote(ray.get(giver.give.remote())))
        ray.get(giver.drop.remote())

    first, second = Holder.remote([put_array()]), Holder.remote()
    ray.get(move.remote(first, second), timeout=DEADLINE_S)
    assert ray.get(second.total.remote(), timeout=DEADLINE_S) == SIZE


def test_reference_returned_by_the_borrower_that_dies_then(kill):
    holder = Holder.remote([put_array()])
    (ref,) = ray.get(holder.give.remote())
    kill(holder)
    assert ray.get(ref, timeout=DEADLINE_S).sum() == SIZE


def test_reference_returned_and_never_read_by_the_driver(kill):
    holder = Holder.remote([put_array()])
    box = holder.give.remote()
    ray.wait([box], timeout=DEADLINE_S)
    kill(holder)
    assert ray.get(total.remote(ray.get(box)), timeout=DEADLINE_S) == SIZE


def test_reference_in_a_running_task_outlives_the_variable(tmp_path):
    @ray.remote
    def late(refs, path):
        wait_for_file(path)
        return int(ray.get(refs[0], timeout=DEADLINE_S).sum())

    ref = put_array()
    result = late.remote([ref], tmp_path / "go")
    del ref
    (tmp_path / "go").touch()
    assert ray.get(result, timeout=DEADLINE_S) == SIZE


def test_reference_in_a_queued_task_outlives_the_variable(tmp_path):
    @ray.remote
    def late(refs, gate):
        return int(ray.get(refs[0], timeout=DEADLINE_S).sum())

    @ray.remote
    def gate(path):
        wait_for_file(path)

    ref = put_array()
    result = late.remote([ref], gate.remote(tmp_path / "go"))
    del ref
    (tmp_path / "go").touch()
    assert ray.get(result, timeout=DEADLINE_S) == SIZE


def test_reference_in_a_closure_outlives_the_variable():
    def make():
        ref = put_array()

        @ray.remote
        def read():
            return int(ray.get(ref).sum())

        return read

    read = make()
    assert ray.get([read.remote(), read.remote()], timeout=DEADLINE_S) == [SIZE] * 2


def test_reference_in_the_class_of_an_actor():
    def make():
        ref = put_array()

        @ray.remote
        class Reader:
            captured = ref

            def read(self):
                return int(ray.get(self.captured).sum())

        return Reader.remote()

    assert ray.get(make().read.remote(), timeout=DEADLINE_S) == SIZE


def restarted_totals(holder, kill):
    """What an actor reads in three lives from a reference of its constructor."""
    for _ in range(2):
        yield ray.get(holder.total.remote(), timeout=DEADLINE_S)
        kill(holder)
    yield ray.get(holder.total.remote(), timeout=DEADLINE_S)


def test_constructor_references_work_after_a_restart(kill):
    ref = put_array()
    holder = Holder.options(max_restarts=2, max_task_retries=9).remote([ref])
    assert list(restarted_totals(holder, kill)) == [SIZE] * 3
    assert ray.get(ref).sum() == SIZE


@pytest.mark.differs("constructor-references-after-a-restart")
def test_constructor_references_are_kept_for_a_restart(kill):
    holder = Holder.options(max_restarts=2, max_task_retries=9).remote([put_array()])
    assert list(restarted_totals(holder, kill)) == [SIZE] * 3


def test_top_level_constructor_argument_survives_a_restart(kill):
    @ray.remote(max_restarts=1, max_task_retries=5)
    class Sums:
        def __init__(self, array):
            self.sum = int(array.sum())

        def get(self):
            return self.sum

        def pid(self):
            return os.getpid()

    sums = Sums.remote(put_array())
    kill(sums)
    assert ray.get(sums.get.remote(), timeout=DEADLINE_S) == SIZE


def test_reference_held_only_by_a_killed_actors_state_is_harmless(kill):
    holder = Holder.remote()
    ref = put_array()
    ray.get(holder.hold.remote([ref]))
    kill(holder)
    assert ray.get(ref, timeout=DEADLINE_S).sum() == SIZE
    del ref
    assert ray.get(put_array(), timeout=DEADLINE_S).sum() == SIZE


def test_borrower_killed_while_it_reads(tmp_path, wait_until):
    @ray.remote(max_retries=1)
    def read(refs, path):
        array = ray.get(refs[0])
        if note_run(path) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return int(array.sum())

    ref = put_array()
    result = read.remote([ref], tmp_path / "runs")
    assert ray.get(result, timeout=DEADLINE_S) == SIZE
    assert ray.get(ref, timeout=DEADLINE_S).sum() == SIZE


def test_object_made_three_tasks_deep():
    @ray.remote
    def make(depth):
        if depth == 0:
            return [put_array()]
        return ray.get(make.remote(depth - 1))

    (ref,) = ray.get(make.remote(3), timeout=DEADLINE_S)
    assert ray.get(ref, timeout=DEADLINE_S).sum() == SIZE


def test_result_reference_of_a_child_outlives_the_parent():
    @ray.remote
    def child():
        return np.ones(SIZE)

    @ray.remote
    def parent():
        return [child.remote() for _ in range(2)]

    refs = ray.get(parent.remote(), timeout=DEADLINE_S)
    assert [int(a.sum()) for a in ray.get(refs, timeout=DEADLINE_S)] == [SIZE] * 2


def test_reference_yielded_by_a_generator():
    @ray.remote
    def stream():
        for i in range(3):
            yield [ray.put(np.full(SIZE, i))]

    boxes = [ray.get(item, timeout=DEADLINE_S) for item in stream.remote()]
    sums = [int(ray.get(ref, timeout=DEADLINE_S).sum()) for (ref,) in boxes]
    assert sums == [0, SIZE, 2 * SIZE]


def test_reference_inside_an_exception():
    class Carrier(Exception):
        pass

    @ray.remote
    def fail(refs):
        raise Carrier(refs)

    ref = put_array()
    with pytest.raises(Carrier) as caught:
        ray.get(fail.remote([ref]), timeout=DEADLINE_S)
    ((again,),) = caught.value.cause.args
    assert again == ref
    assert ray.get(again, timeout=DEADLINE_S).sum() == SIZE


def test_reference_in_an_attribute_of_an_object():
    class Box:
        def __init__(self, ref):
            self.ref = ref

        def read(self):
            return int(ray.get(self.ref).sum())

    box = Box(put_array())
    copy = ray.get(echo.remote(box), timeout=DEADLINE_S)
    del box
    assert copy.read() == SIZE


def test_argument_keeps_a_whole_nest_of_objects():
    ref = put_array()
    for _ in range(4):
        ref = ray.put([ref])

    @ray.remote
    def unwrap(refs):
        (value,) = refs
        while isinstance(value, ray.ObjectRef):
            value = ray.get(value)
            if isinstance(value, list):
                (value,) = value
        return int(value.sum())

    result = unwrap.remote([ref])
    del ref
    assert ray.get(result, timeout=DEADLINE_S) == SIZE


@pytest.mark.parametrize("size", [5, SIZE])
def test_pickled_reference_keeps_the_object(size):
    data = cloudpickle.dumps(ray.put(np.ones(size)))
    assert ray.get(cloudpickle.loads(data), timeout=DEADLINE_S).sum() == size


def test_reference_of_plain_pickle_works_while_another_one_lives():
    ref = put_array()
    again = pickle.loads(pickle.dumps(ref))
    assert again == ref
    assert ray.get(total.remote([again]), timeout=DEADLINE_S) == SIZE


def test_pickled_reference_of_a_result_that_is_not_ready(tmp_path):
    @ray.remote
    def late(path):
        wait_for_file(path)
        return np.ones(SIZE)

    data = cloudpickle.dumps(late.remote(tmp_path / "go"))
    (tmp_path / "go").touch()
    ref = cloudpickle.loads(data)
    assert ray.get(ref, timeout=DEADLINE_S).sum() == SIZE


def test_pickled_reference_is_read_in_a_task():
    @ray.remote
    def read(data):
        return int(ray.get(cloudpickle.loads(data), timeout=DEADLINE_S).sum())

    data = cloudpickle.dumps(put_array())
    assert ray.get(read.remote(data), timeout=DEADLINE_S) == SIZE
    assert ray.get(read.remote(data), timeout=DEADLINE_S) == SIZE


def test_pickled_reference_travels_through_a_file(tmp_path):
    @ray.remote
    class Reader:
        def read(self, path):
            return int(ray.get(pickle.loads(path.read_bytes())).sum())

    path = tmp_path / "ref"
    path.write_bytes(cloudpickle.dumps(put_array()))
    assert ray.get(Reader.remote().read.remote(path), timeout=DEADLINE_S) == SIZE


def test_pickled_reference_whose_owner_died(kill, wait_until):
    @ray.remote
    class Owner:
        def make(self):
            return cloudpickle.dumps(put_array())

        def pid(self):
            return os.getpid()

    owner = Owner.remote()
    data = ray.get(owner.make.remote())
    assert ray.get(cloudpickle.loads(data), timeout=DEADLINE_S).sum() == SIZE
    kill(owner)

    def lost():
        try:
            ray.get(cloudpickle.loads(data), timeout=DEADLINE_S)
        except OwnerDiedError:
            return True
        return False

    wait_until(lost)


def test_references_dropped_while_many_tasks_use_them():
    refs = [ray.put(np.full(50_000, i)) for i in range(20)]
    results = [total.remote([ref]) for ref in refs]
    while refs:
        refs.pop(len(refs) // 2)
    assert ray.get(results, timeout=DEADLINE_S) == [50_000 * i for i in range(20)]
