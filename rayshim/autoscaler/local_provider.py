"""Nodes of this machine: processes of a :class:`rayshim.cluster_utils.Cluster`."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rayshim.autoscaler.provider import ProvidedNode
from rayshim.lineage.demand import NODE_GROUP_LABEL
from rayshim.lineage.node_groups import NodeGroup

if TYPE_CHECKING:
    from rayshim.cluster_utils import Cluster, ClusterNode

#: Bytes of the object store of a node whose group does not say.
STORE_BYTES = 150 * 1024 * 1024


class LocalProvider:
    """Starts and stops nodes beside the others of a cluster on this machine.

    Args:
        cluster: with a head.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        #: Node id -> (node, group, when it was started).
        self._nodes: dict[str, tuple[ClusterNode, str, float]] = {}
        self._ending: list[threading.Thread] = []

    def launch(self, group: NodeGroup, count: int) -> None:
        """See :class:`~rayshim.autoscaler.provider.Provider`."""
        for _ in range(count):
            node = self._cluster.launch_node(**node_args(group))
            self._nodes[node.node_id] = (node, group.name, time.time())

    def stop(self, node_id: str) -> None:
        """See :class:`~rayshim.autoscaler.provider.Provider`."""
        known = self._nodes.pop(node_id, None)
        if known is None:
            return
        self._cluster.worker_nodes.discard(known[0])
        # It may take a second, in which nothing else would be decided.
        self._ending = [one for one in self._ending if one.is_alive()]
        thread = threading.Thread(target=known[0].end, name="rayshim-node-end")
        thread.start()
        self._ending.append(thread)

    def list(self) -> Sequence[ProvidedNode]:
        """See :class:`~rayshim.autoscaler.provider.Provider`."""
        return [
            ProvidedNode(node_id, group, started_s, _failure(node))
            for node_id, (node, group, started_s) in self._nodes.items()
        ]

    def close(self) -> None:
        """Waits for the ends of nodes that were stopped; others stay."""
        for thread in self._ending:
            thread.join()
        self._ending.clear()


def node_args(group: NodeGroup) -> dict[str, Any]:
    """A group's node as arguments of ``Cluster.add_node``."""
    own = dict(group.resources)
    args: dict[str, Any] = {
        "num_cpus": own.pop("CPU", 0),
        "num_gpus": own.pop("GPU", 0),
        "object_store_memory": int(own.pop("object_store_memory", STORE_BYTES)),
        "labels": {**group.labels, NODE_GROUP_LABEL: group.name},
    }
    if "memory" in own:
        args["memory"] = int(own.pop("memory"))
    return {**args, "resources": own}


def _failure(node: ClusterNode) -> str:
    process = node.process
    if process is None:
        return "it was ended"
    code = process.process.poll()
    if code is None:
        return ""
    words = process.last_words().strip().splitlines()
    last = f": {words[-1]}" if words else ""
    return f"its process ended with code {code}{last}"
