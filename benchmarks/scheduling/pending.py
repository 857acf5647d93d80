"""100,000 calls of 100 functions that wait, and what that costs everybody else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import processes
from cases import Line, case, cluster
from first_calls import in_a_process, quantile

CALLS, FUNCTIONS = 100_000, 100
#: First calls of another driver that are timed meanwhile.
TIMED = 100
TIMED_LIMIT_S = 60.0
#: Words in the commands of the processes that schedule.
SCHEDULERS = ("adapters.raylet.main", "gcs_server", "raylet/raylet")


def schedulers() -> dict[int, str]:
    """The processes below this one that place leases: head and raylets."""
    return {
        pid: command
        for pid, command in processes.below().items()
        if any(word in command for word in SCHEDULERS)
    }


def make_functions(remote: Callable[..., Any]) -> list[Any]:
    """Functions that need a CPU and what somebody else has."""
    made = []
    for number in range(FUNCTIONS):
        scope: dict[str, Any] = {}
        exec(f"def wait_{number}():\n    return {number}\n", scope)
        made.append(remote(scope[f"wait_{number}"]))
    return made


@case(
    "pending",
    Line("memory of the scheduler, 100,000 calls wait", "MB", threshold=300.0),
    Line("of it for those calls", "MB"),
    Line("first call of a new function meanwhile, p99", "ms", threshold=100.0),
    Line("the same, median", "ms"),
    Line("submitting 100,000 calls", "s"),
    limit_s=150.0,
)
def pending(ray: Any) -> dict[str, float]:
    """They need a resource that one call has; another driver needs only CPUs.

    The scheduler is the process that places leases and holds most: the head's or a
    node's in a cluster.
    """
    nodes = ({"num_cpus": 4, "resources": {"gate": 1}}, {"num_cpus": 4})
    with cluster(ray, *nodes) as made:
        before = {pid: processes.resident_mb(pid) for pid in schedulers()}

        @ray.remote(resources={"gate": 1}, num_cpus=0, max_retries=0)
        def hold(seconds: float) -> None:
            time.sleep(seconds)

        gate = hold.remote(1000.0)
        time.sleep(0.5)
        functions = make_functions(ray.remote(resources={"gate": 1}))
        started = time.perf_counter()
        refs = [functions[number % FUNCTIONS].remote() for number in range(CALLS)]
        submitted_s = time.perf_counter() - started
        times = in_a_process(ray.__name__, made.address, TIMED, TIMED_LIMIT_S)
        after = {pid: processes.resident_mb(pid) for pid in before}
        ray.cancel(gate, force=True)
        del refs
    largest = max(after, key=lambda pid: after[pid])
    return {
        "memory of the scheduler, 100,000 calls wait": after[largest],
        "of it for those calls": after[largest] - before[largest],
        "first call of a new function meanwhile, p99": quantile(times, 0.99),
        "the same, median": quantile(times, 0.5),
        "submitting 100,000 calls": submitted_s,
    }
