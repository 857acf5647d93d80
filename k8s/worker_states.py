"""Which part of its life each worker is in. Pure.

See "One worker's life" in the design: *starting*, *joined*, *draining*, *left*, *lost*,
*deleting*. (*Owed* workers have no name yet; the planner counts them by group.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rayshim.k8s import names
from rayshim.k8s.observed import Memory, Observed, PodState, Worker
from rayshim.lineage.demand import Demand, NodeFacts

#: Seconds after which a worker that drains, and that no node is any more, has left: one
#: whose drain was refused joins anew, and is away for a moment.
GONE_S: Final = 1.0
#: Seconds for a node to say that it drains; after that it has refused.
DRAIN_ANSWER_S: Final = 3.0


class WorkerState(Enum):
    """Of a Deployment; values are those of the metric's label."""

    #: No node has its name yet.
    STARTING = "starting"
    JOINED = "joined"
    #: Its node was asked to leave.
    DRAINING = "draining"
    #: Its node was asked to leave and has.
    LEFT = "left"
    #: It was in the cluster and is not: its Deployment starts it anew.
    LOST = "lost"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class Seen:
    """A worker, and what the head says of it."""

    worker: Worker
    state: WorkerState
    #: None: no node has its name.
    node: NodeFacts | None = None
    #: Of one that is lost or has left: since when, Unix time.
    since_s: float = 0.0

    @property
    def has_returned(self) -> bool:
        """Whether its node left, and its pod has started another one since."""
        return (
            self.state is WorkerState.DRAINING
            and self.node is not None
            and bool(self.worker.draining_node)
            and self.worker.draining_node != self.node.node_id
        )

    @property
    def is_idle(self) -> bool:
        """Whether it has a node with nothing on it."""
        node = self.node
        return node is not None and all(
            node.available.get(name, 0) >= amount for name, amount in node.total.items()
        )

    @property
    def is_away(self) -> bool:
        """Whether it is certain that no node of it comes back by itself."""
        return self.node is None and self.worker.pod not in (
            PodState.RUNNING,
            PodState.READY,
        )


def nodes_by_worker(demand: Demand | None) -> dict[str, NodeFacts]:
    """Worker -> its node; of two the one that stays, which is the newer one."""
    found: dict[str, NodeFacts] = {}
    for node in demand.nodes if demand is not None else ():
        worker = node.labels.get(names.WORKER, "")
        if worker and (worker not in found or found[worker].is_draining):
            found[worker] = node
    return found


def survey(
    observed: Observed, demand: Demand | None, now: float, memory: Memory
) -> Mapping[str, Seen]:
    """All workers by name.

    Args:
        observed: what is in Kubernetes.
        demand: what the head said last.
        now: Unix time.
        memory: since when workers are absent.
    """
    nodes = nodes_by_worker(demand)
    found: dict[str, Seen] = {}
    for worker in observed.workers:
        node = nodes.get(worker.name)
        since_s = memory.absent.get(worker.name, now) if node is None else 0.0
        state = _state(worker, node is not None)
        found[worker.name] = Seen(worker, state, node, since_s)
    return found


def _state(worker: Worker, has_node: bool) -> WorkerState:
    is_going = worker.draining_since_s is not None
    if worker.is_deleting:
        return WorkerState.DELETING
    if has_node:
        return WorkerState.DRAINING if is_going else WorkerState.JOINED
    if is_going:
        return WorkerState.LEFT
    return WorkerState.LOST if worker.has_joined else WorkerState.STARTING
