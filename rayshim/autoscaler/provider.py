"""What the autoscaler needs of whatever starts and stops nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rayshim.lineage.node_groups import NodeGroup


@dataclass(frozen=True, slots=True)
class ProvidedNode:
    """A node that a provider was asked for and has not been told to stop."""

    #: Hex id of the node in the cluster; its provider chooses it before the start.
    node_id: str
    #: Name of its group.
    group: str
    #: When it was asked for, Unix time.
    started_s: float
    #: Why it will never come, or is gone; empty while it starts or runs.
    failure: str = ""


class Provider(Protocol):
    """Starts and stops nodes of groups.

    The autoscaler calls it from one thread. A call does not wait until a node is up, or
    down: what comes of it is seen in :meth:`list`. Whatever may fail raises ``OSError``
    (or a subclass, as ``ConnectionError``) and is tried again.

    A node that is started has the resources and labels of its group, the label
    :data:`rayshim.lineage.demand.NODE_GROUP_LABEL` with the group's name, and an id
    that the provider chose: 28 random bytes as hex.
    """

    def launch(self, group: NodeGroup, count: int) -> None:
        """Begins to start nodes."""

    def stop(self, node_id: str) -> None:
        """Ends a node, whatever state it is in; nothing if there is no such node.

        The autoscaler has drained it before, or it never joined, or it is dead.
        """

    def list(self) -> Sequence[ProvidedNode]:
        """All nodes that were launched and not stopped, also those that failed."""
