"""A cluster of three nodes of which two have labels, for the scheduling cases."""

from __future__ import annotations

from typing import Any

from failures.conftest import OWN_RESOURCE, STORE_BYTES, Nodes
from failures.placed import GET_LIMIT_S

import ray

#: Labels of the nodes: "head" is the one that the driver is attached to.
LABELS: dict[str, dict[str, str]] = {
    "head": {},
    "north": {"zone": "north", "tier": "gold", "spot": "true"},
    "south": {"zone": "south", "tier": "silver", "empty": ""},
}
#: CPUs of a node with labels; the head's node has one.
CPUS = 2
#: Long enough for a call that can run to have run.
PENDING_S = 1.0


@ray.remote(num_cpus=0)
class Member:
    """An actor that says where it is."""

    def node(self) -> str:
        """Return the id of its node."""
        return ray.get_runtime_context().get_node_id()

    def labels(self) -> dict[str, str]:
        """Return the labels of its node."""
        return ray.get_runtime_context().get_node_labels()


class Labelled:
    """The nodes by name.

    Attributes:
        nodes: the cluster.
        ids: name -> hex id.
    """

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.ids = {"head": nodes.head_id}
        for name in ("north", "south"):
            node = nodes.add(
                num_cpus=CPUS,
                resources={name: OWN_RESOURCE},
                object_store_memory=STORE_BYTES,
                labels=LABELS[name],
            )
            nodes.of_test.remove(node)
            nodes.standing[name] = node
            self.ids[name] = node.node_id

    def name(self, node_id: str) -> str:
        """Name of a node."""
        return next(name for name, known in self.ids.items() if known == node_id)

    def of(self, *refs: Any) -> list[str]:
        """Names of the nodes whose ids the calls return."""
        return [self.name(one) for one in ray.get(list(refs), timeout=GET_LIMIT_S)]


def is_pending(ref: Any) -> bool:
    """Whether a call has not run after a while in which it could have."""
    return ray.wait([ref], timeout=PENDING_S) == ([], [ref])
