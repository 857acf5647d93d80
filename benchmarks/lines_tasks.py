"""Lines on tasks: calls, deep queues, nesting, large values, generators."""

from __future__ import annotations

import numpy as np

from harness import BANDWIDTH, RATE, Operation, Suite
from kit import Kit

TASKS = Suite()


def expect(value: object, expected: object) -> None:
    """Fail the line when the back end computes something else."""
    if value != expected:
        raise ValueError(f"expected {expected!r}, got {value!r}")


@TASKS.line("tasks sync")
def one_by_one(kit: Kit) -> tuple[Operation, float]:
    return lambda: kit.ray.get(kit.small_value.remote()), 1


@TASKS.line("tasks async")
def many(kit: Kit) -> tuple[Operation, float]:
    return lambda: kit.ray.get([kit.small_value.remote() for _ in range(1000)]), 1000


@TASKS.line("tasks async with arg")
def many_with_value(kit: Kit) -> tuple[Operation, float]:
    def run() -> None:
        kit.ray.get([kit.small_value_arg.remote(i) for i in range(1000)])

    return run, 1000


@TASKS.line("tasks async with ref arg")
def many_with_ref(kit: Kit) -> tuple[Operation, float]:
    ref = kit.ray.put(0)

    def run() -> None:
        kit.ray.get([kit.small_value_arg.remote(ref) for _ in range(1000)])

    return run, 1000


@TASKS.line("tasks and get batch")
def batches(kit: Kit) -> tuple[Operation, float]:
    """The work of "tasks async", counted in batches."""
    return lambda: kit.ray.get([kit.small_value.remote() for _ in range(1000)]), 1


@TASKS.line("chained tasks")
def chain(kit: Kit) -> tuple[Operation, float]:
    ray, length = kit.ray, 200

    @ray.remote
    def step(x):
        return x + 1

    def run() -> None:
        ref = step.remote(0)
        for _ in range(length - 1):
            ref = step.remote(ref)
        expect(ray.get(ref), length)

    return run, length


@TASKS.line("multi client tasks async")
def many_from_actors(kit: Kit) -> tuple[Operation, float]:
    clients = kit.servers(4)
    return lambda: kit.ray.get([c.run_tasks.remote(500) for c in clients]), 2000


@TASKS.line("10k queued tasks drain")
def deep_queue(kit: Kit) -> tuple[Operation, float]:
    def run() -> None:
        kit.ray.get([kit.small_value.remote() for _ in range(10_000)])

    return run, 10_000


@TASKS.line("nested task tree")
def tree(kit: Kit) -> tuple[Operation, float]:
    """Every inner node blocks in a process of its own, so the tree is small."""
    ray = kit.ray

    @ray.remote(num_cpus=0.01)
    def grow(depth):
        if depth == 0:
            return 1
        return sum(ray.get([grow.remote(depth - 1), grow.remote(depth - 1)]))

    def run() -> None:
        expect(ray.get([grow.remote(2), grow.remote(2)]), [4, 4])

    return run, 14


@TASKS.line("nested fan-out, 10 x 50")
def fan_out(kit: Kit) -> tuple[Operation, float]:
    ray, small_value = kit.ray, kit.small_value

    @ray.remote
    def parent(children):
        return len(ray.get([small_value.remote() for _ in range(children)]))

    return lambda: ray.get([parent.remote(50) for _ in range(10)]), 510


@TASKS.line("100 MB pass-by-ref to 20 tasks", RATE)
def large_argument(kit: Kit) -> tuple[Operation, float]:
    ray = kit.ray
    ref = ray.put(np.ones(100 * 10**6 // 8))

    @ray.remote
    def touch(array):
        return array[0] + array[-1]

    return lambda: ray.get([touch.remote(ref) for _ in range(20)]), 20


@TASKS.line("task returns 10 MB, driver reads", BANDWIDTH)
def large_result(kit: Kit) -> tuple[Operation, float]:
    ray, tasks, size_bytes = kit.ray, 10, 10 * 10**6

    @ray.remote
    def make():
        return np.zeros(size_bytes, dtype=np.uint8)

    def run() -> None:
        for array in ray.get([make.remote() for _ in range(tasks)]):
            expect(int(array[-1]), 0)

    return run, tasks * size_bytes / 1e9


@TASKS.line("generator stream items")
def stream(kit: Kit) -> tuple[Operation, float]:
    ray, items = kit.ray, 500

    @ray.remote(num_returns="streaming")
    def produce(count):
        # A plain "yield from" is not accepted by every back end.
        for i in range(count):  # noqa: UP028
            yield i

    def run() -> None:
        total = sum(ray.get(ref) for ref in produce.remote(items))
        expect(total, items * (items - 1) // 2)

    return run, items
