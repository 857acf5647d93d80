"""Placement groups: how many are made and removed in a second."""

from __future__ import annotations

import importlib
import time
from typing import Any

from cases import Line, case, session

#: Groups in one trial, after as many for warming up.
GROUPS = 100


@case(
    "groups",
    Line("groups made and removed", "1/s", more_is_better=True, times_ray=1.5),
)
def groups(ray: Any) -> float:
    """One bundle each, one after the other, on a node of 4 CPUs."""
    module = importlib.import_module(f"{ray.__name__}.util.placement_group")
    with session(ray, num_cpus=4):
        for _ in range(2):
            started = time.perf_counter()
            for _ in range(GROUPS):
                made = module.placement_group([{"CPU": 1}])
                ray.get(made.ready())
                module.remove_placement_group(made)
            rate = GROUPS / (time.perf_counter() - started)
    return rate
