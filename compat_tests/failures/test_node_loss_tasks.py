"""Tasks whose node dies while they run, wait there, or wait for it."""

from __future__ import annotations

import time

import pytest

import ray
from failures.placed import GET_LIMIT_S, nap, on, where
from failures.witness import note_run, runs_in
from ray.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    RayTaskError,
    TaskCancelledError,
)

#: Real Ray takes seconds to start nodes and to notice their death.
pytestmark = pytest.mark.timeout(180)


def get(ref):
    return ray.get(ref, timeout=GET_LIMIT_S)


def disk(**options):
    """Options of a call that only runs on nodes with the resource ``disk``."""
    return {"num_cpus": 0, "resources": {"disk": 1}, **options}


@ray.remote
def hold_first_run(runs, gate):
    """Stay until the gate is open; note each run."""
    note_run(runs)
    while not gate.exists():
        time.sleep(0.02)
    return ray.get_runtime_context().get_node_id()


def start_held(nodes, tmp_path, wait_until, **options):
    """Run a task that stays on a new node; return both."""
    node = nodes.add(resources={"disk": 1})
    runs, gate = tmp_path / "runs", tmp_path / "gate"
    ref = hold_first_run.options(**disk(**options)).remote(runs, gate)
    wait_until(lambda: runs_in(runs) == 1, timeout_s=30)
    return node, ref, runs, gate


@pytest.mark.parametrize("how", ["kill", "remove"])
def test_a_running_task_without_retries_fails(nodes, tmp_path, wait_until, how):
    node, ref, runs, _ = start_held(nodes, tmp_path, wait_until, max_retries=0)
    getattr(nodes, how)(node)
    with pytest.raises(NodeDiedError) as caught:
        get(ref)
    assert node.node_id[:8] in str(caught.value)
    assert not isinstance(caught.value, RayTaskError)
    assert runs_in(runs) == 1


@pytest.mark.parametrize("how", ["kill", "remove"])
def test_a_running_task_is_retried_on_another_node(nodes, tmp_path, wait_until, how):
    node, ref, runs, gate = start_held(nodes, tmp_path, wait_until)
    other = nodes.add(resources={"disk": 1})
    getattr(nodes, how)(node)
    wait_until(lambda: runs_in(runs) == 2, timeout_s=30)
    gate.touch()
    assert get(ref) == other.node_id


def test_a_retry_waits_for_a_node_that_is_added_later(nodes, tmp_path, wait_until):
    node, ref, runs, gate = start_held(nodes, tmp_path, wait_until)
    nodes.kill(node)
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0.5)
    assert runs_in(runs) == 1
    gate.touch()
    later = nodes.add(resources={"disk": 1})
    assert get(ref) == later.node_id
    assert runs_in(runs) == 2


def test_each_loss_costs_a_retry(nodes, tmp_path, wait_until):
    node, ref, runs, _ = start_held(nodes, tmp_path, wait_until, max_retries=1)
    nodes.kill(node)
    second = nodes.add(resources={"disk": 1})
    wait_until(lambda: runs_in(runs) == 2, timeout_s=30)
    nodes.kill(second)
    with pytest.raises(NodeDiedError):
        get(ref)
    assert runs_in(runs) == 2


def test_a_retry_that_waits_for_a_node_can_be_cancelled(nodes, tmp_path, wait_until):
    node, ref, _, _ = start_held(nodes, tmp_path, wait_until)
    nodes.kill(node)
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0.5)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(ref)


def test_a_failed_task_counts_as_ready(nodes, tmp_path, wait_until):
    node, ref, _, _ = start_held(nodes, tmp_path, wait_until, max_retries=0)
    nodes.kill(node)
    assert ray.wait([ref], timeout=GET_LIMIT_S) == ([ref], [])


def test_a_getter_in_a_thread_hears_of_the_loss(nodes, tmp_path, wait_until):
    node, ref, _, _ = start_held(nodes, tmp_path, wait_until, max_retries=0)
    future = ref.future()
    assert not future.done()
    nodes.kill(node)
    with pytest.raises(NodeDiedError):
        future.result(GET_LIMIT_S)


def test_the_dependants_of_a_failed_task_fail(nodes, tmp_path, wait_until):
    node, ref, _, _ = start_held(nodes, tmp_path, wait_until, max_retries=0)

    @ray.remote(num_cpus=0)
    def after(value):
        return value

    dependant = after.remote(ref)
    nodes.kill(node)
    with pytest.raises((NodeDiedError, RayTaskError)) as caught:
        get(dependant)
    assert node.node_id[:8] in str(caught.value)


def test_tasks_that_did_not_start_lose_nothing(nodes, tmp_path, wait_until):
    node, first, _, _ = start_held(nodes, tmp_path, wait_until, max_retries=0)
    queued = [where.options(**disk(max_retries=0)).remote() for _ in range(3)]
    assert ray.wait(queued, timeout=0.3)[0] == []
    nodes.kill(node)
    with pytest.raises(NodeDiedError):
        get(first)
    later = nodes.add(resources={"disk": 1})
    assert get(queued) == [later.node_id] * 3


def test_the_other_nodes_go_on(nodes, tmp_path, wait_until):
    there = nodes.stand("a")
    gate = tmp_path / "open"
    runs = tmp_path / "others"
    others = [
        hold_first_run.options(**on(name, max_retries=0)).remote(runs, gate)
        for name in ("a", "head")
    ]
    wait_until(lambda: runs_in(runs) == 2)
    nodes.kill(nodes.add())
    gate.touch()
    assert get(others) == [there.node_id, nodes.head_id]
    assert runs_in(runs) == 2


def test_many_tasks_survive_a_loss(nodes, tmp_path):
    nodes.stand("a")
    node = nodes.add()
    folder = tmp_path

    @ray.remote(num_cpus=0.5, scheduling_strategy="SPREAD")
    def square(number):
        (folder / f"{number}").touch()
        time.sleep(0.05)
        return number * number

    refs = [square.remote(number) for number in range(100)]
    ray.wait(refs, num_returns=20, timeout=GET_LIMIT_S)
    nodes.kill(node, wait=False)
    assert get(refs) == [number * number for number in range(100)]
    nodes.wait_seen(node, alive=False)


def test_a_parent_sees_the_loss_of_its_childs_node(nodes, tmp_path, wait_until):
    nodes.stand("a")
    node = nodes.add(resources={"disk": 1})
    runs, gate = tmp_path / "runs", tmp_path / "gate"

    @ray.remote(**on("a", max_retries=0))
    def parent():
        child = hold_first_run.options(**disk(max_retries=0)).remote(runs, gate)
        try:
            ray.get(child)
        except NodeDiedError as error:
            return str(error)

    ref = parent.remote()
    wait_until(lambda: runs_in(runs) == 1)
    nodes.kill(node)
    assert node.node_id[:8] in get(ref)


def test_a_child_is_retried_for_its_parent(nodes, tmp_path, wait_until):
    nodes.stand("a")
    node = nodes.add(resources={"disk": 1})
    runs, gate = tmp_path / "runs", tmp_path / "gate"

    @ray.remote(**on("a", max_retries=0))
    def parent():
        return ray.get(hold_first_run.options(**disk()).remote(runs, gate))

    ref = parent.remote()
    wait_until(lambda: runs_in(runs) == 1)
    nodes.kill(node)
    gate.touch()
    later = nodes.add(resources={"disk": 1})
    assert get(ref) == later.node_id


def test_a_parent_that_is_retried_starts_its_child_again(nodes, tmp_path, wait_until):
    there = nodes.stand("a")
    node = nodes.add(resources={"disk": 1})
    runs, gate = tmp_path / "runs", tmp_path / "gate"

    @ray.remote(**disk())
    def parent():
        return ray.get(hold_first_run.options(**on("a")).remote(runs, gate))

    ref = parent.remote()
    wait_until(lambda: runs_in(runs) == 1)
    nodes.kill(node)
    nodes.add(resources={"disk": 1})
    wait_until(lambda: runs_in(runs) == 2, timeout_s=30)
    gate.touch()
    assert get(ref) == there.node_id


def test_a_child_ends_with_its_parents_node(nodes, tmp_path, wait_until):
    nodes.stand("a")
    node = nodes.add(resources={"disk": 1})
    wait_until(lambda: ray.available_resources().get("a") == 10)

    @ray.remote(**disk(max_retries=0))
    def parent():
        return ray.get(nap.options(num_cpus=0, resources={"a": 4}).remote(300))

    ref = parent.remote()
    wait_until(lambda: ray.available_resources().get("a") == 6)
    nodes.kill(node)
    with pytest.raises(NodeDiedError):
        get(ref)
    wait_until(lambda: ray.available_resources().get("a") == 10)


@pytest.mark.parametrize("retries", [0, 2])
def test_a_stream_from_a_lost_node(nodes, wait_until, tmp_path, retries):
    node = nodes.add(resources={"disk": 1})
    gate = tmp_path / "gate"

    @ray.remote(**disk(max_retries=retries))
    def stream():
        for number in range(4):
            yield number
            while number == 1 and not gate.exists():
                time.sleep(0.02)

    refs = stream.remote()
    assert [get(next(refs)) for _ in range(2)] == [0, 1]
    nodes.kill(node)
    gate.touch()
    nodes.add(resources={"disk": 1})
    if retries:
        assert [get(ref) for ref in refs] == [2, 3]
    else:
        with pytest.raises(NodeDiedError):
            get(next(refs))
        with pytest.raises(StopIteration):
            next(refs)
