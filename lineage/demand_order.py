"""In which order demand is served, and which parts of it are equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rayshim.lineage.demand import Demand, GangDemand, ShapeDemand
from rayshim.lineage.resources import GPU


def by_age(gangs: Sequence[GangDemand]) -> list[GangDemand]:
    """The oldest ones first."""
    return sorted(gangs, key=lambda one: (-one.oldest_s, one.group_id))


def by_size(shapes: Sequence[ShapeDemand]) -> list[ShapeDemand]:
    """Those that few nodes can hold first."""

    def size(shape: ShapeDemand) -> tuple[bool, float, int, float, float]:
        need = shape.resources
        return (
            not shape.node_ids,
            -need.get(GPU, 0),
            -len(need),
            -max(need.values(), default=0.0),
            -sum(need.values()),
        )

    return sorted(shapes, key=size)


def requested_shapes(demand: Demand) -> list[ShapeDemand]:
    """What is asked for ahead of use, equal bundles together."""
    counts: dict[tuple[tuple[str, ...], ...], int] = {}
    found: dict[tuple[tuple[str, ...], ...], ShapeDemand] = {}
    labels = demand.requested_labels or ({},) * len(demand.requested)
    for need, selector in zip(demand.requested, labels, strict=True):
        key = (
            tuple(f"{name}={amount}" for name, amount in sorted(need.items())),
            tuple(f"{name}={text}" for name, text in sorted(selector.items())),
        )
        counts[key] = counts.get(key, 0) + 1
        found.setdefault(
            key, ShapeDemand(need, 1, labels=selector, label="request_resources")
        )
    return [replace(one, count=counts[key]) for key, one in found.items()]
