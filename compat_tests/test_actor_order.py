"""One caller's calls start in the order of submission, one at a time."""

from __future__ import annotations

import threading
import time

import pytest

import ray
from ray.exceptions import PendingCallsLimitExceeded

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
class Log:
    def __init__(self):
        self.items = []
        self.inside = 0
        self.most_inside = 0

    def add(self, item, *_):
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.items.append(item)
        self.inside -= 1
        return item

    def get(self):
        return self.items

    def most(self):
        return self.most_inside


@ray.remote(max_concurrency=2)
class Gate:
    def __init__(self):
        self.event = threading.Event()

    def wait(self, value=None):
        self.event.wait(20)
        return value

    def open(self):
        self.event.set()


@ray.remote
def late(value):
    time.sleep(0.2)
    return value


@ray.remote
def fail():
    raise ValueError("bad argument")


def test_calls_of_one_caller_run_in_order():
    log = Log.remote()
    for item in range(200):
        log.add.remote(item)
    assert ray.get(log.get.remote()) == list(range(200))


def test_calls_run_one_at_a_time():
    log = Log.remote()
    ray.get([log.add.remote(i) for i in range(50)])
    assert ray.get(log.most.remote()) == 1


def test_calls_sent_before_the_constructor_ended_keep_their_order():
    @ray.remote
    class Slow(object):  # noqa: UP004
        def __init__(self):
            time.sleep(0.2)
            self.items = []

        def add(self, item):
            self.items.append(item)

        def get(self):
            return self.items

    slow = Slow.remote()
    for item in range(20):
        slow.add.remote(item)
    assert ray.get(slow.get.remote()) == list(range(20))


def test_pending_argument_holds_back_the_later_calls():
    log = Log.remote()
    log.add.remote("first")
    log.add.remote("second", late.remote(1))
    log.add.remote("third")
    assert ray.get(log.get.remote()) == ["first", "second", "third"]


def test_pending_arguments_that_finish_in_another_order():
    gate, log = Gate.remote(), Log.remote()
    log.add.remote("a", gate.wait.remote())
    log.add.remote("b", ray.put(1))
    last = log.add.remote("c")
    assert ray.wait([last], timeout=0.1) == ([], [last])
    gate.open.remote()
    ray.get(last)
    assert ray.get(log.get.remote()) == ["a", "b", "c"]


def test_failed_argument_skips_its_call_only():
    log = Log.remote()
    log.add.remote(1)
    skipped = log.add.remote(2, fail.remote())
    log.add.remote(3)
    assert ray.get(log.get.remote()) == [1, 3]
    with pytest.raises(ValueError, match="bad argument"):
        ray.get(skipped)


def test_calls_through_two_handles_of_one_process_keep_order():
    log = Log.remote()
    again = ray.get(ray.put(log))
    for item in range(20):
        (log if item % 2 else again).add.remote(item)
    assert ray.get(log.get.remote()) == list(range(20))


def test_each_caller_keeps_its_own_order():
    @ray.remote
    def fill(log, name):
        refs = [log.add.remote((name, i)) for i in range(30)]
        ray.get(refs)

    log = Log.remote()
    ray.get([fill.remote(log, name) for name in ("x", "y")])
    items = ray.get(log.get.remote())
    assert len(items) == 60
    for name in ("x", "y"):
        assert [i for n, i in items if n == name] == list(range(30))


def test_calls_after_the_task_of_another_caller_finished_come_later():
    @ray.remote
    def first(log):
        ray.get(log.add.remote("task"))

    log = Log.remote()
    ray.get(first.remote(log))
    ray.get(log.add.remote("driver"))
    assert ray.get(log.get.remote()) == ["task", "driver"]


def test_actor_calling_itself_later_through_its_handle():
    @ray.remote
    class Again:
        def __init__(self):
            self.items = []

        def start(self):
            me = ray.get_runtime_context().current_actor
            self.items.append("start")
            self.ref = me.later.remote()
            self.items.append("end")

        def later(self):
            self.items.append("later")

        def get(self):
            return self.items

    actor = Again.remote()
    ray.get(actor.start.remote())

    def items():
        return ray.get(actor.get.remote())

    for _ in range(200):
        if len(items()) == 3:
            break
    assert items() == ["start", "end", "later"]


def test_too_many_pending_calls_are_refused_at_the_call():
    gate = Gate.options(max_concurrency=1, max_pending_calls=3).remote()
    refs = []
    with pytest.raises(PendingCallsLimitExceeded):
        for i in range(50):
            refs.append(gate.wait.remote(i))
    assert len(refs) == 3
    ray.kill(gate)


def test_room_comes_back_when_pending_calls_finish():
    log = Log.options(max_pending_calls=2).remote()
    for item in range(10):
        ray.get(log.add.remote(item))
    assert ray.get(log.get.remote()) == list(range(10))


def test_pending_limit_counts_each_caller():
    @ray.remote
    def two_calls(log):
        return ray.get([log.add.remote(i) for i in range(2)])

    log = Log.options(max_pending_calls=2).remote()
    assert ray.get([two_calls.remote(log) for _ in range(2)]) == [[0, 1]] * 2
