"""Tells drivers of placement groups that no nodes of the cluster can hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rayshim.adapters.wire import messages as wire
from rayshim.lineage import placement_groups as pg
from rayshim.lineage.placement import View
from rayshim.lineage.resources import describe

if TYPE_CHECKING:
    from rayshim.adapters.raylet.channels import ChannelServer

#: Seconds after which a driver is told, if the settings say nothing else.
NOTICE_S = 30.0


class GroupNotices:
    """Looks at groups some time after they began to wait, and tells once.

    Args:
        server: The process of the control service.
        machine: The groups.
        views: Gives the nodes that may get work.
    """

    def __init__(
        self,
        server: ChannelServer,
        machine: pg.PlacementGroups,
        views: Callable[[], Sequence[View]],
    ) -> None:
        self._server = server
        self._machine = machine
        self._views = views
        self._after_s = float(server.config.settings.get("pending_warn_s", NOTICE_S))
        #: Group id -> when to look at it, in that order.
        self._due: dict[bytes, float] = {}
        self._is_armed = False

    def watch(self, group_id: bytes) -> None:
        """A group has begun to wait."""
        if self._after_s > 0:
            self._due[group_id] = self._server.now() + self._after_s
            self._arm(self._after_s)

    def _arm(self, delay_s: float) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._server.loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        self._is_armed = False
        now = self._server.now()
        for group_id, due in list(self._due.items()):
            if due > now:
                self._arm(due - now)
                return
            del self._due[group_id]
            group = self._machine.groups.get(group_id)
            is_over = group is None or group.state in (
                pg.GroupState.CREATED,
                pg.GroupState.REMOVED,
            )
            if group is not None and not is_over:
                self._tell(group, now)

    def _tell(self, group: pg.Group, now: float) -> None:
        driver = self._server.drivers.get(group.job_id)
        if driver is None or not self._machine.is_infeasible(
            group.group_id, self._views()
        ):
            return
        line = wire.LogLines(
            0, "scheduler", "err", [text_of(group, now)], "", group.job_id
        )
        driver.connection.send(line)


def text_of(group: pg.Group, now: float) -> str:
    """What a driver is told of a group that fits nowhere."""
    name = f"{group.name!r} ({group.group_id.hex()})" if group.name else ""
    missing = group.missing
    shapes = Counter(describe(bundle) for bundle in missing.values())
    wanted = ", ".join(f"{count} x {shape}" for shape, count in shapes.items())
    wishes = ""
    if group.selectors:
        labels = [dict(group.selectors[index]) for index in missing]
        wishes += f", label selectors {labels}"
    if group.topology:
        wishes += f", one value of label {group.topology!r}"
    return (
        f"placement group {name or group.group_id.hex()} has waited for "
        f"{now - group.requested_s:.0f} s, and no nodes of this cluster could hold its "
        f"bundles even if they were idle: {wanted}, strategy {group.strategy}{wishes}. "
        "It waits until suitable nodes join, or it is removed. Ask for smaller or "
        f"fewer bundles, or run `rayshim why {group.group_id.hex()[:12]}`."
    )
