"""GPUs that exist in the books: indices, fractions, and what the variable says."""

from __future__ import annotations

import os

import pytest

import ray


@ray.remote
def gpus():
    return ray.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES")


@ray.remote
class Gpus:
    def ids(self):
        return ray.get_gpu_ids()

    def all(self):
        return ray.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES")

    def assigned(self):
        return ray.get_runtime_context().get_assigned_resources()


@pytest.fixture
def two_gpus(ray_fresh):
    ray_fresh(num_cpus=4, num_gpus=2)


def made(*fractions):
    """One actor for each fraction, up and placed in this order."""
    actors = []
    for fraction in fractions:
        actors.append(Gpus.options(num_gpus=fraction, num_cpus=0).remote())
        ray.get(actors[-1].ids.remote(), timeout=30)
    return [ray.get(actor.ids.remote()) for actor in actors], actors


@pytest.mark.parametrize(
    ("fractions", "ids"),
    [
        ((0.3,) * 6, [[0], [0], [0], [1], [1], [1]]),
        ((0.25, 1, 0.25, 0.5), [[0], [1], [0], [0]]),
        ((0.6, 0.4, 0.7, 0.3), [[0], [0], [1], [1]]),
        ((0.5, 0.5, 0.5, 0.5), [[0], [0], [1], [1]]),
    ],
)
def test_fractions_fill_one_gpu_before_the_next(two_gpus, fractions, ids):
    got, actors = made(*fractions)
    assert got == ids
    del actors


def test_fractions_that_would_need_two_gpus_wait(two_gpus):
    _, actors = made(0.6, 0.6)
    third = Gpus.options(num_gpus=0.6, num_cpus=0).remote()
    ref = third.ids.remote()
    assert ray.wait([ref], timeout=0.3)[0] == []
    ray.kill(actors[1])
    assert ray.get(ref, timeout=30) == [1]


def test_a_whole_gpu_waits_for_one_that_nobody_shares(two_gpus):
    _, actors = made(0.1, 1)
    ref = gpus.options(num_gpus=1).remote()
    assert ray.wait([ref], timeout=0.3)[0] == []
    ray.kill(actors[0])
    assert ray.get(ref, timeout=30) == ([0], "0")


def test_the_smallest_fraction(two_gpus):
    assert ray.get(gpus.options(num_gpus=0.0001).remote()) == ([0], "0")


def test_more_than_one_gpu_must_be_whole(two_gpus):
    with pytest.raises(ValueError):
        gpus.options(num_gpus=1.5).remote()


def test_a_task_without_gpus_sees_no_variable(two_gpus):
    assert ray.get(gpus.remote()) == ([], None)
    assert ray.get(gpus.options(num_gpus=0).remote()) == ([], None)


def test_a_child_without_gpus_does_not_see_those_of_its_parent(two_gpus):
    @ray.remote(num_gpus=1)
    def parent():
        return ray.get_gpu_ids(), ray.get(gpus.remote())

    own, child = ray.get(parent.remote(), timeout=30)
    assert own in ([0], [1])
    assert child == ([], None)


def test_a_parent_that_waits_keeps_its_gpu(two_gpus):
    @ray.remote(num_gpus=1)
    def parent():
        return ray.get_gpu_ids(), ray.get(gpus.options(num_gpus=1).remote())[0]

    own, child = ray.get(parent.remote(), timeout=30)
    assert sorted(own + child) == [0, 1]


def test_the_variable_of_an_actor_lasts(two_gpus):
    actor = Gpus.options(num_gpus=1).remote()
    first = ray.get(actor.all.remote())
    ray.get(gpus.options(num_gpus=1).remote())
    assert ray.get(actor.all.remote()) == first


def test_two_tasks_at_once_have_different_gpus(two_gpus):
    @ray.remote(num_gpus=1)
    def meet(gate):
        ray.get(gate.wait.remote())
        return ray.get_gpu_ids()

    gate = Gate.options(num_cpus=0, max_concurrency=3).remote(2)
    ids = ray.get([meet.remote(gate) for _ in range(2)], timeout=30)
    assert sorted(ids) == [[0], [1]]


@ray.remote
class Gate:
    """Opens when ``count`` callers are inside."""

    def __init__(self, count):
        import threading

        self.barrier = threading.Barrier(count)

    def wait(self):
        self.barrier.wait(30)


def test_an_actor_with_gpus_holds_a_cpu_too(two_gpus):
    actor = Gpus.options(num_gpus=1).remote()
    assert ray.get(actor.assigned.remote()) == {"GPU": 1.0, "CPU": 1.0}
    actor = Gpus.options(num_gpus=0).remote()
    assert ray.get(actor.assigned.remote()) == {"CPU": 1.0}
    actor = Gpus.options(num_gpus=0.5, num_cpus=0).remote()
    assert ray.get(actor.assigned.remote()) == {"GPU": 0.5}


def test_the_driver_has_no_gpus(two_gpus):
    assert ray.get_gpu_ids() == []
    assert ray.get_runtime_context().get_accelerator_ids()["GPU"] == []


# A node that was told which devices it may use.


def test_indices_refer_to_the_devices_of_the_node(ray_fresh, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    ray_fresh(num_cpus=2, num_gpus=2)
    ids, visible = ray.get(gpus.options(num_gpus=2).remote())
    assert sorted(ids) == ["3", "5"]
    assert visible == ",".join(ids)
    ids, visible = ray.get(gpus.options(num_gpus=0.5).remote())
    assert ids in (["3"], ["5"]) and visible == ids[0]
    assert ray.get(gpus.remote()) == ([], "3,5")

    @ray.remote(num_gpus=1)
    def named():
        return ray.get_runtime_context().get_accelerator_ids()["GPU"]

    assert ray.get(named.remote()) in (["3"], ["5"])


def test_devices_may_have_names(ray_fresh, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-abc,GPU-def")
    ray_fresh(num_cpus=2, num_gpus=2)
    actors = [Gpus.options(num_gpus=1).remote() for _ in range(2)]
    ids = ray.get([actor.ids.remote() for actor in actors])
    assert sorted(ids) == [["GPU-abc"], ["GPU-def"]]


def test_a_node_has_no_more_gpus_than_are_visible(ray_fresh, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    with pytest.raises(ValueError):
        ray_fresh(num_cpus=1, num_gpus=3)


def test_devices_that_are_not_there_are_not_counted(ray_fresh, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    ray_fresh(num_cpus=1)
    assert "GPU" not in ray.cluster_resources()


def test_a_job_may_name_other_devices(two_gpus):
    env = {"env_vars": {"CUDA_VISIBLE_DEVICES": "7"}}
    assert ray.get(gpus.options(runtime_env=env).remote()) == ([], "7")
    ids, visible = ray.get(gpus.options(runtime_env=env, num_gpus=1).remote())
    assert (ids, visible) == (["7"], "7")
