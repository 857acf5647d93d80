"""Lines on put, get and wait."""

from __future__ import annotations

import numpy as np

from harness import BANDWIDTH, Operation, Suite
from kit import Kit

OBJECTS = Suite()
MIB = 1024 * 1024
GB = 1e9


def ones(size_bytes: int) -> np.ndarray:
    return np.ones(size_bytes // 8, dtype=np.int64)


@OBJECTS.line("get calls, small object")
def get_small(kit: Kit) -> tuple[Operation, float]:
    ref = kit.ray.put(0)
    return lambda: kit.ray.get(ref), 1


@OBJECTS.line("put calls, small object")
def put_small(kit: Kit) -> tuple[Operation, float]:
    return lambda: kit.ray.put(0), 1


@OBJECTS.line("get calls, 1 MiB array")
def get_array(kit: Kit) -> tuple[Operation, float]:
    ref = kit.ray.put(ones(MIB))
    return lambda: kit.ray.get(ref), 1


@OBJECTS.line("put calls, 1 MiB array")
def put_array(kit: Kit) -> tuple[Operation, float]:
    array = ones(MIB)
    return lambda: kit.ray.put(array), 1


@OBJECTS.line("multi client put calls, small object")
def put_small_from_tasks(kit: Kit) -> tuple[Operation, float]:
    ray = kit.ray

    @ray.remote
    def put_many(count):
        for _ in range(count):
            ray.put(0)

    return lambda: ray.get([put_many.remote(100) for _ in range(10)]), 1000


@OBJECTS.line("put gigabytes", BANDWIDTH)
def put_large(kit: Kit) -> tuple[Operation, float]:
    array = ones(256 * MIB)
    return lambda: kit.ray.put(array), array.nbytes / GB


@OBJECTS.line("put and read back gigabytes", BANDWIDTH)
def put_and_get_large(kit: Kit) -> tuple[Operation, float]:
    array = ones(256 * MIB)

    def put_and_get() -> None:
        last = kit.ray.get(kit.ray.put(array))[-1]
        if last != 1:
            raise ValueError(f"wrong value {last}")

    return put_and_get, array.nbytes / GB


@OBJECTS.line("multi client put gigabytes", BANDWIDTH)
def put_large_from_tasks(kit: Kit) -> tuple[Operation, float]:
    ray = kit.ray
    tasks, arrays, size_bytes = 4, 5, 40 * MIB

    @ray.remote
    def put_many():
        for _ in range(arrays):
            ray.put(np.zeros(size_bytes // 8, dtype=np.int64))

    def run() -> None:
        ray.get([put_many.remote() for _ in range(tasks)])

    return run, tasks * arrays * size_bytes / GB


@OBJECTS.line("get object containing 10k refs")
def get_refs(kit: Kit) -> tuple[Operation, float]:
    ray = kit.ray

    @ray.remote
    def make_refs(count):
        return [ray.put(1) for _ in range(count)]

    ref = make_refs.remote(10_000)
    ray.wait([ref])
    return lambda: ray.get(ref), 1


@OBJECTS.line("wait 1k refs")
def wait_one_by_one(kit: Kit) -> tuple[Operation, float]:
    def wait_all() -> None:
        pending = [kit.small_value.remote() for _ in range(1000)]
        while pending:
            _, pending = kit.ray.wait(pending)

    return wait_all, 1
