"""Placement groups: bundles of resources that are reserved together."""

from __future__ import annotations

import math
import warnings
from typing import Any

from rayshim import exceptions
from rayshim._core import current
from rayshim._core.group_places import check_index
from rayshim._core.label_selectors import check_label_selector
from rayshim._core.refs import ObjectRef
from rayshim._core.sendable import MAX_AMOUNT, check_text
from rayshim.lineage.ids import NodeID, PlacementGroupID

VALID_PLACEMENT_GROUP_STRATEGIES = {"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"}
#: Label with the id of a node; in ``topology_strategy`` it stands for ``strategy``.
NODE_ID_LABEL_KEY = "ray.io/node-id"
#: The smallest amount of a resource.
_SMALLEST = 0.0001


class PlacementGroup:
    """A handle of a placement group.

    Example:
        >>> group = placement_group([{"CPU": 1}])  # doctest: +SKIP
        >>> group.wait(timeout_seconds=10)  # doctest: +SKIP
        True
    """

    def __init__(
        self, id: PlacementGroupID, bundle_cache: list[dict[str, float]] | None = None
    ) -> None:
        self.id = id
        self.bundle_cache = bundle_cache

    @staticmethod
    def empty() -> PlacementGroup:
        """The group that means "none"."""
        return PlacementGroup(PlacementGroupID.nil())

    @property
    def is_empty(self) -> bool:
        """True for the group that means "none"."""
        return self.id.is_nil()

    def ready(self) -> ObjectRef:
        """A reference to this handle that is ready when every bundle is reserved.

        ``get`` of it raises TaskPlacementGroupRemoved if the group is removed.
        """
        peer = current.require_peer()
        if self.is_empty:
            return peer.objects.put(self)
        return peer.objects.put_later(
            "wait_placement_group", {"id": self.id.binary(), "timeout_s": None}, self
        )

    def wait(self, timeout_seconds: float = 30) -> bool:
        """True if every bundle is reserved within ``timeout_seconds``.

        Raises:
            TaskPlacementGroupRemoved: the group was removed.
            TypeError: ``timeout_seconds`` is no number.
        """
        given: Any = timeout_seconds
        if isinstance(given, str) or given is None:
            raise TypeError(
                f"timeout_seconds must be a number of seconds, not {timeout_seconds!r}"
            )
        if self.is_empty or timeout_seconds < 0:
            return False
        peer = current.require_peer()
        payload = {"id": self.id.binary(), "timeout_s": float(timeout_seconds)}
        try:
            answer = peer.request("wait_placement_group", payload, timeout_s=None)
        except exceptions.TaskPlacementGroupRemoved:
            raise exceptions.TaskPlacementGroupRemoved(
                f"Placement group {self.id!r} does not exist: it was removed. Make a "
                "new one with placement_group()"
            ) from None
        return bool(answer)

    @property
    def bundle_specs(self) -> list[dict[str, float]]:
        """The bundles, as they were asked for; empty for a group that is unknown."""
        if not self.bundle_cache:
            row = {} if self.is_empty else placement_group_table(self)
            bundles = row.get("bundles", {})
            self.bundle_cache = [bundles[key] for key in sorted(bundles, key=int)]
        return self.bundle_cache

    @property
    def bundle_count(self) -> int:
        """Number of bundles."""
        return len(self.bundle_specs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"PlacementGroup({self.id.hex()})"


def placement_group(
    bundles: list[dict[str, float]],
    strategy: str | None = None,
    name: str = "",
    lifetime: str | None = None,
    _soft_target_node_id: str | None = None,
    bundle_label_selector: list[dict[str, str]] | None = None,
    topology_strategy: dict[str, str] | None = None,
) -> PlacementGroup:
    """Ask for bundles of resources that are reserved together, all or none.

    Args:
        bundles: resource name -> amount, for each bundle.
        strategy: PACK (the default), SPREAD, STRICT_PACK or STRICT_SPREAD.
        name: a name to find it by, in the namespace of the session.
        lifetime: None or "detached". A group that is not detached ends with the job
            that made it, and with the actor that made it if one did; for a detached
            actor's groups only the actor counts.
        _soft_target_node_id: hex id of the node that is tried first; for STRICT_PACK.
        bundle_label_selector: label selector of each bundle; its node satisfies it.
        topology_strategy: label name -> strategy. All nodes of the group have the same
            value of a label with "STRICT_PACK"; ``ray.io/node-id`` stands for
            ``strategy``, which must be left out then.

    Returns:
        A handle at once; see :meth:`PlacementGroup.wait`.

    Raises:
        ValueError: a parameter has a wrong form.
        RaySystemError: another group has the name.
    """
    peer = current.require_peer()
    validate_placement_group(
        bundles,
        strategy,
        lifetime,
        _soft_target_node_id,
        bundle_label_selector,
        topology_strategy,
    )
    if not isinstance(name, str):
        raise TypeError(f"the name of a placement group must be text, not {name!r}")
    check_text("name", name)
    topology = dict(topology_strategy or {})
    strategy = topology.pop(NODE_ID_LABEL_KEY, strategy) or "PACK"
    group_id = PlacementGroupID.of(_job(peer))
    amounts = [{k: float(v) for k, v in bundle.items()} for bundle in bundles]
    payload: dict[str, Any] = {
        "id": group_id.binary(),
        "bundles": amounts,
        "strategy": strategy,
    }
    if lifetime is not None:
        payload["lifetime"] = lifetime
    if any(bundle_label_selector or ()):
        payload["selectors"] = bundle_label_selector
    if topology:
        payload["topology"] = next(iter(topology))
    if _soft_target_node_id:
        payload["target"] = _soft_target_node_id
    executor = peer.executor
    if executor is not None:
        payload["job"] = peer.job_id
        if executor.actor is not None:
            payload["actor"] = executor.actor.actor_id
    if name:
        payload["name"] = name
        payload["namespace"] = peer.namespace
        peer.request("create_placement_group", payload)
    else:
        peer.notify("create_placement_group", payload)
    return PlacementGroup(group_id, amounts)


def _job(peer: Any) -> Any:
    from rayshim.lineage.ids import JobID

    return JobID(peer.job_id)


def validate_placement_group(
    bundles: list[dict[str, float]],
    strategy: str | None = None,
    lifetime: str | None = None,
    _soft_target_node_id: str | None = None,
    bundle_label_selector: list[dict[str, str]] | None = None,
    topology_strategy: dict[str, str] | None = None,
) -> None:
    """Check the parameters of :func:`placement_group`.

    Raises:
        ValueError: one has a wrong form.
    """
    valid = sorted(VALID_PLACEMENT_GROUP_STRATEGIES)
    if strategy is not None and topology_strategy is not None:
        raise ValueError(
            "`strategy` and `topology_strategy` cannot both be specified: put the "
            f"strategy into topology_strategy[{NODE_ID_LABEL_KEY!r}]"
        )
    if strategy is not None and strategy not in VALID_PLACEMENT_GROUP_STRATEGIES:
        raise ValueError(
            f"Invalid placement group strategy {strategy}; it must be one of {valid}"
        )
    if topology_strategy is not None:
        _check_topology(topology_strategy)
        strategy = topology_strategy.get(NODE_ID_LABEL_KEY)
    if _soft_target_node_id:
        _check_target(_soft_target_node_id, strategy or "PACK")
    _check_bundles(bundles)
    if bundle_label_selector is not None:
        _check_selectors(bundle_label_selector, len(bundles))
    if lifetime not in (None, "detached"):
        raise ValueError(
            "Placement group `lifetime` argument must be either `None` or 'detached', "
            f"not {lifetime!r}"
        )


def _check_topology(strategies: Any) -> None:
    if not isinstance(strategies, dict):
        raise ValueError(
            f"`topology_strategy` must be a dict, not a {type(strategies).__name__}"
        )
    for key, value in strategies.items():
        if not isinstance(key, str) or not key:
            raise ValueError(
                f"`topology_strategy` keys must be non-empty strings, not {key!r}"
            )
        if value not in VALID_PLACEMENT_GROUP_STRATEGIES:
            raise ValueError(
                f"Invalid topology strategy {value!r} for label {key!r}; it must be "
                f"one of {sorted(VALID_PLACEMENT_GROUP_STRATEGIES)}"
            )
        if key != NODE_ID_LABEL_KEY and value != "STRICT_PACK":
            raise ValueError(
                f"Topology strategy {value!r} for label {key!r} is not supported: only "
                f"'STRICT_PACK' is, for labels other than {NODE_ID_LABEL_KEY!r}"
            )
    labels = [key for key in strategies if key != NODE_ID_LABEL_KEY]
    if len(labels) > 1:
        raise ValueError(
            "`topology_strategy` may have one label other than "
            f"{NODE_ID_LABEL_KEY!r}, not {labels}"
        )


def _check_target(node_id: Any, strategy: str) -> None:
    if strategy != "STRICT_PACK":
        raise ValueError(
            "_soft_target_node_id currently only works with STRICT_PACK but got "
            f"{strategy}"
        )
    try:
        is_id = not NodeID.from_hex(node_id).is_nil()
    except (TypeError, ValueError):
        is_id = False
    if not is_id:
        raise ValueError(f"Invalid hex ID of _soft_target_node_id, got {node_id}")


def _check_selectors(selectors: Any, count: int) -> None:
    if not isinstance(selectors, list):
        raise ValueError(
            "Placement group bundle_label_selector must be a list, got "
            f"{type(selectors)}."
        )
    if len(selectors) != count:
        raise ValueError(
            f"Invalid bundle label selector {selectors}: there must be one for each of "
            f"the {count} bundles; {{}} stands for none"
        )
    for selector in selectors:
        try:
            if not isinstance(selector, dict):
                raise TypeError(f"a label_selector is a dict, not {selector!r}")
            check_label_selector(selector)
        except (TypeError, ValueError) as error:
            raise ValueError(
                "Invalid label selector provided in bundle_label_selector list: "
                f"{error}. Bundle label selector must be a list of string dictionary "
                'label selectors, such as [{"ray.io/market-type": "spot"}]'
            ) from None


def _check_bundles(bundles: Any) -> None:
    if not isinstance(bundles, list):
        raise ValueError(
            f"Placement group bundles must be a list, got {type(bundles)}."
        )
    if not bundles:
        raise ValueError("Bundles must be a non-empty list of resource dicts.")
    for bundle in bundles:
        if not isinstance(bundle, dict):
            raise ValueError(f"Bundles must be a list of dicts, got {bundle!r}.")
        for name, amount in bundle.items():
            if not isinstance(name, str) or not isinstance(amount, (int, float)):
                raise ValueError(f"Bundle {bundle!r} must map text to numbers.")
            if not name:
                raise ValueError(f"Bundle {bundle!r} has a resource without a name.")
            check_text("bundles", name)
            if amount < 0 or amount == math.inf or amount != amount:
                raise ValueError(
                    f"Bundle {bundle!r} has an amount that is negative or not finite."
                )
            if amount > MAX_AMOUNT:
                raise ValueError(
                    f"A bundle cannot have more than {MAX_AMOUNT:g} of {name!r}: no "
                    "node has as much."
                )
            if 0 < amount < _SMALLEST:
                raise ValueError(
                    f"Bundle {bundle!r} has an amount below {_SMALLEST:f}, the "
                    "smallest part of a resource; ask for that much, or for 0."
                )
        if not bundle or all(amount == 0 for amount in bundle.values()):
            raise ValueError(
                "Bundles cannot be an empty dictionary or resources with only 0 "
                f"values. Bundles: {bundles}."
            )
        if "object_store_memory" in bundle:
            warnings.warn(
                "'object_store_memory' in a bundle reserves no memory of the object "
                "store: values that do not fit are spilled. Leave it out.",
                DeprecationWarning,
                stacklevel=4,
            )


def check_placement_group_index(
    placement_group: PlacementGroup, bundle_index: int
) -> None:
    """Check the index of a bundle; -1 stands for any.

    Raises:
        ValueError: the group has no such bundle.
    """
    assert placement_group is not None
    check_index(placement_group, bundle_index)


def remove_placement_group(placement_group: PlacementGroup) -> None:
    """Free the bundles and end the tasks and actors in them; returns at once."""
    assert placement_group is not None
    if placement_group.is_empty:
        return
    peer = current.require_peer()
    peer.notify("remove_placement_group", {"id": placement_group.id.binary()})


def get_placement_group(placement_group_name: str) -> PlacementGroup:
    """Find a group of the session's namespace by its name.

    Raises:
        ValueError: no group has it.
    """
    if not placement_group_name:
        raise ValueError("Please supply a non-empty value to get_placement_group")
    peer = current.require_peer()
    payload = {"name": placement_group_name, "namespace": peer.namespace}
    hex_id = peer.request("get_placement_group", payload)
    if not hex_id:
        raise ValueError(
            f"Failed to look up placement group with name: {placement_group_name}"
        )
    return PlacementGroup(PlacementGroupID.from_hex(hex_id))


def placement_group_table(
    placement_group: PlacementGroup | None = None,
) -> dict[str, Any]:
    """State of one group, or hex id -> state of all; empty for an unknown group."""
    peer = current.require_peer()
    payload = {"id": placement_group.id.binary() if placement_group else None}
    answer: dict[str, Any] = peer.request("placement_group_table", payload)
    return answer


def get_current_placement_group() -> PlacementGroup | None:
    """The group that the running task or actor is in, or None."""
    group_id = current.require_peer().lease_group.group_id
    return PlacementGroup(PlacementGroupID(group_id)) if group_id else None
