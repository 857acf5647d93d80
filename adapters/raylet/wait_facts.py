"""What nodes know of requests that wait and of who has resources, for waits.

In a session on one node nothing can be added to what there is, so that a request is
stuck when those have its resources who are. In a cluster nodes may join: a request is
looked at only if a join would not help it, since it belongs to a placement group that
has its bundles, or to nodes that the user named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rayshim.adapters.wire import why_payloads as why
from rayshim.lineage import placement_groups as pg
from rayshim.lineage.leases import LeaseState
from rayshim.lineage.raylet import Raylet
from rayshim.lineage.resources import CPU, ResourceSet, Units, to_units
from rayshim.lineage.wait_graph import GROUP_PREFIX, Holder, Source, WaitingLease

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayshim.adapters.raylet.control import ControlService

_WAITS = (LeaseState.WAITING, LeaseState.FORWARDED)
#: Index of the source that is the node itself.
_NODE = -1


# -- at a node ---------------------------------------------------------------------


def of_node(server: Any, lease_ids: Iterable[bytes]) -> why.Facts:
    """What this node says: which of the leases wait here, and who has what."""
    raylet: Raylet = server.raylet
    waiting = []
    for lease_id in lease_ids:
        lease = raylet.leases.get(lease_id)
        if lease is None or lease.state not in _WAITS:
            continue
        request = lease.request
        cargo: Any = request.cargo
        is_bound = cargo is not None and bool(cargo.nodes) and not cargo.soft
        waiting.append(
            why.WaitingFacts(
                lease_id,
                request.label,
                request.need,
                request.group,
                request.bundle,
                list(cargo.nodes) if is_bound else [],
            )
        )
    sources = [
        why.SourceFacts(group, index, part.total, list(holders(raylet, part)))
        for group, index, part in _sources(raylet)
    ]
    return why.Facts(server.config.node_id, waiting, sources)


def _sources(raylet: Raylet) -> Iterator[tuple[bytes, int, ResourceSet]]:
    yield b"", _NODE, raylet.resources
    for group, bundles in raylet.groups.items():
        for index, bundle in bundles.items():
            yield group, index, bundle.resources


def holders(raylet: Raylet, source: ResourceSet) -> Iterator[why.HolderFacts]:
    """Who has something of a source."""
    for lease in raylet.leases.values():
        if lease.source is source and lease.allocation is not None:
            units: Units = dict(lease.allocation.units)
            units[CPU] = units.get(CPU, 0) - lease.allocation.lent_cpu
            address = lease.executor.address if lease.executor else ""
            kind = "actor" if lease.request.fixed else "task"
            yield why.HolderFacts(address, units, kind)
    if source is raylet.resources:
        for group, bundles in raylet.groups.items():
            for bundle in bundles.values():
                units = dict(bundle.allocation.units)
                yield why.HolderFacts("", units, "group", group)


# -- at the control service --------------------------------------------------------


class LeaseFacts:
    """Which requests wait, as the control service puts it together.

    Args:
        control: The control service.
        driver_of: ``driver_of(job_id)``: address of its driver, or empty.
    """

    def __init__(
        self, control: ControlService, driver_of: Callable[[bytes], str]
    ) -> None:
        self._control = control
        self._driver_of = driver_of

    def local(self, raylet: Raylet, lease_id: bytes) -> WaitingLease | None:
        """A request, or a group (:data:`GROUP_PREFIX`), of the only node."""
        if lease_id.startswith(GROUP_PREFIX):
            return self._reservation(raylet, lease_id.removeprefix(GROUP_PREFIX))
        lease = raylet.leases.get(lease_id)
        if lease is None or lease.state is not LeaseState.WAITING:
            return None
        request = lease.request
        sources = tuple(
            self._source(one.total, holders(raylet, one))
            for one in raylet._sources(request.group, request.bundle)
        )
        behind = b""
        if request.group and not sources and self._is_pending(request.group):
            behind = GROUP_PREFIX + request.group
        return WaitingLease(request.label, request.need, sources, behind)

    def _reservation(self, raylet: Raylet, group_id: bytes) -> WaitingLease | None:
        waiting = raylet._reservations.get(group_id)
        if waiting is None:
            return None
        node = raylet.resources
        source = self._source(node.total, holders(raylet, node))
        name = f"placement group {group_id.hex()[:12]}"
        return WaitingLease(name, waiting.need, (source,))

    def _is_pending(self, group_id: bytes) -> bool:
        group = self._control.groups.machine.groups.get(group_id)
        return group is not None and group.state in (
            pg.GroupState.PENDING,
            pg.GroupState.RESERVING,
        )

    def _source(
        self, total: Mapping[str, int], held: Iterable[why.HolderFacts]
    ) -> Source:
        groups = self._control.groups.machine.groups
        found = []
        for one in held:
            address = one.address
            if one.kind == "group":
                group = groups.get(one.group)
                if group is None or group.is_detached:
                    continue  # somebody else may remove it at any time
                address = self._driver_of(group.job_id)
            found.append(Holder(address, one.units, one.kind))
        return Source(dict(total), tuple(found))

    def of_cluster(
        self, lease_ids: Iterable[bytes], told: Iterable[why.Facts]
    ) -> dict[bytes, WaitingLease]:
        """Those of the requests that no other node could ever help."""
        waiting: dict[bytes, why.WaitingFacts] = {}
        sources: dict[tuple[str, bytes, int], why.SourceFacts] = {}
        for facts in told:
            waiting.update({one.lease_id: one for one in facts.waiting})
            for part in facts.sources:
                sources[facts.node_id, part.group, part.index] = part
        found = {}
        for lease_id in lease_ids:
            request = waiting.get(lease_id) or self._of_actor(lease_id)
            if request is None:
                continue
            keys = self._keys(lease_id, request)
            if keys and all(key in sources for key in keys):
                parts = [sources[key] for key in keys]
                found[lease_id] = WaitingLease(
                    request.label,
                    request.need,
                    tuple(self._source(one.total, one.holders) for one in parts),
                )
        return found

    def _of_actor(self, lease_id: bytes) -> why.WaitingFacts | None:
        """The request of an actor that is at no node."""
        entry = self._control.placer.find(lease_id)
        if entry is None or entry.asker or entry.node:
            return None
        request = entry.request
        return why.WaitingFacts(
            lease_id,
            request.label,
            to_units(request.resources),
            request.placement_group,
            request.bundle_index,
            [] if request.soft else list(request.nodes),
        )

    def _keys(
        self, lease_id: bytes, request: why.WaitingFacts
    ) -> list[tuple[str, bytes, int]]:
        """All that the request may draw on; nothing if a join might add to it."""
        machine = self._control.nodes.machine
        if request.group:
            group = self._control.groups.machine.groups.get(request.group)
            if group is None or group.state is not pg.GroupState.CREATED:
                return []
            places = [
                (node_id, request.group, index)
                for index, node_id in group.places.items()
                if request.bundle in (-1, index)
            ]
            if all(machine.is_usable(node_id) for node_id, _, _ in places):
                return places
            return []
        bound_to = request.bound_to
        entry = self._control.placer.find(lease_id)
        if not bound_to and entry is not None and not entry.request.soft:
            bound_to = list(entry.request.nodes)
        known = [one for one in bound_to if self._control.nodes.find(one) is not None]
        if all(machine.is_usable(node_id) for node_id in known):
            return [(node_id, b"", _NODE) for node_id in known]
        return []
