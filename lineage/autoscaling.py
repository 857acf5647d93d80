"""Which nodes to start and to stop, given what a cluster lacks. Stub of signatures."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rayshim.lineage.demand import Demand
from rayshim.lineage.node_groups import Launching, NodeGroup, Plan

#: Seconds after which a demand is too old to stop, or start, anything for it.
STALE_S = 30.0


def plan(
    demand: Demand,
    groups: Sequence[NodeGroup],
    *,
    now: float,
    launching: Sequence[Launching] = (),
    draining: Collection[str] = (),
    may_drain: bool = True,
) -> Plan:
    """What to start and to stop now.

    Args:
        demand: what the control service says; one older than ``STALE_S`` starts only
            what groups must have, and stops nothing.
        groups: in order of preference, all else being equal.
        now: Unix time.
        launching: nodes that were asked for and are not in ``demand.nodes``.
        draining: hex ids of nodes whose drain was decided; it can be given up as long
            as the demand does not call the node draining.
        may_drain: False while the demand may be incomplete (a head that has just
            been restarted): nothing is stopped.
    """
    return Plan()
