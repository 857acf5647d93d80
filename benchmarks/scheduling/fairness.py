"""How long ten calls take beside ten thousand short ones, and a wide call beside many.

    python benchmarks/scheduling/fairness.py --engine rayshim
    PYTHON_WITH_RAY benchmarks/scheduling/fairness.py --engine ray
    python benchmarks/scheduling/fairness.py --engine dask

Cases, on 4 CPUs:

- *ten*: ten calls of 0.1 s, alone and beside 10,000 calls of 4 ms of another function
  that were submitted before. Threshold: 2 x the time alone.
- *wide*: one call that needs all 4 CPUs beside the same 10,000. To be done before
  them (real Ray and Dask have no threshold).

Dask (stock ``distributed``, 4 workers of one thread, resources for CPUs) runs what was
submitted first first, so its ten wait for the ten thousand.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

CPUS = 4
SHORT_S, SHORT_COUNT = 0.004, 10_000
TEN_S, TEN_COUNT = 0.1, 10
LIMIT = 2.0
#: Seconds for which the short calls run before the others come.
LEAD_S = 1.5


def short(seconds: float) -> None:
    """A call of the large class."""
    time.sleep(seconds)


def ten(seconds: float) -> None:
    """A call of the small class."""
    time.sleep(seconds)


def wide(seconds: float) -> None:
    """A call that needs all CPUs."""
    time.sleep(seconds)


class RayEngine:
    """Real Ray or rayshim."""

    def __init__(self, module: Any) -> None:
        self._ray = module
        module.init(
            num_cpus=CPUS,
            include_dashboard=False,
            logging_level="ERROR",
            log_to_driver=False,
        )
        self._known: dict[tuple[Callable[..., None], int], Any] = {}

    def submit(
        self, call: Callable[[float], None], seconds: float, count: int, cpus: int = 1
    ) -> list[Any]:
        """Submits equal calls."""
        remote = self._known.get((call, cpus))
        if remote is None:
            remote = self._ray.remote(num_cpus=cpus)(call)
            self._known[call, cpus] = remote
        return [remote.remote(seconds) for _ in range(count)]

    def wait(self, refs: Sequence[Any]) -> None:
        """Returns when all are done."""
        self._ray.get(list(refs))

    def undone(self, refs: Sequence[Any]) -> int:
        """How many are not done."""
        refs = list(refs)
        return len(self._ray.wait(refs, num_returns=len(refs), timeout=0)[1])

    def close(self) -> None:
        """Ends the session."""
        self._ray.shutdown()


class DaskEngine:
    """Stock Dask: one worker with one thread for each CPU, or one of all of them."""

    def __init__(self) -> None:
        from distributed import Client, LocalCluster

        self._cluster = LocalCluster(
            n_workers=1,
            threads_per_worker=CPUS,
            resources={"CPU": CPUS},
            dashboard_address=None,
        )
        self._client = Client(self._cluster)
        self._count = 0

    def submit(
        self, call: Callable[[float], None], seconds: float, count: int, cpus: int = 1
    ) -> list[Any]:
        """Submits equal calls."""
        self._count += 1
        return [
            self._client.submit(
                call,
                seconds,
                pure=False,
                key=f"{call.__name__}-{self._count}-{number}",
                resources={"CPU": cpus},
            )
            for number in range(count)
        ]

    def wait(self, refs: Sequence[Any]) -> None:
        """Returns when all are done."""
        self._client.gather(list(refs))

    def undone(self, refs: Sequence[Any]) -> int:
        """How many are not done."""
        return sum(ref.status != "finished" for ref in refs)

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


def measure(engine: RayEngine | DaskEngine) -> dict[str, float]:
    """All figures of one engine."""
    engine.wait(engine.submit(ten, 0.0, 8))
    engine.wait(engine.submit(short, 0.0, 8))
    time.sleep(LEAD_S)
    begun = time.perf_counter()
    engine.wait(engine.submit(ten, TEN_S, TEN_COUNT))
    alone = time.perf_counter() - begun
    time.sleep(LEAD_S)
    many = engine.submit(short, SHORT_S, SHORT_COUNT)
    time.sleep(LEAD_S)
    begun = time.perf_counter()
    engine.wait(engine.submit(ten, TEN_S, TEN_COUNT))
    beside = time.perf_counter() - begun
    left = engine.undone(many)
    begun = time.perf_counter()
    engine.wait(engine.submit(wide, TEN_S, 1, CPUS))
    wide_s = time.perf_counter() - begun
    left_wide = engine.undone(many)
    engine.wait(many)
    return {
        "ten_alone_s": alone,
        "ten_beside_s": beside,
        "ratio": beside / alone,
        "short_left_after_ten": left,
        "wide_s": wide_s,
        "short_left_after_wide": left_wide,
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
    print(json.dumps({"engine": chosen, "threshold_ratio": LIMIT, **figures}))
    missed = figures["ratio"] > LIMIT or not figures["short_left_after_wide"]
    return int(missed and chosen == "rayshim")


if __name__ == "__main__":
    raise SystemExit(main())
