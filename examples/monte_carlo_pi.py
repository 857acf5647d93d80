"""Estimate pi from random points, with tasks that report progress to an actor.

Every task draws from its own seed, so the estimate is the same whatever the order in
which tasks run, and it is compared with the known value and a serial rerun of one task.

    python examples/monte_carlo_pi.py --tasks 20 --points 200000
"""

from __future__ import annotations

import argparse
import math
import random
import sys

import rayshim as ray


@ray.remote
class Progress:
    """Counts the points that tasks have drawn so far."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done: dict[int, int] = {}

    def report(self, task: int, points: int) -> None:
        self.done[task] = points

    def fraction(self) -> float:
        return sum(self.done.values()) / self.total


def count_inside(seed: int, points: int) -> int:
    draw = random.Random(seed).random
    return sum(draw() ** 2 + draw() ** 2 <= 1.0 for _ in range(points))


@ray.remote
def sample(progress: ray.actor.ActorHandle, seed: int, points: int) -> int:
    inside = count_inside(seed, points)
    progress.report.remote(seed, points)
    return inside


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=20, help="number of tasks")
    parser.add_argument("--points", type=int, default=200_000, help="points per task")
    options = parser.parse_args()

    ray.init()
    total = options.tasks * options.points
    progress = Progress.remote(total)
    pending = [
        sample.remote(progress, seed, options.points) for seed in range(options.tasks)
    ]
    refs = list(pending)
    while pending:
        _, pending = ray.wait(pending, num_returns=min(5, len(pending)), timeout=10)
        print(f"{ray.get(progress.fraction.remote()):.0%} drawn")

    counts = ray.get(refs)
    estimate = 4 * sum(counts) / total
    # Five standard deviations of a fraction of `total` draws, times four.
    tolerance = 5 * 4 * math.sqrt(math.pi / 4 * (1 - math.pi / 4) / total)
    print(f"pi is about {estimate:.5f}, {abs(estimate - math.pi):.5f} off")
    if abs(estimate - math.pi) > tolerance:
        print(f"MISMATCH: more than {tolerance:.5f} off", file=sys.stderr)
        return 1
    if counts[0] != count_inside(0, options.points):
        print("MISMATCH: a serial rerun of the first task differs", file=sys.stderr)
        return 1
    print("OK")
    return 0


if __name__ == "__main__":
    sys.exit(main())
