"""Groups of actors that the driver makes and ends, and collective nodes of graphs."""

from __future__ import annotations

from rayshim.experimental.collective.collective import (
    create_collective_group,
    destroy_all_collective_groups,
    destroy_collective_group,
    get_collective_groups,
)
from rayshim.experimental.collective.operations import (
    allgather,
    allreduce,
    reducescatter,
)

__all__ = [
    "allgather",
    "allreduce",
    "create_collective_group",
    "destroy_all_collective_groups",
    "destroy_collective_group",
    "get_collective_groups",
    "reducescatter",
]
