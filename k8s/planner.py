"""What the autoscaler does next, given what is lacking and what is there. Pure."""

from __future__ import annotations

from rayshim.k8s.config import Platform
from rayshim.k8s.observed import Decisions, Memory, Observed
from rayshim.lineage.demand import Demand


def decide(
    demand: Demand | None,
    observed: Observed,
    platform: Platform,
    now: float,
    *,
    memory: Memory | None = None,
    may_stop: bool = True,
) -> Decisions:
    """What to do now."""
    raise NotImplementedError
