"""What processes and queues cost in memory.

    python benchmarks/memory.py --actors 1000 --tasks 100000

Prints the private memory (USS) of idle executors and of actors, the time to create the
actors, and how time and memory of the driver grow with the number of queued tasks.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from typing import Any

import psutil

from harness import DURATION, MEMORY, Result

MB = 1e6


def private_mb(pids: list[int]) -> list[float]:
    """Private memory of each process, in MB."""
    return [psutil.Process(pid).memory_full_info().uss / MB for pid in pids]


def executors(ray: Any, count: int) -> list[Result]:
    """Private memory of executors that have run a task and idle."""

    @ray.remote
    def pid_of_executor():
        time.sleep(0.2)  # long enough that every executor gets one
        return os.getpid()

    pids = sorted(set(ray.get([pid_of_executor.remote() for _ in range(2 * count)])))
    return [Result.of("idle executor, private", MEMORY, private_mb(pids))]


def actors(ray: Any, count: int) -> list[Result]:
    """Time to create actors, and the private memory of each."""

    @ray.remote(num_cpus=0)
    class Small:
        def pid(self):
            return os.getpid()

    start = time.perf_counter()
    living = [Small.remote() for _ in range(count)]
    pids = ray.get([actor.pid.remote() for actor in living])
    elapsed_s = time.perf_counter() - start
    memory = private_mb(pids)
    for actor in living:
        ray.kill(actor)
    return [
        Result.of(f"create {count} actors", DURATION, [elapsed_s]),
        Result.of("actor, private", MEMORY, memory),
    ]


def queue(ray: Any, count: int) -> tuple[list[Result], float]:
    """Time and growth of the driver for tasks that are queued at once."""

    @ray.remote
    def nothing():
        return None

    ray.get(nothing.remote())
    driver = psutil.Process()
    before = driver.memory_info().rss
    start = time.perf_counter()
    refs = [nothing.remote() for _ in range(count)]
    grown = (driver.memory_info().rss - before) / MB
    ray.get(refs)
    elapsed_s = time.perf_counter() - start
    results = [
        Result.of(f"{count} queued tasks", DURATION, [elapsed_s]),
        Result.of(f"{count} queued tasks, driver grows by", MEMORY, [grown]),
    ]
    return results, elapsed_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--backend", default="rayshim", help="module with Ray's API")
    add("--num-cpus", type=int, default=2, help="CPUs of the cluster")
    add("--actors", type=int, default=1000, help="actors to create; 0 for none")
    add("--tasks", type=int, default=100_000, help="tasks to queue; 0 for none")
    options = parser.parse_args()

    ray = importlib.import_module(options.backend)
    ray.init(num_cpus=options.num_cpus, include_dashboard=False, logging_level="ERROR")
    for result in executors(ray, options.num_cpus):
        print(result)
    if options.actors:
        for result in actors(ray, options.actors):
            print(result)
    if options.tasks:
        small, small_s = queue(ray, options.tasks // 10)
        large, large_s = queue(ray, options.tasks)
        for result in small + large:
            print(result)
        print(f"10 times the tasks take {large_s / small_s:.1f} times as long")
    peak = psutil.Process().memory_info().rss / MB
    print(Result.of("driver, resident at the end", MEMORY, [peak]))
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
