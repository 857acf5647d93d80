"""Stock Dask on the same cases: a worker for each node, with resources.

Each node of a case is one worker process with a thread for each CPU and what Ray calls
its resources; each call asks for them, as Dask's documentation has it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import processes
import waiting
from cases import on
from first_calls import in_a_process, quantile
from pending import CALLS, FUNCTIONS, TIMED, TIMED_LIMIT_S, make_functions
from placing import NODES, TASK_S, TASKS

#: Seconds that scheduler and workers may take to start.
START_LIMIT_S = 60.0
CPU = {"CPU": 1}


@contextmanager
def dask_cluster(
    distributed: Any, *nodes: Mapping[str, float]
) -> Iterator[tuple[Any, int, str]]:
    """A scheduler process and a worker process for each of the nodes.

    Yields:
        A client, the process id of the scheduler, and its address.
    """
    with tempfile.TemporaryDirectory() as folder:
        facts = Path(folder, "scheduler.json")
        program = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        place = ["--host", "127.0.0.1", "--scheduler-file", str(facts)]
        scheduler = subprocess.Popen(
            [*program, *place, "--port", "0", "--no-dashboard"], cwd=folder, **quiet
        )
        started = [scheduler]
        try:
            deadline = time.monotonic() + START_LIMIT_S
            while not facts.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            for resources in nodes:
                words = " ".join(f"{name}={n:g}" for name, n in resources.items())
                threads = str(int(resources["CPU"]))
                command = [sys.executable, "-m", "distributed.cli.dask_worker"]
                command += ["--scheduler-file", str(facts), "--nthreads", threads]
                command += ["--resources", words, "--no-dashboard", "--no-nanny"]
                started.append(subprocess.Popen(command, cwd=folder, **quiet))
            with distributed.Client(scheduler_file=str(facts)) as client:
                client.wait_for_workers(len(nodes), timeout=START_LIMIT_S)
                yield client, scheduler.pid, client.scheduler.address
        finally:
            for process in reversed(started):
                process.kill()
                process.wait()


def sleeping(client: Any, seconds: float, count: int, **options: Any) -> list[Any]:
    """Submit calls that sleep."""
    options.setdefault("resources", CPU)
    return [
        client.submit(time.sleep, seconds, pure=False, **options) for _ in range(count)
    ]


@on("dask", "long_ones")
def long_ones(distributed: Any) -> float:
    """One worker with four threads."""
    with dask_cluster(distributed, {"CPU": 4}) as (client, _, _):
        client.gather(sleeping(client, 0.3, 4))
        long = sleeping(client, 4.0, 2)
        time.sleep(0.2)
        started = time.perf_counter()
        client.gather(sleeping(client, 0.3, 8))
        taken = time.perf_counter() - started
        client.cancel(long)
    return taken


@on("dask", "blocked_gpu")
def blocked_gpu(distributed: Any) -> float:
    """One worker with four threads and a GPU."""
    with dask_cluster(distributed, {"CPU": 4, "GPU": 1}) as (client, _, _):
        client.gather(sleeping(client, 0.2, 4))
        gpu = {"CPU": 1, "GPU": 1}
        held = sleeping(client, 2.0, 2, resources=gpu)
        time.sleep(0.2)
        started = time.perf_counter()
        client.gather(sleeping(client, 0.2, 3))
        taken = time.perf_counter() - started
        client.cancel(held)
    return taken


@on("dask", "fairness")
def fairness(distributed: Any) -> float:
    """One worker with four threads; the ten once."""
    with dask_cluster(distributed, {"CPU": 4}) as (client, _, _):

        def time_of_few() -> float:
            started = time.perf_counter()
            client.gather(sleeping(client, waiting.FEW_S, waiting.FEW))
            return time.perf_counter() - started

        time_of_few()
        alone = [time_of_few() for _ in range(waiting.ROUNDS)]
        refs = sleeping(client, waiting.DEEP_S, waiting.DEEP)
        distributed.wait(refs[:100])
        beside = time_of_few()
    return beside / statistics.median(alone)


@on("dask", "wide")
def wide(distributed: Any) -> float:
    """One worker with four threads."""
    with dask_cluster(distributed, {"CPU": 4}) as (client, _, _):
        refs = sleeping(client, waiting.DEEP_S, waiting.DEEP)
        distributed.wait(refs[:100])
        started = time.perf_counter()
        client.submit(time.sleep, waiting.FEW_S, resources={"CPU": 4}).result()
        return time.perf_counter() - started


@on("dask", "imbalance")
def imbalance(distributed: Any) -> dict[str, float]:
    """A worker of one thread for each node; the calls prefer the first of them."""
    nodes = ({"CPU": 1} for _ in range(NODES))
    with dask_cluster(distributed, *nodes) as (client, _, _):
        client.gather(sleeping(client, 0.3, 2 * NODES))
        first = next(iter(client.scheduler_info()["workers"]))
        time.sleep(1.0)
        started = time.perf_counter()
        options = {"workers": [first], "allow_other_workers": True}
        client.gather(sleeping(client, TASK_S, TASKS, **options))
        taken = time.perf_counter() - started
    name = "1,000 x 20 ms on one of 4 nodes, times the ideal"
    return {name: taken / (TASKS * TASK_S / NODES)}


@on("dask", "pending")
def pending(distributed: Any) -> dict[str, float]:
    """Two workers of four threads; what waits needs what one call has."""
    nodes = ({"CPU": 4, "gate": 1}, {"CPU": 4})
    with dask_cluster(distributed, *nodes) as (client, scheduler, address):
        before = processes.resident_mb(scheduler)
        gate = sleeping(client, 1000.0, 1, resources={"gate": 1})
        time.sleep(0.5)
        functions = make_functions(lambda function: function)
        needs = {"CPU": 1, "gate": 1}
        started = time.perf_counter()
        refs = []
        for function in functions:
            keys = [
                f"{function.__name__}-{number}" for number in range(CALLS // FUNCTIONS)
            ]
            refs += [client.submit(function, key=key, resources=needs) for key in keys]
        submitted_s = time.perf_counter() - started
        times = in_a_process("dask", address, TIMED, TIMED_LIMIT_S)
        after = processes.resident_mb(scheduler)
        del refs, gate
    return {
        "memory of the scheduler, 100,000 calls wait": after,
        "of it for those calls": after - before,
        "first call of a new function meanwhile, p99": quantile(times, 0.99),
        "the same, median": quantile(times, 0.5),
        "submitting 100,000 calls": submitted_s,
    }
