"""Placement groups: how many are made and removed in a second."""

from __future__ import annotations

import importlib
import time
from typing import Any

from cases import Line, case, session

#: Length of a trial, and of the one before it for warming up.
TRIAL_S = 2.0


@case(
    "groups",
    Line("groups made and removed", "1/s", more_is_better=True, times_ray=1.5),
)
def groups(ray: Any) -> float:
    """One bundle each, one after the other, on a node of 4 CPUs."""
    module = importlib.import_module(f"{ray.__name__}.util.placement_group")
    with session(ray, num_cpus=4):
        for _ in range(2):
            made_count, started = 0, time.perf_counter()
            while time.perf_counter() - started < TRIAL_S:
                made = module.placement_group([{"CPU": 1}])
                ray.get(made.ready())
                module.remove_placement_group(made)
                made_count += 1
            rate = made_count / (time.perf_counter() - started)
    return rate
