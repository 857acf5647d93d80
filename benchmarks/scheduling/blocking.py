"""Requests that wait behind others: long calls, and a GPU that is taken.

    python benchmarks/scheduling/blocking.py --engine rayshim
    PYTHON_WITH_RAY benchmarks/scheduling/blocking.py --engine ray
    python benchmarks/scheduling/blocking.py --engine dask

Cases, on 4 CPUs and one GPU in the books:

- *long*: 8 calls of 0.3 s beside two long ones, of the same function. Two CPUs are left
  for them, so the ideal is 1.2 s. Threshold: 1.35 s.
- *gpu*: 12 calls of 0.1 s that need a CPU, submitted after one that waits for the GPU,
  which another call holds. The base is the same without any GPU call; at most 1.25 x.

Dask: ``LocalCluster(resources={"CPU": 4, "GPU": 1})``, one worker with 6 threads.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

CPUS = 4
SHORT_S, SHORT_COUNT, LONG_S = 0.3, 8, 4.0
LIMIT_S = 1.35
CPU_S, CPU_COUNT = 0.1, 12
GPU_LIMIT = 1.25


def work(seconds: float) -> None:
    """A call that holds what it has for a while."""
    time.sleep(seconds)


def other(seconds: float) -> None:
    """The same, of another class."""
    time.sleep(seconds)


class RayEngine:
    """Real Ray or rayshim."""

    def __init__(self, module: Any) -> None:
        self._ray = module
        module.init(
            num_cpus=CPUS,
            num_gpus=1,
            include_dashboard=False,
            logging_level="ERROR",
            log_to_driver=False,
        )
        self._work = module.remote(work)
        self._other = module.remote(other)
        self._gpu = module.remote(num_cpus=0, num_gpus=1)(work)

    def work(self, seconds: float) -> Any:
        """A call on one CPU."""
        return self._work.remote(seconds)

    def other(self, seconds: float) -> Any:
        """A call on one CPU, of another class."""
        return self._other.remote(seconds)

    def gpu(self, seconds: float) -> Any:
        """A call on the GPU."""
        return self._gpu.remote(seconds)

    def wait(self, refs: Sequence[Any]) -> None:
        """Returns when all are done."""
        self._ray.get(list(refs))

    def close(self) -> None:
        """Ends the session."""
        self._ray.shutdown()


class DaskEngine:
    """Stock Dask: threads enough, and resources as the limit."""

    def __init__(self) -> None:
        from distributed import Client, LocalCluster

        self._cluster = LocalCluster(
            n_workers=1,
            threads_per_worker=CPUS + 2,
            resources={"CPU": CPUS, "GPU": 1},
            dashboard_address=None,
        )
        self._client = Client(self._cluster)

    def work(self, seconds: float) -> Any:
        """A call on one CPU."""
        return self._client.submit(work, seconds, pure=False, resources={"CPU": 1})

    def other(self, seconds: float) -> Any:
        """A call on one CPU, of another class."""
        return self._client.submit(other, seconds, pure=False, resources={"CPU": 1})

    def gpu(self, seconds: float) -> Any:
        """A call on the GPU."""
        return self._client.submit(work, seconds, pure=False, resources={"GPU": 1})

    def wait(self, refs: Sequence[Any]) -> None:
        """Returns when all are done."""
        self._client.gather(list(refs))

    def close(self) -> None:
        """Ends the cluster."""
        self._client.close()
        self._cluster.close()


def make(name: str) -> RayEngine | DaskEngine:
    """The engine of that name."""
    if name == "dask":
        return DaskEngine()
    if name == "ray":
        import ray

        return RayEngine(ray)
    import rayshim

    return RayEngine(rayshim)


def beside_long(engine: RayEngine | DaskEngine) -> float:
    """Seconds until 8 short calls beside two long ones are done."""
    engine.wait([engine.work(0.0) for _ in range(8)])
    long = [engine.work(LONG_S) for _ in range(2)]
    time.sleep(0.2)
    begun = time.perf_counter()
    engine.wait([engine.work(SHORT_S) for _ in range(SHORT_COUNT)])
    took = time.perf_counter() - begun
    engine.wait(long)
    return took


def cpu_calls(engine: RayEngine | DaskEngine, *, with_gpu: bool) -> float:
    """Seconds until calls that need a CPU are done."""
    gpus = []
    if with_gpu:
        gpus.append(engine.gpu(2.0))
        time.sleep(0.2)
        gpus.append(engine.gpu(0.0))  # waits
        time.sleep(0.7)
    begun = time.perf_counter()
    engine.wait([engine.other(CPU_S) for _ in range(CPU_COUNT)])
    took = time.perf_counter() - begun
    engine.wait(gpus)
    return took


def measure(engine: RayEngine | DaskEngine) -> dict[str, float]:
    """All figures of one engine."""
    long_s = beside_long(engine)
    engine.wait([engine.other(0.0) for _ in range(8)])
    base = min(cpu_calls(engine, with_gpu=False) for _ in range(3))
    behind = cpu_calls(engine, with_gpu=True)
    return {
        "short_beside_long_s": long_s,
        "cpu_alone_s": base,
        "cpu_behind_gpu_s": behind,
        "gpu_ratio": behind / base,
    }


def main() -> int:
    """Prints the figures; 1 if rayshim misses a threshold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=("rayshim", "ray", "dask"), required=True)
    chosen = parser.parse_args().engine
    engine = make(chosen)
    try:
        figures = measure(engine)
    finally:
        engine.close()
    limits = {"threshold_s": LIMIT_S, "threshold_gpu_ratio": GPU_LIMIT}
    print(json.dumps({"engine": chosen, **limits, **figures}))
    missed = (
        figures["short_beside_long_s"] > LIMIT_S or figures["gpu_ratio"] > GPU_LIMIT
    )
    return int(missed and chosen == "rayshim")


if __name__ == "__main__":
    raise SystemExit(main())
