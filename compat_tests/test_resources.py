"""Logical resources: totals, what is free, GPUs and custom kinds."""

from __future__ import annotations

import os
import threading

import pytest

import ray


@ray.remote
class Gate:
    def __init__(self):
        self.event = threading.Event()
        self.inside = 0

    def wait(self):
        self.inside += 1
        self.event.wait(30)

    def open(self):
        self.event.set()

    def count(self):
        return self.inside


@ray.remote
def visit(gate):
    ray.get(gate.wait.remote())
    return "through"


@ray.remote
def gpus():
    return ray.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES")


@ray.remote
class Gpus:
    def ids(self):
        return ray.get_gpu_ids()

    def visible(self):
        return os.environ.get("CUDA_VISIBLE_DEVICES")


@ray.remote
class Member:
    def ping(self):
        return "pong"


def free(kind):
    """Return how much of a resource is free; 0 when it is not listed."""
    return ray.available_resources().get(kind, 0)


@pytest.mark.usefixtures("ray_start")
class TestShared:
    """Cases that need nothing but the shared 4-CPU cluster."""

    def test_cluster_resources(self):
        total = ray.cluster_resources()
        assert total["CPU"] == 4.0
        assert isinstance(total["CPU"], float)
        assert total["memory"] > 0
        assert total["object_store_memory"] > 0
        assert total["node:__internal_head__"] == 1.0
        assert "GPU" not in total

    def test_available_resources_has_the_same_kinds(self, wait_until):
        wait_until(lambda: free("CPU") == 4)
        assert set(ray.available_resources()) <= set(ray.cluster_resources())

    def test_nodes(self):
        [node] = ray.nodes()
        assert node["Alive"] is True
        assert node["alive"] is True
        assert len(node["NodeID"]) == 56
        assert node["Resources"]["CPU"] == 4.0
        assert node["NodeManagerAddress"]
        assert node["NodeManagerHostname"]
        assert isinstance(node["Labels"], dict)

    def test_node_has_a_resource_of_its_address(self):
        [node] = ray.nodes()
        address = node["NodeManagerAddress"]
        assert ray.cluster_resources()[f"node:{address}"] == 1.0

    def test_running_actor_takes_and_returns_its_share(self, wait_until):
        wait_until(lambda: free("CPU") == 4)
        member = Member.options(num_cpus=1.5).remote()
        ray.get(member.ping.remote())
        wait_until(lambda: free("CPU") == 2.5)
        ray.kill(member)
        wait_until(lambda: free("CPU") == 4)

    def test_no_gpus_in_a_cluster_without(self):
        assert ray.get_gpu_ids() == []
        assert ray.get(gpus.remote()) == ([], None)

    def test_infeasible_actor_stays_pending(self):
        member = Member.options(resources={"unicorn": 1}).remote()
        ref = member.ping.remote()
        assert ray.wait([ref], timeout=0.2) == ([], [ref])
        ray.kill(member)

    def test_task_and_actor_share_the_cpus(self, wait_until):
        wait_until(lambda: free("CPU") == 4)
        member = Member.options(num_cpus=4).remote()
        ray.get(member.ping.remote())

        @ray.remote
        def late():
            return "ran"

        ref = late.remote()
        assert ray.wait([ref], timeout=0.2) == ([], [ref])
        ray.kill(member)
        assert ray.get(ref) == "ran"


def test_custom_resources_are_counted(ray_fresh):
    ray_fresh(num_cpus=2, resources={"license": 2, "disk": 7})
    total = ray.cluster_resources()
    assert total["license"] == 2.0
    assert total["disk"] == 7.0
    assert ray.nodes()[0]["Resources"]["license"] == 2.0


def test_custom_resources_bound_actors_and_tasks(ray_fresh, wait_until):
    ray_fresh(num_cpus=4, resources={"license": 2})
    owners = [Member.options(resources={"license": 1}).remote() for _ in range(2)]
    assert ray.get([o.ping.remote() for o in owners]) == ["pong"] * 2
    wait_until(lambda: free("license") == 0)
    third = Member.options(resources={"license": 0.5}).remote()
    ref = third.ping.remote()
    assert ray.wait([ref], timeout=0.2) == ([], [ref])
    ray.kill(owners[0])
    assert ray.get(ref) == "pong"
    wait_until(lambda: free("license") == 0.5)


def test_custom_resources_bound_the_parallelism(ray_fresh, wait_until):
    ray_fresh(num_cpus=4, resources={"license": 2})
    gate = Gate.options(max_concurrency=8).remote()
    limited = visit.options(resources={"license": 1}, num_cpus=0.1)
    refs = [limited.remote(gate) for _ in range(4)]
    wait_until(lambda: ray.get(gate.count.remote()) == 2)
    assert ray.wait(refs, timeout=0.2)[0] == []
    ray.get(gate.open.remote())
    assert ray.get(refs) == ["through"] * 4


def test_custom_resources_show_in_the_context(ray_fresh):
    ray_fresh(num_cpus=2, resources={"license": 2})

    @ray.remote(resources={"license": 0.5})
    def ask():
        return ray.get_runtime_context().get_assigned_resources()

    assert ray.get(ask.remote()) == {"CPU": 1.0, "license": 0.5}


def test_gpu_totals(ray_fresh):
    ray_fresh(num_cpus=2, num_gpus=2)
    assert ray.cluster_resources()["GPU"] == 2.0
    assert ray.available_resources()["GPU"] == 2.0


def test_gpu_ids_of_tasks(ray_fresh):
    ray_fresh(num_cpus=2, num_gpus=2)
    ids, visible = ray.get(gpus.options(num_gpus=1).remote())
    assert len(ids) == 1
    assert ids[0] in (0, 1)
    assert visible == str(ids[0])
    ids, visible = ray.get(gpus.options(num_gpus=2).remote())
    assert sorted(ids) == [0, 1]
    assert sorted(visible.split(",")) == ["0", "1"]
    assert ray.get(gpus.remote())[0] == []


def test_gpu_ids_of_actors_do_not_overlap(ray_fresh, wait_until):
    ray_fresh(num_cpus=4, num_gpus=2)
    actors = [Gpus.options(num_gpus=1).remote() for _ in range(2)]
    ids = ray.get([a.ids.remote() for a in actors])
    assert sorted(ids) == [[0], [1]]
    visible = ray.get([a.visible.remote() for a in actors])
    assert visible == [str(i[0]) for i in ids]
    wait_until(lambda: free("GPU") == 0)
    waiting = Gpus.options(num_gpus=1).remote()
    ref = waiting.ids.remote()
    assert ray.wait([ref], timeout=0.2) == ([], [ref])
    ray.kill(actors[0])
    assert ray.get(ref) == ids[0]


def test_fractional_gpus_share_an_id(ray_fresh):
    ray_fresh(num_cpus=4, num_gpus=2)
    actors = [Gpus.options(num_gpus=0.5).remote() for _ in range(4)]
    ids = ray.get([a.ids.remote() for a in actors])
    assert sorted(ids) == [[0], [0], [1], [1]]


def test_gpu_ids_are_in_the_accelerator_ids(ray_fresh):
    ray_fresh(num_cpus=2, num_gpus=2)

    @ray.remote(num_gpus=1)
    def ask():
        context = ray.get_runtime_context()
        return context.get_accelerator_ids()["GPU"], ray.get_gpu_ids()

    accelerators, ids = ray.get(ask.remote())
    assert accelerators == [str(i) for i in ids]
