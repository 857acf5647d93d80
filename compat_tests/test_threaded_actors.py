"""Actors with ``max_concurrency`` above one run their methods in threads."""

from __future__ import annotations

import os
import threading
import time

import pytest

import ray
from ray.exceptions import ActorDiedError

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote(max_concurrency=3)
class Pool:
    def __init__(self):
        self.barrier = threading.Barrier(3)
        self.event = threading.Event()
        self.lock = threading.Lock()
        self.inside = 0
        self.most_inside = 0
        self.total = 0

    def meet(self):
        self.barrier.wait(20)
        return threading.get_ident()

    def hold(self):
        with self.lock:
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        self.event.wait(20)
        with self.lock:
            self.inside -= 1
        return "held"

    def open(self):
        self.event.set()

    def stats(self):
        return self.inside, self.most_inside

    def add(self, amount):
        with self.lock:
            self.total += amount
            return self.total

    def fail(self):
        raise ValueError("in a thread")

    def is_main_thread(self):
        return threading.current_thread() is threading.main_thread()

    def pid(self):
        return os.getpid()

    def nested(self):
        return ray.get(seven.remote()) + ray.get(ray.put(1))

    def task_id(self):
        self.barrier.wait(20)
        return ray.get_runtime_context().get_task_id()

    def leave(self):
        ray.actor.exit_actor()

    def brief(self):
        with self.lock:
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        time.sleep(0.01)
        with self.lock:
            self.inside -= 1


@ray.remote
def seven():
    return 7


@pytest.fixture
def pool():
    return Pool.remote()


def test_methods_really_run_at_the_same_time(pool):
    threads = ray.get([pool.meet.remote() for _ in range(3)])
    assert len(set(threads)) == 3


def test_no_more_than_max_concurrency_run(pool):
    ray.get([pool.brief.remote() for _ in range(20)])
    assert 1 < ray.get(pool.stats.remote())[1] <= 3


def test_queued_call_waits_for_a_free_thread(pool, wait_until):
    held = [pool.hold.remote() for _ in range(2)]
    wait_until(lambda: ray.get(pool.stats.remote())[0] == 2)
    ray.get(pool.open.remote())
    assert ray.get(held) == ["held", "held"]


def test_all_threads_share_the_instance(pool):
    ray.get([pool.add.remote(1) for _ in range(50)])
    assert ray.get(pool.add.remote(0)) == 50


def test_error_in_one_thread_leaves_the_others(pool, wait_until):
    held = pool.hold.remote()
    wait_until(lambda: ray.get(pool.stats.remote())[0] == 1)
    with pytest.raises(ValueError, match="in a thread"):
        ray.get(pool.fail.remote())
    ray.get(pool.open.remote())
    assert ray.get(held) == "held"


def test_methods_do_not_run_on_the_main_thread(pool):
    assert ray.get(pool.is_main_thread.remote()) is False


def test_one_process(pool):
    assert len(set(ray.get([pool.pid.remote() for _ in range(6)]))) == 1


def test_tasks_and_objects_inside_threads(pool):
    assert ray.get([pool.nested.remote() for _ in range(3)]) == [8] * 3


def test_each_thread_sees_its_own_task_id(pool):
    refs = [pool.task_id.remote() for _ in range(3)]
    values = ray.get(refs)
    assert [ref.task_id().hex() for ref in refs] == values
    assert len(set(values)) == 3


def test_exit_actor_in_a_thread(pool):
    with pytest.raises(ActorDiedError, match="INTENDED_USER_EXIT"):
        ray.get(pool.leave.remote())


def test_max_concurrency_from_options():
    @ray.remote
    class Pair:
        def __init__(self):
            self.barrier = threading.Barrier(2)

        def meet(self):
            return self.barrier.wait(20)

    pair = Pair.options(max_concurrency=2).remote()
    assert sorted(ray.get([pair.meet.remote() for _ in range(2)])) == [0, 1]


def test_default_actor_runs_one_at_a_time():
    @ray.remote
    class Alone:
        def __init__(self):
            self.inside = 0

        def enter(self):
            self.inside += 1
            seen = self.inside
            time.sleep(0.005)
            self.inside -= 1
            return seen

    alone = Alone.remote()
    assert ray.get([alone.enter.remote() for _ in range(10)]) == [1] * 10


def test_user_threads_may_use_ray():
    @ray.remote
    class Starts:
        def run(self):
            out = []
            thread = threading.Thread(
                target=lambda: out.append(ray.get(seven.remote()))
            )
            thread.start()
            thread.join()
            return out

    assert ray.get(Starts.remote().run.remote()) == [7]


def test_threads_of_the_driver_share_a_handle(pool):
    out = []

    def run():
        out.append(ray.get(pool.add.remote(1)))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(out) == [1, 2, 3, 4]
