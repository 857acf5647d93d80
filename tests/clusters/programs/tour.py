"""A tour of Ray Core as its guides show it; runs on any cluster of two nodes.

RAY_ADDRESS=auto python tour.py
"""

import asyncio
import collections
import os
import random
import time

import numpy as np

import ray
from ray.util import ActorPool
from ray.util.metrics import Counter as MetricsCounter
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.queue import Empty, Queue
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from ray.util.state import list_actors, list_nodes

SAMPLES = 20_000


# Tasks: estimate pi on all CPUs, with a progress actor that every task reports to.
@ray.remote
class Progress:
    def __init__(self, total):
        self.total = total
        self.done = collections.defaultdict(int)

    def report(self, task_id, count):
        self.done[task_id] = count

    def get(self):
        return sum(self.done.values()) / self.total


@ray.remote
def sample(count, task_id, progress):
    inside = 0
    random.seed(task_id)
    for _ in range(count):
        x, y = random.uniform(-1, 1), random.uniform(-1, 1)
        inside += x * x + y * y <= 1
    ray.get(progress.report.remote(task_id, count))
    return inside


def estimate_pi(tasks=8):
    progress = Progress.remote(tasks * SAMPLES)
    refs = [sample.remote(SAMPLES, i, progress) for i in range(tasks)]
    inside = sum(ray.get(refs))
    assert ray.get(progress.get.remote()) == 1.0
    return 4 * inside / (tasks * SAMPLES)


# Objects: a large array that tasks read without copies, a tree of partial sums.
@ray.remote
def part_sum(array, start, stop):
    assert not array.flags.writeable
    return array[start:stop].sum()


@ray.remote
def add(x, y):
    return x + y


def tree_sum():
    array = ray.put(np.arange(1_000_000, dtype=np.float64))
    parts = [part_sum.remote(array, i, i + 125_000) for i in range(0, 10**6, 125_000)]
    while len(parts) > 1:
        parts = [*parts[2:], add.remote(parts[0], parts[1])]
    return ray.get(parts[0])


# Patterns: process results as they come, limit what is pending.
@ray.remote
def nap(seconds):
    time.sleep(seconds)
    return seconds


def as_they_come():
    left = [nap.remote(s / 100) for s in (9, 1, 5)]
    order = []
    while left:
        ready, left = ray.wait(left)
        order.append(ray.get(ready[0]))
    return order


def limited(limit=4, count=12):
    pending, most, results = [], 0, []
    for i in range(count):
        if len(pending) >= limit:
            ready, pending = ray.wait(pending, num_returns=1)
            results += ray.get(ready)
        pending.append(nap.remote(i / 1000))
        most = max(most, len(pending))
    results += ray.get(pending)
    return most, len(results)


# Generators: blocks of a file, one after the other.
@ray.remote(num_returns="streaming")
def blocks(count):
    for i in range(count):
        yield np.full(10_000, i)


# Failures: retries, errors as exceptions, actors that restart.
@ray.remote(max_retries=2, retry_exceptions=[ConnectionError])
def flaky(counter):
    if ray.get(counter.increment.remote()) < 3:
        raise ConnectionError("try again")
    return "there"


@ray.remote
class Counter:
    def __init__(self):
        self.value = 0

    def increment(self):
        self.value += 1
        return self.value


@ray.remote(max_restarts=1, max_task_retries=1)
class Phoenix:
    def __init__(self):
        self.born = time.time()

    def pid(self):
        return os.getpid()

    def die(self):
        os._exit(1)


# Async actors, named and detached ones.
@ray.remote
class Gate:
    def __init__(self):
        self.event = asyncio.Event()

    async def wait(self, number):
        await self.event.wait()
        return number

    async def open(self):
        self.event.set()


@ray.remote
class Square:
    def compute(self, x):
        return x * x


@ray.remote
def where():
    context = ray.get_runtime_context()
    return context.get_node_id(), os.environ.get("GREETING")


def main():
    ray.init(namespace="tour", runtime_env={"env_vars": {"GREETING": "hello"}})
    nodes = [node for node in ray.nodes() if node["Alive"]]
    assert len(nodes) == 2, nodes
    print("CPUs", ray.cluster_resources()["CPU"])

    assert 3.0 < estimate_pi() < 3.3
    assert tree_sum() == sum(range(1_000_000))
    assert sorted(as_they_come()) == [0.01, 0.05, 0.09]
    assert limited() == (4, 12)
    assert [int(ray.get(ref)[0]) for ref in blocks.remote(5)] == [0, 1, 2, 3, 4]
    print("tasks and objects work")

    counter = Counter.options(name="tries", lifetime="detached").remote()
    assert ray.get(flaky.remote(ray.get_actor("tries"))) == "there"
    ray.kill(counter)
    phoenix = Phoenix.remote()
    first = ray.get(phoenix.pid.remote())
    phoenix.die.options(max_task_retries=0).remote()
    deadline = time.time() + 30
    while time.time() < deadline:
        try:
            if ray.get(phoenix.pid.remote()) != first:
                break
        except ray.exceptions.RayActorError:
            pass
        time.sleep(0.1)
    assert ray.get(phoenix.pid.remote()) != first
    try:
        ray.get(part_sum.remote("no array", 0, 1))
        raise SystemExit("an error was lost")
    except AttributeError as error:
        assert isinstance(error, ray.exceptions.RayTaskError)
    print("failures are dealt with")

    gate = Gate.remote()
    waiting = [gate.wait.remote(i) for i in range(10)]
    ray.get(gate.open.remote())
    assert ray.get(waiting) == list(range(10))
    pool = ActorPool([Square.remote() for _ in range(2)])
    squares = pool.map(lambda actor, x: actor.compute.remote(x), range(6))
    assert list(squares) == [0, 1, 4, 9, 16, 25]
    queue = Queue(maxsize=3)
    queue.put_nowait_batch([1, 2])
    assert [queue.get(), queue.get()] == [1, 2]
    try:
        queue.get(block=False)
    except Empty:
        queue.shutdown()
    print("actors, pools and queues work")

    group = placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    places = [
        where.options(
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, index)
        ).remote()
        for index in range(2)
    ]
    found = ray.get(places)
    assert {node for node, _ in found} == {node["NodeID"] for node in nodes}
    assert {greeting for _, greeting in found} == {"hello"}
    remove_placement_group(group)
    for node in nodes:
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        place, _ = ray.get(where.options(scheduling_strategy=strategy).remote())
        assert place == node["NodeID"]
    print("both nodes do their part")

    MetricsCounter("tours", description="finished tours").inc()
    assert len(list_nodes()) == 2
    alive = list_actors(filters=[("class_name", "=", "Gate"), ("state", "=", "ALIVE")])
    assert len(alive) == 1
    print("OK")


if __name__ == "__main__":
    main()
