"""Collective operations between actors, by gloo."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

import ray
import ray.util.collective as col
from ray.experimental import collective as groups
from ray.util.collective.backend_registry import register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import Backend, ReduceOp

# Not imported here: each actor imports this module, and few need torch.
pytestmark = [
    pytest.mark.usefixtures("ray_start"),
    pytest.mark.timeout(120),
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch"),
]


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, rank=0):
        self.rank = rank

    def join(self, size, name="default", backend="gloo"):
        col.init_collective_group(size, self.rank, backend, name)

    def leave(self, name="default"):
        col.destroy_collective_group(name)

    def about(self, name="default"):
        return (
            col.get_rank(name),
            col.get_collective_group_size(name),
            col.is_group_initialized(name),
        )

    def run(self, operation, value, *args, **kwargs):
        """Apply an operation to a copy of a value, and return the copy."""
        value = value.clone() if hasattr(value, "clone") else value.copy()
        getattr(col, operation)(value, *args, **kwargs)
        return value

    def barrier(self, name="default"):
        col.barrier(name)
        return True

    def gather(self, value, size, name="default"):
        parts = [np.zeros_like(value) for _ in range(size)]
        col.allgather(parts, np.array(value), name)
        return parts

    def gather_tensors(self, value, size, name="default"):
        import torch

        parts = [torch.zeros_like(value) for _ in range(size)]
        col.allgather(parts, value, name)
        return parts

    def scatter(self, values, name="default", op=ReduceOp.SUM):
        output = np.zeros_like(values[0])
        col.reducescatter(output, [np.array(value) for value in values], name, op)
        return output

    def call(self, function, *args):
        return function(*args)


class Group:
    def __init__(self, workers, name):
        self.workers, self.name = workers, name

    def run(self, operation, values, *args, **kwargs):
        return ray.get(
            [
                worker.run.remote(operation, value, *args, self.name, **kwargs)
                for worker, value in zip(self.workers, values, strict=True)
            ]
        )


@pytest.fixture(scope="module")
def group(shared_cluster):
    """Three actors that joined one group."""
    shared_cluster.start()
    workers = [Worker.remote(rank) for rank in range(3)]
    ray.get([worker.join.remote(3, "three") for worker in workers])
    yield Group(workers, "three")
    ray.get([worker.leave.remote("three") for worker in workers])


@pytest.fixture(scope="module")
def pair(shared_cluster):
    """Two actors that are members of one group after the other."""
    shared_cluster.start()
    return [Worker.remote(rank) for rank in range(2)]


def arrays(size=3, dtype=np.float32):
    return [np.full(4, rank + 1, dtype=dtype) for rank in range(size)]


def same(found, expected):
    assert [np.asarray(value).tolist() for value in found] == expected


def test_members_know_their_rank(group):
    about = ray.get([worker.about.remote("three") for worker in group.workers])
    assert about == [(0, 3, True), (1, 3, True), (2, 3, True)]


def test_who_is_no_member_has_no_rank(group):
    assert ray.get(Worker.remote().about.remote("three")) == (-1, -1, False)


def test_allreduce_of_arrays_in_place(group):
    same(group.run("allreduce", arrays()), [[6] * 4] * 3)


def test_allreduce_of_tensors_in_place(group):
    import torch

    tensors = [torch.full((2, 2), float(rank)) for rank in range(3)]
    same(group.run("allreduce", tensors), [[[3, 3], [3, 3]]] * 3)


@pytest.mark.parametrize(
    ("op", "result"),
    [
        (ReduceOp.SUM, 6),
        (ReduceOp.PRODUCT, 6),
        (ReduceOp.MIN, 1),
        (ReduceOp.MAX, 3),
    ],
)
def test_kinds_of_reduction(group, op, result):
    same(group.run("allreduce", arrays(), op=op), [[result] * 4] * 3)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float64, np.uint8])
def test_types_of_numbers(group, dtype):
    found = group.run("allreduce", arrays(dtype=dtype))
    assert {value.dtype for value in found} == {np.dtype(dtype)}
    same(found, [[6] * 4] * 3)


def test_reduce_gives_one_member_the_result(group):
    same(group.run("reduce", arrays(), 1), [[1] * 4, [6] * 4, [3] * 4])


def test_broadcast(group):
    same(group.run("broadcast", arrays(), 2), [[3] * 4] * 3)


def test_allgather(group):
    found = ray.get(
        [
            worker.gather.remote(value, 3, "three")
            for worker, value in zip(group.workers, arrays(), strict=True)
        ]
    )
    for parts in found:
        same(parts, [[1] * 4, [2] * 4, [3] * 4])


def test_allgather_of_tensors(group):
    import torch

    values = [torch.full((2,), float(rank)) for rank in range(3)]
    found = ray.get(
        [
            worker.gather_tensors.remote(value, 3, "three")
            for worker, value in zip(group.workers, values, strict=True)
        ]
    )
    for parts in found:
        same(parts, [[0, 0], [1, 1], [2, 2]])


def test_reducescatter(group):
    found = ray.get(
        [
            worker.scatter.remote(
                [np.full(2, rank * 10 + i) for i in range(3)], "three"
            )
            for rank, worker in enumerate(group.workers)
        ]
    )
    same(found, [[30, 30], [33, 33], [36, 36]])


def test_send_and_receive(group):
    first, second, _ = group.workers
    sent = first.run.remote("send", np.arange(4.0), 1, "three")
    received = second.run.remote("recv", np.zeros(4), 0, "three")
    assert ray.get(received).tolist() == [0, 1, 2, 3]
    ray.get(sent)


def test_barrier(group):
    assert ray.get([w.barrier.remote("three") for w in group.workers]) == [True] * 3


def test_wrong_ranks(group):
    worker = group.workers[0]
    with pytest.raises(ValueError, match="must be less than world size"):
        ray.get(worker.run.remote("broadcast", np.zeros(1), 3, "three"))
    with pytest.raises(ValueError, match="negative"):
        ray.get(worker.run.remote("reduce", np.zeros(1), -1, "three"))
    with pytest.raises(RuntimeError, match="is self"):
        ray.get(worker.run.remote("send", np.zeros(1), 0, "three"))


def test_wrong_values(group):
    def check():
        for wrong in ([1, 2], "text", 5):
            with pytest.raises(RuntimeError, match="Unrecognized tensor type"):
                col.allreduce(wrong, "three")
        with pytest.raises(RuntimeError, match="must be a list of tensors"):
            col.allgather(np.zeros(1), np.zeros(1), "three")
        with pytest.raises(RuntimeError, match="empty list"):
            col.allgather([], np.zeros(1), "three")
        with pytest.raises(RuntimeError, match="equal to world_size"):
            col.allgather([np.zeros(1)], np.zeros(1), "three")
        return True

    assert ray.get(group.workers[0].call.remote(check))


def test_a_second_join_is_refused(group):
    with pytest.raises(RuntimeError, match="second time"):
        ray.get(group.workers[0].join.remote(3, "three"))


def test_operations_without_a_group():
    worker = Worker.remote()
    with pytest.raises(RuntimeError, match="not initialized"):
        ray.get(worker.run.remote("allreduce", np.zeros(1), "nobody"))


def test_not_in_the_driver():
    with pytest.raises(RuntimeError, match="inside a Ray actor or task"):
        col.init_collective_group(1, 0, "gloo", "driver")
    with pytest.raises(RuntimeError, match="inside a Ray actor or task"):
        col.get_rank("driver")


def test_a_group_that_the_driver_declares(pair):
    workers = pair
    col.create_collective_group(
        workers, 2, [0, 1], backend="gloo", group_name="declared"
    )
    with pytest.raises(RuntimeError, match="twice"):
        col.create_collective_group(
            workers, 2, [0, 1], backend="gloo", group_name="declared"
        )
    same(Group(workers, "declared").run("allreduce", arrays(2)), [[3] * 4] * 2)
    assert ray.get([w.about.remote("declared") for w in workers]) == [
        (0, 2, True),
        (1, 2, True),
    ]
    ray.get([worker.leave.remote("declared") for worker in workers])


def test_what_cannot_be_declared(pair):
    workers = pair
    with pytest.raises(RuntimeError, match="correspond to one rank"):
        col.create_collective_group(workers, 2, [0], "gloo", "wrong")
    with pytest.raises(RuntimeError, match="permutation"):
        col.create_collective_group(workers, 2, [0, 2], "gloo", "wrong")
    with pytest.raises(RuntimeError, match="greater than zero"):
        col.create_collective_group(workers, 0, [0, 1], "gloo", "wrong")
    with pytest.raises(RuntimeError, match="not registered"):
        col.create_collective_group(workers, 2, [0, 1], "pigeon", "wrong")


def test_a_name_is_used_again(pair):
    workers = pair
    for _ in range(2):
        ray.get([worker.join.remote(2, "again") for worker in workers])
        same(Group(workers, "again").run("allreduce", arrays(2)), [[3] * 4] * 2)
        ray.get([worker.leave.remote("again") for worker in workers])
    assert ray.get(workers[0].about.remote("again")) == (-1, -1, False)


def test_backends():
    assert col.gloo_available() and col.is_backend_available("gloo")
    assert not col.nccl_available()
    assert not col.is_backend_available("pigeon")
    assert Backend("gloo") == Backend.GLOO == "GLOO"
    assert Backend("torch_gloo") == "GLOO"
    with pytest.raises(ValueError, match="Unrecognized backend"):
        Backend("pigeon")
    with pytest.raises((RuntimeError, ValueError), match=r"not (available|registered)"):
        ray.get(Worker.remote().join.remote(1, "gpus", "nccl"))


def test_operations_on_several_gpus_are_refused(group):
    def check():
        with pytest.raises(RuntimeError, match="requires NCCL"):
            col.allreduce_multigpu([np.zeros(1)], "three")
        return True

    assert ray.get(group.workers[0].call.remote(check))


def test_a_backend_of_ones_own():
    def run():
        class Doubling(BaseGroup):
            @classmethod
            def backend(cls):
                return "DOUBLING"

            @classmethod
            def check_backend_availability(cls):
                return True

            def allreduce(self, tensor, allreduce_options=None):
                tensor[0] *= 2

            def nothing(self, *args, **kwargs):
                raise NotImplementedError

            barrier = reduce = allgather = broadcast = nothing
            reducescatter = send = recv = nothing

        register_collective_backend("doubling", Doubling)
        with pytest.raises(ValueError, match="already registered"):
            register_collective_backend("DOUBLING", Doubling)
        with pytest.raises(TypeError, match="BaseGroup"):
            register_collective_backend("other", dict)
        col.init_collective_group(1, 0, Backend.DOUBLING, "own")
        values = np.ones(2)
        col.allreduce(values, "own")
        return values, Backend("doubling"), col.get_group_handle("own").group_name

    values, name, group_name = ray.get(Worker.remote().call.remote(run))
    assert values.tolist() == [2, 2]
    assert (name, group_name) == ("DOUBLING", "own")


def test_groups_of_the_driver(pair):
    workers = pair
    handle = groups.create_collective_group(workers, backend="gloo", name="made")
    assert (handle.name, handle.backend) == ("made", "GLOO")
    assert handle.actors == workers
    assert (handle.get_rank(workers[1]), handle.get_rank(Worker.remote())) == (1, -1)
    assert groups.get_collective_groups(workers) == [handle]
    assert groups.get_collective_groups([workers[0]], "gloo") == [handle]
    same(Group(workers, "made").run("allreduce", arrays(2)), [[3] * 4] * 2)
    with pytest.raises(RuntimeError, match="already in group"):
        groups.create_collective_group(workers, backend="gloo")
    groups.destroy_collective_group(handle)
    assert groups.get_collective_groups(workers) == []
    with pytest.raises(ValueError, match="No group"):
        groups.destroy_collective_group("made")


def test_members_of_a_group_are_different():
    worker = Worker.remote()
    with pytest.raises(ValueError, match="unique"):
        groups.create_collective_group([worker, worker], backend="gloo")


def test_all_groups_of_the_driver_end(pair):
    workers = pair
    groups.create_collective_group(workers, backend="gloo")
    groups.destroy_all_collective_groups()
    assert groups.get_collective_groups(workers) == []
    assert ray.get(workers[0].about.remote()) == (-1, -1, False)
