"""What an autoscaler is given beside the demand, and what it is told to do.

:func:`rayshim.lineage.autoscaling.plan` makes a :class:`Plan` of them. Amounts are
floats as users write them, durations are seconds, times are Unix times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from rayshim.lineage.resources import GPU


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Equal nodes that can be started and stopped.

    Raises:
        ValueError: the numbers contradict each other, or a node cannot have them.
        TypeError: one is no number.
    """

    name: str
    #: Amount of each resource that one node has.
    resources: Mapping[str, float]
    #: Labels of its nodes; each has ``NODE_GROUP_LABEL`` besides.
    labels: Mapping[str, str] = field(default_factory=dict)
    #: So many are there, needed or not.
    min_nodes: int = 0
    #: Never more than so many, with those that start and those that drain.
    max_nodes: int = 1
    #: So many stand idle beside those that are in use, if ``max_nodes`` allows it.
    warm_nodes: int = 0
    #: One that nothing needs for so long is drained.
    idle_timeout_s: float = 60.0
    #: Nodes that may start at once for single requests, for each one that runs.
    upscaling_speed: float = 1.0
    #: What a start takes; after twice that it counts as late.
    cold_start_s: float = 60.0
    #: Of one node for an hour; None: unknown. Only compared with other groups'.
    price: float | None = None
    #: A placement group that needs new nodes of it gets nodes for itself, as many as
    #: it needs if all are empty: whoever starts nodes starts these together.
    is_apart: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.min_nodes <= self.max_nodes:
            raise ValueError(
                f"node group {self.name!r}: min_nodes must be between 0 and max_nodes "
                f"({self.max_nodes}), not {self.min_nodes}"
            )
        for limit in (self.warm_nodes, self.idle_timeout_s, self.upscaling_speed):
            if not limit >= 0:
                raise ValueError(
                    f"node group {self.name!r}: warm_nodes, idle_timeout_s and "
                    f"upscaling_speed must not be negative, not {limit}"
                )
        for name, amount in self.resources.items():
            if not isinstance(amount, (int, float)):
                raise TypeError(
                    f"node group {self.name!r}: the amount of {name} must be a number, "
                    f"not {amount!r}"
                )
            if amount < 0 or not math.isfinite(amount):
                raise ValueError(
                    f"node group {self.name!r}: the amount of {name} must be finite "
                    f"and not negative, not {amount}"
                )

    @property
    def is_gpu(self) -> bool:
        """Whether its nodes have GPUs."""
        return self.resources.get(GPU, 0) > 0


@dataclass(frozen=True, slots=True)
class Launching:
    """A node that was asked for and has not joined the cluster."""

    group: str
    #: When it was asked for.
    started_s: float
    #: Its hex id if that is known; it counts no more once the demand names the node.
    node_id: str = ""
    #: How far it has come; what has come less far is cancelled first.
    progress: int = 0


@dataclass(frozen=True, slots=True)
class Apart:
    """Nodes to be started together for one placement group."""

    #: Hex id of the placement group.
    group_id: str
    #: Name of the node group, one with ``is_apart``.
    group: str
    count: int


@dataclass(frozen=True, slots=True)
class Drain:
    """A node to be drained, and stopped once it has left."""

    node_id: str
    group: str
    #: For people.
    reason: str


@dataclass(frozen=True, slots=True)
class Unmet:
    """A part of the demand that the running nodes have no room for."""

    #: "lease", "gang" or "requested".
    kind: str
    #: What it is for, or the hex id of the placement group.
    subject: str
    #: How many equal requests; for a gang the number of its bundles.
    count: int
    #: For people, with numbers and what would help.
    text: str
    #: It would get nodes if a group were allowed more of them.
    is_limited: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now. All empty: nothing."""

    #: Name of a group -> nodes to start, > 0.
    launch: Mapping[str, int] = field(default_factory=dict)
    #: Nodes to start beside those, each for one placement group.
    apart: tuple[Apart, ...] = ()
    drain: tuple[Drain, ...] = ()
    #: Hex ids of nodes whose drain is to be given up.
    undrain: tuple[str, ...] = ()
    #: Nodes that start and that nothing needs any more, for a while now.
    cancel: tuple[Launching, ...] = ()
    #: Fits no group and no node; nothing is started for it.
    infeasible: tuple[Unmet, ...] = ()
    #: Fits once nodes have started, or others have given back.
    waiting: tuple[Unmet, ...] = ()
    #: Have been starting for more than twice ``cold_start_s``.
    late: tuple[Launching, ...] = ()
