"""Requests that wait must not hold up others: long calls, GPUs, a deep queue."""

from __future__ import annotations

import statistics
import time
from typing import Any

from cases import Line, case, session

#: Calls of the deep queue and beside it, and how long each of them sleeps.
DEEP, FEW = 10_000, 10
DEEP_S, FEW_S = 0.004, 0.01
#: How often the ten are timed, alone and beside the others.
ROUNDS = 5


@case(
    "long_ones",
    Line("8 x 0.3 s beside two long ones, 4 CPUs", "s", threshold=1.35, ideal=1.2),
)
def long_ones(ray: Any) -> float:
    """Two CPUs are left for eight requests."""
    with session(ray, num_cpus=4):

        @ray.remote(max_retries=0)
        def sleep(seconds: float) -> None:
            time.sleep(seconds)

        ray.get([sleep.remote(0.3) for _ in range(4)])
        long = [sleep.remote(4.0) for _ in range(2)]
        time.sleep(0.2)  # they run
        started = time.perf_counter()
        ray.get([sleep.remote(0.3) for _ in range(8)])
        taken = time.perf_counter() - started
        for ref in long:
            ray.cancel(ref, force=True)
    return taken


@case(
    "blocked_gpu",
    Line("CPU requests behind a blocked GPU request", "s", threshold=0.3, ideal=0.2),
)
def blocked_gpu(ray: Any) -> float:
    """One call has the GPU, another waits for it; four CPU calls come after."""
    with session(ray, num_cpus=4, num_gpus=1):

        @ray.remote(num_gpus=1, max_retries=0)
        def use_gpu(seconds: float) -> None:
            time.sleep(seconds)

        @ray.remote
        def use_cpu(seconds: float) -> None:
            time.sleep(seconds)

        ray.get([use_cpu.remote(0.2) for _ in range(4)])
        ray.get(use_gpu.remote(0.0))
        held = [use_gpu.remote(2.0) for _ in range(2)]
        time.sleep(0.2)  # one runs
        started = time.perf_counter()
        ray.get([use_cpu.remote(0.2) for _ in range(3)])
        taken = time.perf_counter() - started
        for ref in held:
            ray.cancel(ref, force=True)
    return taken


@case(
    "fairness",
    Line("ten calls beside 10,000, times as long as alone", "x", 2.0, 1.0),
    limit_s=120.0,
)
def fairness(ray: Any) -> float:
    """The ten (10 ms) come when the 10,000 (4 ms) have begun."""
    with session(ray, num_cpus=4):

        @ray.remote
        def few(seconds: float) -> None:
            time.sleep(seconds)

        @ray.remote
        def many(seconds: float) -> None:
            time.sleep(seconds)

        def time_of_few() -> float:
            started = time.perf_counter()
            ray.get([few.remote(FEW_S) for _ in range(FEW)])
            return time.perf_counter() - started

        ray.get([few.remote(FEW_S) for _ in range(4 * FEW)])
        alone = []
        for _ in range(ROUNDS):
            alone.append(time_of_few())
        refs = [many.remote(DEEP_S) for _ in range(DEEP)]
        ray.wait(refs, num_returns=100)
        beside = []
        for _ in range(ROUNDS):
            beside.append(time_of_few())
            time.sleep(0.2)
    return statistics.median(beside) / statistics.median(alone)


@case(
    "wide",
    Line("a call of all 4 CPUs beside 10,000 of one", "s", threshold=5.0),
    limit_s=120.0,
)
def wide(ray: Any) -> float:
    """It comes when the 10,000 (10 s together) have begun: it must not be last."""
    with session(ray, num_cpus=4):

        @ray.remote
        def narrow(seconds: float) -> None:
            time.sleep(seconds)

        @ray.remote(num_cpus=4)
        def whole(seconds: float) -> None:
            time.sleep(seconds)

        ray.get(whole.remote(0.0))
        refs = [narrow.remote(DEEP_S) for _ in range(DEEP)]
        ray.wait(refs, num_returns=100)
        started = time.perf_counter()
        ray.get(whole.remote(FEW_S))
        return time.perf_counter() - started
