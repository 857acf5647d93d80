"""Amounts: what calls and actors hold, what is refused, and that nothing is lost."""

from __future__ import annotations

import pytest

import ray


@ray.remote
def assigned():
    return ray.get_runtime_context().get_assigned_resources()


@ray.remote
class Member:
    def assigned(self):
        return ray.get_runtime_context().get_assigned_resources()


@ray.remote
class Counter:
    """How many are inside at once, at most."""

    def __init__(self):
        self.inside = self.most = 0

    def enter(self):
        self.inside += 1
        self.most = max(self.most, self.inside)

    def leave(self):
        self.inside -= 1

    def seen(self):
        return self.most


@pytest.fixture(scope="module")
def cluster(shared_cluster):
    shared_cluster.stop()
    ray.init(
        num_cpus=4,
        resources={"r": 2, "tiny": 1},
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
    )
    yield
    shared_cluster.stop()


def free(kind):
    return ray.available_resources().get(kind, 0)


@pytest.mark.parametrize(
    ("options", "held"),
    [
        ({}, {"CPU": 1.0}),
        ({"num_cpus": 0}, {}),
        ({"num_cpus": 0.5}, {"CPU": 0.5}),
        ({"num_cpus": 1.5}, {"CPU": 1.5}),
        ({"num_cpus": 0.0001}, {"CPU": 0.0001}),
        ({"num_cpus": 0.00011}, {"CPU": 0.0001}),
        ({"memory": 1000}, {"CPU": 1.0, "memory": 1000.0}),
        ({"memory": 1000.5}, {"CPU": 1.0, "memory": 1000.0}),
        ({"resources": {"r": 1}}, {"CPU": 1.0, "r": 1.0}),
        ({"resources": {"r": 0.3}}, {"CPU": 1.0, "r": 0.3}),
        ({"resources": {"r": 0}}, {"CPU": 1.0}),
    ],
)
def test_what_a_task_holds(cluster, options, held):
    assert ray.get(assigned.options(**options).remote()) == held


@pytest.mark.parametrize(
    ("options", "held"),
    [
        ({}, {}),
        ({"num_cpus": 0}, {}),
        ({"num_cpus": 1}, {"CPU": 1.0}),
        ({"num_cpus": 2.5}, {"CPU": 2.5}),
        ({"resources": {"r": 1}}, {"CPU": 1.0, "r": 1.0}),
        ({"resources": {"r": 1}, "num_cpus": 0}, {"r": 1.0}),
        ({"resources": {"r": 0}}, {"CPU": 1.0}),
        ({"resources": {}}, {}),
        ({"memory": 100}, {"memory": 100.0}),
        ({"num_gpus": 0}, {"CPU": 1.0}),
    ],
)
def test_what_an_actor_holds(cluster, options, held, wait_until):
    wait_until(lambda: free("CPU") == 4)
    member = Member.options(**options).remote()
    assert ray.get(member.assigned.remote(), timeout=30) == held
    wait_until(lambda: free("CPU") == 4 - held.get("CPU", 0))
    ray.kill(member)
    wait_until(lambda: free("CPU") == 4)


@pytest.mark.parametrize(
    "options",
    [
        {"num_cpus": -1},
        {"num_gpus": -0.5},
        {"memory": -1},
        {"num_cpus": 0.00001},
        {"resources": {"r": 0.00001}},
        {"resources": {"r": -1}},
        {"resources": {"CPU": 1}},
        {"resources": {"GPU": 1}},
    ],
)
def test_amounts_that_are_refused(options):
    with pytest.raises(ValueError):
        assigned.options(**options)


def test_an_actor_without_cpus_needs_one_to_be_placed(cluster, wait_until):
    wait_until(lambda: free("CPU") == 4)
    holder = Member.options(num_cpus=4).remote()
    ray.get(holder.assigned.remote())
    plain = Member.remote()
    ref = plain.assigned.remote()
    assert ray.wait([ref], timeout=0.3)[0] == []
    zero = Member.options(num_cpus=0).remote()
    assert ray.get(zero.assigned.remote(), timeout=30) == {}
    ray.kill(holder)
    assert ray.get(ref, timeout=30) == {}


def test_tasks_without_cpus_run_beside_a_full_node(cluster, wait_until):
    holder = Member.options(num_cpus=4).remote()
    ray.get(holder.assigned.remote())
    assert ray.get(assigned.options(num_cpus=0).remote(), timeout=30) == {}
    ray.kill(holder)
    wait_until(lambda: free("CPU") == 4)


@pytest.mark.parametrize(("amount", "most"), [(1, 2), (0.4, 5), (2, 1)])
def test_amounts_bound_how_many_run_at_once(cluster, amount, most, wait_until):
    @ray.remote(num_cpus=0, resources={"r": amount})
    def visit(counter):
        import time

        ray.get(counter.enter.remote())
        time.sleep(0.1)
        ray.get(counter.leave.remote())

    counter = Counter.options(num_cpus=0).remote()
    ray.get([visit.remote(counter) for _ in range(8)], timeout=40)
    assert 1 <= ray.get(counter.seen.remote()) <= most


def test_tenths_add_up(cluster, wait_until):
    @ray.remote(num_cpus=0.1, resources={"tiny": 0.1})
    def tenth():
        return 1

    assert sum(ray.get([tenth.remote() for _ in range(200)], timeout=50)) == 200
    wait_until(lambda: free("tiny") == 1.0)
    wait_until(lambda: free("CPU") == 4.0)


def test_a_cancelled_request_leaves_nothing_behind(cluster, wait_until):
    holder = Member.options(num_cpus=4).remote()
    ray.get(holder.assigned.remote())
    refs = [assigned.remote() for _ in range(5)]
    assert ray.wait(refs, timeout=0.2)[0] == []
    for ref in refs:
        ray.cancel(ref)
    for ref in refs:
        with pytest.raises(ray.exceptions.TaskCancelledError):
            ray.get(ref, timeout=30)
    ray.kill(holder)
    wait_until(lambda: free("CPU") == 4)
    assert ray.get(assigned.remote(), timeout=30) == {"CPU": 1.0}


def test_what_a_crash_held_is_free_again(cluster, wait_until):
    @ray.remote(max_retries=0, resources={"r": 2})
    def crash():
        import os

        os._exit(1)

    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(crash.remote(), timeout=30)
    wait_until(lambda: free("r") == 2)
    wait_until(lambda: free("CPU") == 4)
