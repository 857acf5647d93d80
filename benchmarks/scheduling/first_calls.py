"""A driver of its own that times first calls of new functions.

    python benchmarks/scheduling/first_calls.py BACKEND ADDRESS COUNT

Each function is a scheduling class of its own, so that each call takes a lease. Prints
the milliseconds of all as one JSON list.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def quantile(values: list[float], share: float) -> float:
    """The value below which a share of them is; 0 without values."""
    return sorted(values)[int(share * (len(values) - 1))] if values else 0.0


def caller(backend: str, address: str) -> Callable[[int], Any]:
    """What makes a new function and calls it."""
    module: Any = importlib.import_module(
        "distributed" if backend == "dask" else backend
    )
    if backend == "dask":
        client = module.Client(address)

        def call_on_dask(number: int) -> Any:
            key = f"first-{number}"
            options = {"key": key, "priority": 10, "resources": {"CPU": 1}}
            return client.submit(lambda: number, **options).result()

        return call_on_dask
    module.init(address=address, log_to_driver=False, logging_level="ERROR")

    def call(number: int) -> Any:
        return module.get(module.remote(new_function(number)).remote())

    return call


def new_function(number: int) -> Callable[[], int]:
    # Code of its own: equal functions may be taken for one.
    scope: dict[str, Any] = {}
    exec(f"def first_{number}():\n    return {number}\n", scope)
    made: Callable[[], int] = scope[f"first_{number}"]
    return made


def time_calls(backend: str, address: str, count: int) -> list[float]:
    """Milliseconds of each call, after three that do not count."""
    call = caller(backend, address)
    times = []
    for number in range(count + 3):
        started = time.perf_counter()
        call(number)
        times.append(1e3 * (time.perf_counter() - started))
    return times[3:]


def in_a_process(backend: str, address: str, count: int, limit_s: float) -> list[float]:
    """The same in a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, backend, address, str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=limit_s,
        check=True,
    )
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    return times


if __name__ == "__main__":
    print(json.dumps(time_calls(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
