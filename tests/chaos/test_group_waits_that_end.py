"""Waits of placement groups, tasks and actors that only look like deadlocks.

Each stands for longer than a report takes and gives its value in the end: none may be
reported.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import rayshim as ray
from rayshim.cluster_utils import Cluster
from rayshim.util.placement_group import placement_group, remove_placement_group
from rayshim.util.scheduling_strategies import PlacementGroupSchedulingStrategy

pytestmark = pytest.mark.slow

#: A wait is looked at after this long, ...
LOOK_S = 0.2
#: ... and a deadlock is reported well within this time.
LONG_S = 1.5


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    ray.shutdown()
    ray.init(
        num_cpus=2,
        resources={"slot": 2},
        log_to_driver=False,
        logging_level="ERROR",
        _system_config={"dask": "off", "deadlock_report_s": LOOK_S},
    )
    yield
    ray.shutdown()


def inside(group: Any, index: int = -1) -> Any:
    return PlacementGroupSchedulingStrategy(group, index)


@ray.remote(num_cpus=0)
def child() -> int:
    return 1


@ray.remote(num_cpus=0)
def slow() -> int:
    time.sleep(LONG_S)
    return 1


@ray.remote(num_cpus=0)
def waits_for_group(bundle: dict[str, float]) -> int:
    group = placement_group([bundle])
    try:
        ray.get(group.ready())
    finally:
        remove_placement_group(group)
    return 1


@ray.remote(num_cpus=0)
def waits_for_child(options: dict[str, Any]) -> int:
    return ray.get(child.options(**options).remote())


def test_group_that_a_slow_task_holds_up(session: None) -> None:
    group = placement_group([{"slot": 1}])
    assert group.wait(10)
    busy = slow.options(resources={"slot": 1}).remote()
    time.sleep(0.2)
    task = waits_for_group.options(scheduling_strategy=inside(group))
    assert ray.get([task.remote({"slot": 1}), busy]) == [1, 1]
    remove_placement_group(group)


def test_other_bundle_that_is_free_later(session: None) -> None:
    group = placement_group([{"slot": 1}, {"slot": 1}])
    assert group.wait(10)
    options = {"resources": {"slot": 1}, "scheduling_strategy": inside(group)}
    busy = slow.options(**options).remote()
    time.sleep(0.2)
    ref = waits_for_child.options(**options).remote(options)
    assert ray.get([ref, busy]) == [1, 1]
    remove_placement_group(group)


def test_task_that_gives_its_cpu_to_its_child_in_the_bundle(session: None) -> None:
    group = placement_group([{"CPU": 1}])
    assert group.wait(10)
    options = {"num_cpus": 1, "scheduling_strategy": inside(group, 0)}
    waits = waits_for_child.options(**options)
    refs = [slow.options(**options).remote(), waits.remote(options)]
    assert ray.get(refs) == [1, 1]
    remove_placement_group(group)


def test_program_that_removes_the_group_itself(session: None) -> None:
    group = placement_group([{"slot": 2}])
    assert group.wait(10)
    ref = waits_for_group.remote({"slot": 1})
    time.sleep(LONG_S)
    remove_placement_group(group)
    assert ray.get(ref) == 1


def test_thread_of_the_program_that_removes_the_group(session: None) -> None:
    group = placement_group([{"slot": 2}])
    assert group.wait(10)

    def remove() -> None:
        time.sleep(LONG_S)
        remove_placement_group(group)

    thread = threading.Thread(target=remove)
    thread.start()
    assert ray.get(waits_for_group.remote({"slot": 1})) == 1
    thread.join()


def test_idle_actor_in_the_bundle_that_goes(session: None) -> None:
    @ray.remote(num_cpus=0, resources={"slot": 1})
    class Idle:
        def leave_later(self) -> None:
            threading.Timer(LONG_S, ray.actor.exit_actor).start()
            time.sleep(2 * LONG_S)

    group = placement_group([{"slot": 1}])
    assert group.wait(10)
    options = {"resources": {"slot": 1}, "scheduling_strategy": inside(group)}
    idle = Idle.options(scheduling_strategy=inside(group)).remote()
    ray.get(idle.__ray_ready__.remote())
    ref = child.options(**options).remote()
    timer = threading.Timer(LONG_S, lambda: ray.kill(idle))
    timer.start()
    assert ray.get(ref) == 1
    timer.join()
    remove_placement_group(group)


def test_wait_for_a_group_with_a_timeout(session: None) -> None:
    @ray.remote(num_cpus=0)
    def outer() -> bool:
        group = placement_group([{"slot": 1}])
        try:
            return group.wait(LONG_S)
        finally:
            remove_placement_group(group)

    group = placement_group([{"slot": 2}])
    assert group.wait(10)
    assert not ray.get(outer.options(scheduling_strategy=inside(group)).remote())
    remove_placement_group(group)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1, resources={"slot": 1})
    ray.init(
        address=cluster.address,
        log_to_driver=False,
        logging_level="ERROR",
        _system_config={"deadlock_report_s": LOOK_S},
    )
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_nodes_that_join_later(cluster: Cluster) -> None:
    """What a call and a group wait for is held by who waits for them, until then."""
    group = placement_group([{"slot": 1}])
    assert group.wait(10)
    task = waits_for_group.options(scheduling_strategy=inside(group))
    refs = [
        task.remote({"slot": 1}),
        waits_for_child.remote({"resources": {"slot": 1}}),
    ]
    time.sleep(0.1)

    def join() -> None:
        # In a thread that is a library's, as an autoscaler's would be.
        cluster.add_node(num_cpus=1, resources={"slot": 2})

    timer = threading.Timer(LONG_S, join)
    timer.start()
    assert ray.get(refs) == [1, 1]
    timer.join()
