"""Calls that wait give their CPUs back; actors and GPUs are kept."""

from __future__ import annotations

import time

import pytest

import ray

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
def leaf(value=1):
    return value


@ray.remote
def tree(depth, width=2):
    if depth == 0:
        return 1
    return sum(ray.get([tree.remote(depth - 1, width) for _ in range(width)]))


@ray.remote
class Plain:
    def leaf(self):
        return 1

    def ask_task(self):
        return ray.get(leaf.remote())

    def ask_tree(self, depth):
        return ray.get(tree.remote(depth))


def test_a_chain_deeper_than_the_cpus():
    assert ray.get(tree.remote(10, 1), timeout=50) == 1


def test_a_tree_deeper_and_wider_than_the_cpus():
    assert ray.get(tree.remote(4, 2), timeout=50) == 16


def test_parents_that_take_all_cpus_wait_for_children_that_do():
    @ray.remote(num_cpus=4)
    def child():
        return 1

    @ray.remote(num_cpus=4)
    def parent():
        return ray.get(child.remote()) + 1

    assert ray.get([parent.remote() for _ in range(3)], timeout=50) == [2, 2, 2]


def test_a_wait_gives_the_cpus_back():
    @ray.remote(num_cpus=4)
    def parent():
        ready, _ = ray.wait([leaf.options(num_cpus=4).remote()])
        return ray.get(ready[0])

    assert ray.get(parent.remote(), timeout=30) == 1


def test_a_wait_with_a_limit_gives_the_cpus_back():
    @ray.remote(num_cpus=4)
    def parent():
        ready, _ = ray.wait([leaf.options(num_cpus=4).remote()], timeout=20)
        return len(ready)

    assert ray.get(parent.remote(), timeout=30) == 1


def test_a_get_with_a_limit_gives_the_cpus_back():
    @ray.remote(num_cpus=4)
    def parent():
        return ray.get(leaf.options(num_cpus=4).remote(), timeout=20)

    assert ray.get(parent.remote(), timeout=30) == 1


def test_the_next_of_a_generator_gives_the_cpus_back():
    @ray.remote(num_cpus=4)
    def numbers():
        for number in range(3):
            yield number

    @ray.remote(num_cpus=4)
    def parent():
        return [ray.get(ref) for ref in numbers.remote()]

    assert ray.get(parent.remote(), timeout=30) == [0, 1, 2]


def test_actors_without_cpus_call_tasks_that_take_all():
    actors = [Plain.options(num_cpus=0).remote() for _ in range(3)]
    refs = [actor.ask_tree.remote(3) for actor in actors]
    assert ray.get(refs, timeout=50) == [8, 8, 8]


def test_an_actor_with_cpus_keeps_them_while_it_waits():
    actor = Plain.options(num_cpus=4).remote()
    ref = actor.ask_task.remote()
    assert ray.wait([ref], timeout=0.5)[0] == []
    ray.kill(actor)


def test_a_threaded_actor_without_cpus_waits_in_all_its_threads():
    actor = Plain.options(num_cpus=0, max_concurrency=4).remote()
    refs = [actor.ask_tree.remote(2) for _ in range(8)]
    assert ray.get(refs, timeout=50) == [4] * 8


def test_tasks_that_wait_for_actors_that_wait_for_tasks():
    @ray.remote
    def outer(actor, depth):
        if depth == 0:
            return ray.get(actor.ask_task.remote())
        return ray.get(outer.remote(actor, depth - 1))

    actor = Plain.options(num_cpus=0).remote()
    refs = [outer.remote(actor, 3) for _ in range(4)]
    assert ray.get(refs, timeout=50) == [1] * 4


def test_an_async_actor_that_awaits_keeps_nobody_waiting():
    @ray.remote(num_cpus=0)
    class Waiter:
        async def ask(self):
            return await tree.remote(2)

    actor = Waiter.remote()
    assert ray.get([actor.ask.remote() for _ in range(4)], timeout=50) == [4] * 4


def test_the_cpus_come_back_to_the_books(wait_until):
    assert ray.get(tree.remote(3, 2), timeout=50) == 8
    wait_until(lambda: ray.available_resources().get("CPU") == 4)


def test_a_call_that_goes_on_is_counted_again(wait_until):
    @ray.remote(num_cpus=4)
    def parent(gate):
        ray.get(leaf.options(num_cpus=4).remote())
        ray.get(gate.reached.remote())
        time.sleep(1.0)  # computes: nobody else may
        return time.time()

    @ray.remote
    class Mark:
        def reached(self):
            self.is_set = True

        def seen(self):
            return getattr(self, "is_set", False)

    gate = Mark.options(num_cpus=0).remote()
    first = parent.remote(gate)
    wait_until(lambda: ray.get(gate.seen.remote()))
    time.sleep(0.1)

    @ray.remote
    def late():
        return time.time()

    began = ray.get(late.remote(), timeout=30)
    assert began >= ray.get(first, timeout=30) - 0.05


def test_a_parent_that_fails_after_it_waited_gives_all_back(wait_until):
    @ray.remote(num_cpus=4, max_retries=0)
    def parent():
        ray.get(leaf.options(num_cpus=4).remote())
        raise ValueError("no")

    with pytest.raises(ValueError):
        ray.get(parent.remote(), timeout=30)
    wait_until(lambda: ray.available_resources().get("CPU") == 4)


def test_requests_for_cpus_pass_one_that_waits_for_a_resource():
    ref = leaf.options(resources={"unicorn": 1}).remote()
    begun = time.monotonic()
    assert ray.get([leaf.remote() for _ in range(20)], timeout=30) == [1] * 20
    assert time.monotonic() - begun < 10
    ray.cancel(ref)
