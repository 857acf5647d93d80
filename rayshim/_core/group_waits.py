"""What the value of ``PlacementGroup.ready()`` hangs on."""

from __future__ import annotations


class GroupWait:
    """The entry of an object that is ready when a placement group is."""

    __slots__ = ("group_id",)

    def __init__(self, group_id: bytes) -> None:
        self.group_id = group_id

    @property
    def actor_id(self) -> bytes:
        """It waits for no actor."""
        return b""

    def return_dropped(self, object_id: bytes) -> None:
        """Nobody waits any more; the group comes all the same."""

    def describe(self) -> str:
        """For explanations."""
        return f"it waits for the bundles of placement group {self.group_id.hex()}"

    def lease_ids(self) -> list[bytes]:
        """It waits for no lease."""
        return []
