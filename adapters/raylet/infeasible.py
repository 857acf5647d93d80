"""Which requests no node could take even if it were idle, and telling their drivers.

A driver is told once of each shape, when the first such request comes; while an
autoscaler reports, that is left to it, since it knows what it could start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayshim.adapters.wire import messages as wire
from rayshim.lineage import explain_nodes, placement
from rayshim.lineage.labels import rank
from rayshim.lineage.resources import Units, to_units

if TYPE_CHECKING:
    from rayshim.adapters.raylet.control import ControlService

#: Shapes that are remembered.
MAX_SHAPES = 10_000
#: What decides whether a request is feasible.
_Shape = tuple[Any, ...]


class Infeasible:
    """Knows what is infeasible.

    Args:
        control: The control service.
        server: Its process.
    """

    def __init__(self, control: ControlService, server: Any) -> None:
        self._control = control
        self._server = server
        #: Shape -> whether some node could take it; until the nodes change.
        self._known: dict[_Shape, bool] = {}
        #: Job -> shapes that its driver was told of.
        self._told: dict[bytes, set[_Shape]] = {}
        nodes = control.nodes
        nodes.on_joined.append(lambda node: self._known.clear())
        nodes.on_died.append(lambda node, death: self._known.clear())

    def has(self, request: wire.RequestLease) -> bool:
        """Whether no node could ever take a request that is in no group."""
        if request.placement_group:
            return False
        shape = _shape(request)
        known = self._known.get(shape)
        if known is None:
            if len(self._known) > MAX_SHAPES:
                self._known.clear()
            need = to_units(request.resources)
            known = self._known[shape] = any(
                self._is_able(node, need, request)
                for node in self._control.nodes.alive()
            )
        return not known

    @staticmethod
    def _is_able(node: Any, need: Units, request: wire.RequestLease) -> bool:
        if request.nodes and not request.soft and node.node_id not in request.nodes:
            return False
        return (
            placement.fits(need, node.total) and rank(request.labels, node.labels) >= 0
        )

    def look(self, request: wire.RequestLease) -> None:
        """A request came: its driver is told at once if it is infeasible."""
        if not self.has(request) or self._control.autoscaler_notes.is_active:
            return
        drivers, shape = self._server.drivers, _shape(request)
        driver = drivers.get(request.job_id)
        if driver is None:
            return
        told = self._told.setdefault(request.job_id, set())
        if shape in told or len(told) >= MAX_SHAPES:
            return
        wanted = [one for one in request.nodes if self._control.nodes.find(one)]
        if request.nodes and not request.soft and not wanted:
            return  # it was refused with an error
        told.add(shape)
        for job_id in self._told.keys() - drivers.keys():
            del self._told[job_id]
        (reason,) = explain_nodes.request_reasons(
            explain_nodes.Wanted(
                request.label,
                to_units(request.resources),
                0.0,
                request.nodes,
                request.soft,
                request.labels,
            ),
            self._control.why.views(),
        )
        shown = request.holder.partition(":")[2] or request.lease_id.hex()
        text = (
            f"Warning: a request cannot be met by any node: {reason.text} "
            f"({reason.remedy}). It waits until there is one, or it is cancelled; "
            f"`rayshim why {shown[:16]}` says how it stands."
        )
        lines = wire.LogLines(0, "scheduler", "err", [text], "", request.job_id)
        driver.connection.send(lines)

    # For tables.

    def demand_rows(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Adds ``state`` to rows of requests: WAITING or INFEASIBLE."""
        entries = self._control.placer.not_granted()
        for row in rows:
            entry = entries.get(bytes.fromhex(row["lease_id"]))
            is_infeasible = entry is not None and self.has(entry.request)
            row["state"] = "INFEASIBLE" if is_infeasible else "WAITING"
        return rows

    def actor_rows(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Adds ``is_infeasible`` to rows of actors."""
        found = {
            entry.request.holder.partition(":")[2]
            for entry in self._control.placer.not_granted().values()
            if not entry.asker and self.has(entry.request)
        }
        for row in rows:
            row["is_infeasible"] = row["actor_id"] in found
        return rows

    def group_rows(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Adds ``is_infeasible`` to rows of placement groups."""
        groups = self._control.groups
        views = [
            placement.View(node.node_id, node.total, node.available, node.labels)
            for node in self._control.nodes.usable()
        ]
        for row in rows:
            group_id = bytes.fromhex(row["placement_group_id"])
            group = groups.machine.groups.get(group_id)
            waits = group is not None and row["state"] in ("PENDING", "RESCHEDULING")
            row["is_infeasible"] = waits and groups.machine.is_infeasible(
                group_id, views
            )
            if row["is_infeasible"]:
                row["stats"]["scheduling_state"] = "INFEASIBLE"
        return rows


def _shape(request: wire.RequestLease) -> _Shape:
    return (
        tuple(sorted(request.resources.items())),
        () if request.soft else tuple(request.nodes),
        tuple(tuple(sorted(one.items())) for one in request.labels),
    )
