"""`rayshim microbenchmark`: how fast the basic operations are on this machine."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

import rayshim as ray

#: Bytes of the large values that are put.
LARGE_BYTES = 100 * 1024 * 1024

#: What is done once, and how many operations that is.
Line = tuple[str, Callable[[], Any], int]


def _nothing(value: Any = None) -> Any:
    return value


class _Actor:
    def nothing(self, value: Any = None) -> Any:
        return value


def _lines() -> Iterator[Line]:
    task: Any = ray.remote(_nothing)
    small = ray.put(0)
    yield "get of a small value", lambda: ray.get(small), 1
    yield "put of a small value", lambda: ray.put(0), 1
    large = bytearray(LARGE_BYTES)
    yield "put of 100 MiB", lambda: ray.put(large), 1
    yield "task, one after the other", lambda: ray.get(task.remote()), 1
    yield (
        "tasks, 1,000 at once",
        lambda: ray.get([task.remote() for _ in range(1000)]),
        1000,
    )
    actor = ray.remote(_Actor).remote()
    ray.get(actor.nothing.remote())
    yield (
        "actor call, one after the other",
        lambda: ray.get(actor.nothing.remote()),
        1,
    )
    yield (
        "actor calls, 1,000 at once",
        lambda: ray.get([actor.nothing.remote() for _ in range(1000)]),
        1000,
    )
    refs = [task.remote() for _ in range(1000)]
    ray.wait(refs, num_returns=1000)
    yield "wait for 1,000 values", lambda: ray.wait(refs, num_returns=1000), 1


def measure(seconds: float, trials: int) -> Iterator[dict[str, Any]]:
    """Run each line, in the session that is open.

    Args:
        seconds: of each trial.
        trials: how many; the median counts.

    Yields:
        ``{"name", "per_second", "low", "high"}`` of each line, in operations.
    """
    for name, operation, count in _lines():
        operation()
        rates = [_rate(operation, count, seconds) for _ in range(trials)]
        yield {
            "name": name,
            "per_second": statistics.median(rates),
            "low": min(rates),
            "high": max(rates),
        }


def _rate(operation: Callable[[], Any], count: int, seconds: float) -> float:
    done, begin = 0, time.perf_counter()
    while True:
        operation()
        done += count
        took = time.perf_counter() - begin
        if took >= seconds:
            return done / took


@click.command()
@click.option("--seconds", default=0.5, show_default=True, help="Of each trial.")
@click.option("--trials", default=3, show_default=True, help="The median counts.")
@click.option("--address", default="local", help="Default: a session of its own.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table")
def microbenchmark(seconds: float, trials: int, address: str, form: str) -> None:
    """Measure the basic operations on this machine, in operations each second."""
    ray.init(address, log_to_driver=False)
    try:
        if form == "json":
            click.echo(json.dumps(list(measure(seconds, trials)), indent=2))
            return
        for row in measure(seconds, trials):
            click.echo(
                f"{row['name']:34} {row['per_second']:>14,.1f} /s  "
                f"({row['low']:,.1f} to {row['high']:,.1f})"
            )
    finally:
        ray.shutdown()
