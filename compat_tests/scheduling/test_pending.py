"""What waits for resources: it stays pending, gives way to what fits, and can end.

One session with 2 CPUs and 2 of a resource of its own is shared by the module.
"""

from __future__ import annotations

import time

import pytest

import ray
from ray.exceptions import GetTimeoutError, TaskCancelledError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

#: Long enough for anything that could start to have started.
SHORT_S = 0.5


@pytest.fixture(scope="module")
def session(shared_cluster):
    shared_cluster.stop()
    ray.init(
        num_cpus=2,
        resources={"slot": 2},
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


pytestmark = pytest.mark.usefixtures("session")


@ray.remote(num_cpus=0)
class Gate:
    def __init__(self):
        self.is_open = False

    def open(self):
        self.is_open = True

    def look(self):
        return self.is_open


@ray.remote(num_cpus=0)
def hold(gate):
    while not ray.get(gate.look.remote()):
        time.sleep(0.02)
    return "held"


@ray.remote(num_cpus=0)
def one(*_):
    return 1


@ray.remote(num_cpus=0)
class Actor:
    def one(self):
        return 1


def held(gate, **options):
    """A call that holds resources until the gate is open, and that runs."""
    ref = hold.options(**options).remote(gate)
    name = next(iter(options["resources"]))
    amount = options["resources"][name]
    deadline = time.monotonic() + 20
    while ray.available_resources().get(name, 0) > 2 - amount:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return ref


def is_pending(ref):
    return ray.wait([ref], timeout=SHORT_S) == ([], [ref])


def test_infeasible_task_stays_pending_and_can_be_cancelled():
    ref = one.options(num_cpus=64).remote()
    assert is_pending(ref)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        ray.get(ref, timeout=20)


def test_task_for_an_unknown_resource_stays_pending():
    ref = one.options(resources={"nowhere": 1}).remote()
    assert is_pending(ref)
    ray.cancel(ref)


def test_get_of_a_pending_task_times_out():
    ref = one.options(num_cpus=64).remote()
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=SHORT_S)
    with pytest.raises(TimeoutError):
        ray.get(ref, timeout=0)
    ray.cancel(ref)


def test_timeout_does_not_end_the_call():
    gate = Gate.remote()
    busy = held(gate, resources={"slot": 2})
    ref = one.options(resources={"slot": 1}).remote()
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=SHORT_S)
    ray.get(gate.open.remote())
    assert ray.get([busy, ref], timeout=20) == ["held", 1]


def test_infeasible_actor_stays_pending_and_so_do_its_calls():
    actor = Actor.options(num_gpus=8).remote()
    ref = actor.one.remote()
    assert is_pending(ref)
    ray.kill(actor)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(ref, timeout=20)


def test_infeasible_group_is_not_ready_in_time():
    group = placement_group([{"CPU": 64}])
    assert not group.wait(SHORT_S)
    with pytest.raises(GetTimeoutError):
        ray.get(group.ready(), timeout=SHORT_S)
    table = ray.util.placement_group_table(group)
    assert table["state"] == "PENDING"
    remove_placement_group(group)


def test_infeasible_task_does_not_hold_up_others():
    refs = [one.options(num_cpus=64).remote() for _ in range(3)]
    assert ray.get([one.options(num_cpus=1).remote() for _ in range(4)]) == [1] * 4
    for ref in refs:
        ray.cancel(ref)


def test_infeasible_request_takes_nothing_away():
    ref = one.options(num_cpus=64, resources={"slot": 1}).remote()
    assert is_pending(ref)
    assert ray.available_resources()["slot"] == 2
    ray.cancel(ref)


def test_call_with_a_pending_argument_is_pending():
    first = one.options(num_cpus=64).remote()
    second = one.remote(first)
    assert is_pending(second)
    ray.cancel(first)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(second, timeout=20)


def test_pending_task_runs_when_the_holder_ends():
    gate = Gate.remote()
    busy = held(gate, resources={"slot": 2})
    ref = one.options(resources={"slot": 2}).remote()
    assert is_pending(ref)
    ray.get(gate.open.remote())
    assert ray.get(ref, timeout=20) == 1
    assert ray.get(busy) == "held"


def test_pending_actor_starts_when_the_holder_ends():
    gate = Gate.remote()
    busy = held(gate, resources={"slot": 2})
    actor = Actor.options(resources={"slot": 1}).remote()
    ref = actor.one.remote()
    assert is_pending(ref)
    ray.get(gate.open.remote())
    assert ray.get([ref, busy], timeout=20) == [1, "held"]


def test_pending_group_is_created_when_the_holder_ends():
    gate = Gate.remote()
    busy = held(gate, resources={"slot": 2})
    group = placement_group([{"slot": 2}])
    assert not group.wait(SHORT_S)
    ray.get(gate.open.remote())
    assert group.wait(20)
    assert ray.get(busy) == "held"
    remove_placement_group(group)


def test_task_of_a_pending_group_is_pending_and_fails_when_that_is_removed():
    group = placement_group([{"CPU": 64}])
    strategy = PlacementGroupSchedulingStrategy(group)
    ref = one.options(num_cpus=1, scheduling_strategy=strategy).remote()
    assert is_pending(ref)
    remove_placement_group(group)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(ref, timeout=20)


def test_task_waits_for_its_full_bundle():
    gate = Gate.remote()
    group = placement_group([{"slot": 1}])
    assert group.wait(20)
    strategy = PlacementGroupSchedulingStrategy(group, 0)
    options = {"resources": {"slot": 1}, "scheduling_strategy": strategy}
    busy = hold.options(**options).remote(gate)
    assert is_pending(busy)
    ref = one.options(**options).remote()
    assert is_pending(ref)
    ray.get(gate.open.remote())
    assert ray.get([busy, ref], timeout=20) == ["held", 1]
    remove_placement_group(group)


def test_smaller_request_passes_a_larger_one_that_waits():
    gate = Gate.remote()
    busy = held(gate, resources={"slot": 1})
    large = one.options(resources={"slot": 2}).remote()
    assert is_pending(large)
    assert ray.get(one.options(resources={"slot": 1}).remote(), timeout=20) == 1
    ray.get(gate.open.remote())
    assert ray.get([large, busy], timeout=20) == [1, "held"]


@pytest.mark.timeout(170)
def test_driver_is_told_of_what_cannot_be_scheduled(run_driver, backend):
    """What is said differs, and when; that something is said does not."""
    done = run_driver(
        """
        import sys, time
        import ray

        ray.init(num_cpus=1, include_dashboard=False)

        @ray.remote(resources={"unobtainium": 3})
        def never():
            pass

        ref = never.remote()
        ray.wait([ref], timeout=float(sys.argv[1]))
        """,
        "45" if backend == "ray" else "5",
        timeout_s=150,
        env={"RAY_raylet_start_wait_time_s": "120"},
    )
    assert "unobtainium" in done.stdout + done.stderr
