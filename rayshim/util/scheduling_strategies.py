"""Strategies that say where a task or actor runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rayshim.lineage.ids import NodeID
from rayshim.util.placement_group import PlacementGroup


class PlacementGroupSchedulingStrategy:
    """Runs in a bundle of a placement group.

    Args:
        placement_group: the group.
        placement_group_bundle_index: bundle, or -1 for any.
        placement_group_capture_child_tasks: calls made from inside go there too.
    """

    def __init__(
        self,
        placement_group: PlacementGroup,
        placement_group_bundle_index: int = -1,
        placement_group_capture_child_tasks: bool | None = None,
    ) -> None:
        self.placement_group = placement_group
        self.placement_group_bundle_index = placement_group_bundle_index
        self.placement_group_capture_child_tasks = placement_group_capture_child_tasks


class NodeAffinitySchedulingStrategy:
    """Runs on one node, or with ``soft`` elsewhere if that node is not there.

    Args:
        node_id: hex id of the node.
        soft: True to fall back to other nodes.
    """

    def __init__(
        self,
        node_id: Any,
        soft: bool,
        _spill_on_unavailable: bool = False,
        _fail_on_unavailable: bool = False,
    ) -> None:
        self.node_id = node_id.hex() if isinstance(node_id, NodeID) else node_id
        self.soft = soft
        if NodeID.from_hex(self.node_id).is_nil():
            raise ValueError(f"node_id {self.node_id} is the nil id; pass a real one")

    def rayshim_reject(self, node_ids: Sequence[str]) -> str:
        """Why a cluster of ``node_ids`` cannot run it, or an empty string."""
        if self.soft or self.node_id in node_ids:
            return ""
        return (
            "The node specified via NodeAffinitySchedulingStrategy doesn't exist any "
            f"more or is infeasible, and soft=False was specified: {self.node_id} is "
            f"not among {', '.join(node_ids)}. Pass soft=True to run elsewhere."
        )
