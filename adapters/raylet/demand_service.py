"""What the cluster lacks, as the control service knows it, for whoever adds nodes.

The facts are gathered when somebody asks, from what is here anyway: requests that the
head looks for a node for, placement groups, the newest load of each node. What
``request_resources`` asks for is a value in the key-value table, so that the journal
has it, too.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim.adapters.raylet.idle_clock import IdleClock
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire.address import node_of
from rayshim.lineage import placement
from rayshim.lineage import placement_groups as pg
from rayshim.lineage.demand import (
    NODE_GROUP_LABEL,
    Demand,
    GangDemand,
    NodeFacts,
    ShapeDemand,
)
from rayshim.lineage.labels import rank
from rayshim.lineage.leases import LeaseState
from rayshim.lineage.membership import NodeState
from rayshim.lineage.resources import Units, to_amounts, to_units

if TYPE_CHECKING:
    from rayshim.adapters.raylet.channels import ChannelServer
    from rayshim.adapters.raylet.control import ControlService
    from rayshim.adapters.raylet.head_nodes import KnownNode
    from rayshim.lineage.raylet import Raylet

_Key = tuple[Hashable, ...]
_Need = tuple[tuple[str, int], ...]
#: Where the bundles of ``request_resources`` are in the key-value table.
SPACE, KEY = "rayshim.autoscaler", "requested"
#: Seconds after which an attempt to reserve a placement group's bundles has not just
#: begun: its nodes wait for room.
ATTEMPT_S = 0.5


class Bundles(msgspec.Struct):
    """Payload of ``request_resources``, and the value in the table."""

    bundles: list[dict[str, float]] = []
    #: Selector of each of them; empty: none has one.
    labels: list[dict[str, str]] = []


class _Shape:
    """Equal requests, while they are counted."""

    __slots__ = ("count", "request", "since_s")

    def __init__(self, request: wire.RequestLease, since_s: float) -> None:
        self.request = request
        self.since_s = since_s
        self.count = 0


class DemandService:
    """Answers ``demand`` and ``request_resources``.

    Args:
        control: the control service.
        server: the process that it is in.
    """

    def __init__(self, control: ControlService, server: ChannelServer) -> None:
        self._control = control
        self._server = server
        #: Of the node in this process, which tells no load.
        self._idle: IdleClock | None = None
        #: Differs in each life of the control service.
        self.instance = uuid.uuid4().hex

    def request_resources(self, payload: bytes) -> None:
        """Replaces what is asked for ahead of use.

        Raises:
            ValueError: there are labels, but not for each bundle.
        """
        asked = msgspec.msgpack.decode(payload, type=Bundles)
        if asked.labels and len(asked.labels) != len(asked.bundles):
            raise ValueError(
                f"there are {len(asked.labels)} label selectors for "
                f"{len(asked.bundles)} bundles: give one for each, or none"
            )
        pair = {"namespace": SPACE, "key": KEY, "value": msgspec.msgpack.encode(asked)}
        self._control.values.put(msgspec.msgpack.encode(pair))

    def requested(self) -> Bundles:
        """What was asked for last."""
        pair = {"namespace": SPACE, "key": KEY}
        value = self._control.values.get(msgspec.msgpack.encode(pair))
        if value is None:
            return Bundles()
        return msgspec.msgpack.decode(value, type=Bundles)

    def demand(self) -> Demand:
        """All of it, now."""
        asked = self.requested()
        return Demand(
            self.instance,
            time.time(),
            nodes=tuple(self._nodes()),
            leases=tuple(self._leases()),
            gangs=tuple(self._gangs()),
            requested=tuple(asked.bundles),
            requested_labels=tuple(asked.labels),
            placing=tuple(self._placing()),
        )

    def answer(self) -> dict[str, Any]:
        """The same as a map, for a channel or HTTP."""
        return self.demand().to_json()

    # Nodes.

    def _nodes(self) -> Iterator[NodeFacts]:
        directory = self._control.nodes
        pinned = self._pinned()
        for node in directory.alive():
            if node.load is None and node.local is None:
                continue  # It has not said yet what it has free.
            node.refresh()
            join = node.join
            node_id = node.node_id
            yield NodeFacts(
                node_id,
                join.labels.get(NODE_GROUP_LABEL, ""),
                to_amounts(node.total),
                to_amounts(node.available),
                labels=node.labels,
                ip=join.info.node_ip,
                idle_s=self._idle_s(node),
                is_draining=self._is_leaving(node_id),
                is_pinned=join.is_head_node or node_id[:8] in pinned,
                sole_copies_bytes=0 if node.load is None else node.load.primary_bytes,
            )

    def _is_leaving(self, node_id: str) -> bool:
        member = self._control.nodes.machine.members.get(node_id)
        return member is not None and member.state is NodeState.LEAVING

    def _pinned(self) -> set[str]:
        """First digits of the ids of nodes that have a driver."""
        drivers = self._server.drivers.values()
        return {node_of(driver.address) for driver in drivers} - {""}

    def _idle_s(self, node: KnownNode) -> float:
        """Seconds without lease, actor or bundle, as the node counts them."""
        if node.placed or node.bundles:
            return 0.0
        if node.local is not None:
            if self._idle is None:
                self._idle = IdleClock(node.local, self._control.now())
            return self._idle.idle_s(self._control.now())
        return 0.0 if node.load is None else node.load.idle_s

    # What waits.

    def _leases(self) -> Iterator[ShapeDemand]:
        control = self._control
        shapes: dict[_Key, _Shape] = {}
        #: (node that asks, need) -> a shape of such requests, and how many there are.
        asked: dict[tuple[str, _Need], tuple[_Shape, int]] = {}
        for entry, here in control.placer.waiting():
            request = entry.request
            if request.placement_group:
                continue
            shape = _counted(shapes, request, here, entry.since_s)
            key = (entry.node or entry.asker, tuple(sorted(entry.need.items())))
            asked[key] = (shape, asked.get(key, (shape, 0))[1] + here)
        for node in control.nodes.everyone():
            for _, amounts, count in node.load.demand if node.load is not None else ():
                need = tuple(sorted(to_units(amounts).items()))
                known = asked.get((node.node_id, need))
                if known is not None:
                    # Calls for which their owner has not asked yet, too.
                    known[0].count += max(count - known[1], 0)
        if control.local is not None:
            self._count_here(shapes, control.local.raylet)
        now, views = control.now(), self._empty_views()
        for shape in shapes.values():
            yield _demand_of(shape, views, now)

    def _count_here(self, shapes: dict[_Key, _Shape], raylet: Raylet) -> None:
        """What waits at the node in this process, which need not ask the head."""
        seen = set()
        for lease_id, lease in raylet.leases.items():
            asked, share = lease.request, lease.share
            if lease.state is not LeaseState.WAITING or asked.group or share is None:
                continue
            if self._control.placer.looks(lease_id) or id(share) in seen:
                continue
            seen.add(id(share))  # The first request stands for its whole class.
            amounts = to_amounts(asked.need)
            request = wire.RequestLease(lease_id, b"", asked.label, amounts, {}, 0)
            count = max(len(share.waiting), share.backlog)
            _counted(shapes, request, count, lease.since_s)

    def _empty_views(self) -> list[placement.View]:
        """The nodes as if nobody held anything."""
        return [
            placement.View(one.node_id, one.total, one.total, one.labels)
            for one in self._control.nodes.alive()
        ]

    def _gangs(self) -> Iterator[GangDemand]:
        control = self._control
        machine, now = control.groups.machine, control.now()
        views = self._empty_views()
        for group in machine.groups.values():
            is_trying = group.state is pg.GroupState.RESERVING
            if group.group_id not in machine.waiting and not is_trying:
                continue
            if self._is_placing(group):
                continue
            missing = group.missing
            yield GangDemand(
                group.group_id.hex(),
                group.strategy,
                tuple(to_amounts(bundle) for bundle in missing.values()),
                labels=tuple(
                    dict(group.selectors[index]) if group.selectors else {}
                    for index in missing
                ),
                placed_on=tuple(group.places.values()),
                name=group.name,
                oldest_s=max(now - group.requested_s, 0.0),
                is_infeasible=machine.is_infeasible(group.group_id, views),
                topology=group.topology,
                domain=group.domain if group.places else "",
            )

    def _placing(self) -> Iterator[str]:
        for group in self._control.groups.machine.groups.values():
            if self._is_placing(group):
                yield group.group_id.hex()

    def _is_placing(self, group: pg.Group) -> bool:
        is_trying = group.state is pg.GroupState.RESERVING
        return is_trying and self._control.now() - group.tried_s < ATTEMPT_S


def _counted(
    shapes: dict[_Key, _Shape], request: wire.RequestLease, count: int, since_s: float
) -> _Shape:
    key = (
        request.label,
        tuple(sorted(request.resources.items())),
        tuple(tuple(one.items()) for one in request.labels),
        () if request.soft else tuple(request.nodes),
    )
    shape = shapes.get(key)
    if shape is None:
        shape = shapes[key] = _Shape(request, since_s)
    shape.count += count
    shape.since_s = min(shape.since_s, since_s)
    return shape


def _demand_of(shape: _Shape, views: list[placement.View], now: float) -> ShapeDemand:
    request = shape.request
    need: Units = to_units(request.resources)
    node_ids = () if request.soft else tuple(request.nodes)
    is_able = any(
        placement.fits(need, view.total)
        and rank(request.labels, view.labels) >= 0
        and (not node_ids or view.node_id in node_ids)
        for view in views
    )
    selectors: list[Mapping[str, str]] = [dict(one) for one in request.labels]
    return ShapeDemand(
        dict(request.resources),
        shape.count,
        labels=selectors[0] if selectors else {},
        label=request.label,
        oldest_s=max(now - shape.since_s, 0.0),
        is_infeasible=not is_able,
        fallback_labels=tuple(selectors[1:]),
        node_ids=node_ids,
    )
