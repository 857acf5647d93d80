"""Placement groups: bundles of resources that are reserved together."""

from __future__ import annotations

from typing import Any

from rayshim._core import current
from rayshim._core.refs import ObjectRef
from rayshim.lineage.ids import PlacementGroupID

VALID_PLACEMENT_GROUP_STRATEGIES = {"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"}


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
        """A reference that is ready when every bundle is reserved."""
        peer = current.require_peer()
        return peer.objects.put_later(
            "wait_placement_group", {"id": self.id.binary(), "timeout_s": None}, self
        )

    def wait(self, timeout_seconds: float = 30) -> bool:
        """True if every bundle is reserved within ``timeout_seconds``."""
        peer = current.require_peer()
        payload = {"id": self.id.binary(), "timeout_s": timeout_seconds}
        answer = peer.request("wait_placement_group", payload, timeout_s=None)
        return bool(answer)

    @property
    def bundle_specs(self) -> list[dict[str, float]]:
        """The bundles, as they were asked for."""
        if self.bundle_cache is None:
            row = placement_group_table(self)
            bundles = row.get("bundles", {})
            self.bundle_cache = [bundles[key] for key in sorted(bundles, key=int)]
        return self.bundle_cache

    @property
    def bundle_count(self) -> int:
        """Number of bundles."""
        return len(self.bundle_specs)

    def _check_request(self, resources: dict[str, float], bundle: int) -> None:
        """Refuse what can never run in the group.

        Raises:
            ValueError: the index is out of range, or no bundle is large enough.
        """
        if self.is_empty:
            return
        specs = self.bundle_specs
        if bundle >= len(specs) or bundle < -1:
            raise ValueError(
                f"placement group bundle index {bundle} is invalid. Valid placement "
                f"group indexes: 0-{len(specs)} (-1 for any)."
            )
        candidates = specs if bundle == -1 else [specs[bundle]]
        for spec in candidates:
            if all(spec.get(name, 0) >= amount for name, amount in resources.items()):
                return
        raise ValueError(
            f"Cannot schedule {resources} in the placement group: the resource request "
            f"cannot fit into any bundles {candidates}."
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"PlacementGroup({self.id.hex()})"


def placement_group(
    bundles: list[dict[str, float]],
    strategy: str = "PACK",
    name: str = "",
    lifetime: str | None = None,
    _soft_target_node_id: str | None = None,
    bundle_label_selector: list[dict[str, str]] | None = None,
) -> PlacementGroup:
    """Ask for bundles of resources that are reserved together.

    Args:
        bundles: resource name -> amount, for each bundle.
        strategy: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD.
        name: a name to find it by.
        lifetime: None (ends with the job) or "detached".
        _soft_target_node_id: not supported.
        bundle_label_selector: not supported yet.

    Returns:
        A handle at once; see :meth:`PlacementGroup.wait`.

    Raises:
        ValueError: bad bundles, strategy or lifetime.
    """
    peer = current.require_peer()
    _check_bundles(bundles)
    if strategy not in VALID_PLACEMENT_GROUP_STRATEGIES:
        raise ValueError(
            f"Invalid strategy type {strategy}. Use one of "
            f"{sorted(VALID_PLACEMENT_GROUP_STRATEGIES)}."
        )
    if lifetime not in (None, "detached"):
        raise ValueError(
            f"placement group `lifetime` must be None or 'detached', not {lifetime!r}"
        )
    for parameter, value in (
        ("_soft_target_node_id", _soft_target_node_id),
        ("bundle_label_selector", bundle_label_selector),
    ):
        if value:
            raise NotImplementedError(
                f"placement_group(): {parameter} is not supported yet: a session has "
                "one node; leave it out"
            )
    group_id = PlacementGroupID.of(_job(peer))
    amounts = [{k: float(v) for k, v in bundle.items()} for bundle in bundles]
    payload = {
        "id": group_id.binary(),
        "bundles": amounts,
        "strategy": strategy,
        "name": name or "",
        "lifetime": lifetime,
    }
    if name:
        peer.request("create_placement_group", payload)
    else:
        peer.notify("create_placement_group", payload)
    return PlacementGroup(group_id, amounts)


def _job(peer: Any) -> Any:
    from rayshim.lineage.ids import JobID

    return JobID(peer.job_id)


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
            if not isinstance(name, str) or isinstance(amount, bool):
                raise ValueError(f"Bundle {bundle!r} must map text to numbers.")
            if not isinstance(amount, (int, float)):
                raise ValueError(f"Bundle {bundle!r} must map text to numbers.")
            if amount < 0:
                raise ValueError(f"Bundle {bundle!r} has a negative amount.")
        if not bundle or all(amount == 0 for amount in bundle.values()):
            raise ValueError(
                "Bundles cannot be an empty dictionary or resources with only 0 "
                f"values. Bundles: {bundles}."
            )


def remove_placement_group(placement_group: PlacementGroup) -> None:
    """Free the bundles and end the tasks and actors in them."""
    assert placement_group is not None
    peer = current.require_peer()
    peer.notify("remove_placement_group", {"id": placement_group.id.binary()})


def get_placement_group(placement_group_name: str) -> PlacementGroup:
    """Find a group by its name.

    Raises:
        ValueError: no group has it.
    """
    if not placement_group_name:
        raise ValueError("Please supply a non-empty value to get_placement_group")
    for hex_id, row in placement_group_table().items():
        if row["name"] == placement_group_name and row["state"] != "REMOVED":
            return PlacementGroup(PlacementGroupID.from_hex(hex_id))
    raise ValueError(
        f"Failed to look up placement group with name '{placement_group_name}'."
    )


def placement_group_table(
    placement_group: PlacementGroup | None = None,
) -> dict[str, Any]:
    """State of one group, or hex id -> state of all."""
    peer = current.require_peer()
    payload = {"id": placement_group.id.binary() if placement_group else None}
    answer: dict[str, Any] = peer.request("placement_group_table", payload)
    return answer


def get_current_placement_group() -> PlacementGroup | None:
    """The group that the running task or actor is in, or None."""
    from rayshim.runtime_context import get_runtime_context

    hex_id = get_runtime_context().get_placement_group_id()
    if hex_id is None:
        return None
    return PlacementGroup(PlacementGroupID.from_hex(hex_id))
