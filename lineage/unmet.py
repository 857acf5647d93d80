"""Texts on demand that no running node has room for: what, why, what would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rayshim.lineage.demand import GangDemand, ShapeDemand
from rayshim.lineage.labels import matches
from rayshim.lineage.node_groups import NodeGroup, Unmet
from rayshim.lineage.node_slots import Bundle, Slot, by_size
from rayshim.lineage.node_supply import Shape, bundles_of, merged
from rayshim.lineage.resources import UNITS, Units, describe, to_units


def no_fit(
    kind: str, shape: ShapeDemand, count: int, shapes: Mapping[str, Shape]
) -> Unmet:
    """A request that no group and no node could ever hold."""
    selectors = [shape.labels, *shape.fallback_labels]
    text = _misfit(to_units(shape.resources), selectors, shapes)
    return Unmet(kind, shape.label, count, f"{_name(shape)}: {text}")


def limited(
    kind: str, shape: ShapeDemand, count: int, groups: Sequence[NodeGroup]
) -> Unmet:
    """Requests for which a group has no more nodes to start."""
    amounts = describe(to_units(shape.resources))
    text = (
        f"{_name(shape)}: {count} x {amounts} wait until others give back, "
        f"{_limits(groups)}; raise the limit to have them sooner"
    )
    return Unmet(kind, shape.label, count, text, is_limited=True)


def slowed(
    kind: str, shape: ShapeDemand, count: int, group: NodeGroup, starting: int
) -> Unmet:
    """Requests for which nodes may start once those that start have come."""
    amounts = describe(to_units(shape.resources))
    text = (
        f"{_name(shape)}: {count} x {amounts} wait for their turn: {starting} nodes of "
        f"{group.name} start, more may after them (upscaling_speed "
        f"{group.upscaling_speed:g})"
    )
    return Unmet(kind, shape.label, count, text)


def starts(shape: ShapeDemand, count: int, starting: Mapping[str, int]) -> Unmet:
    """Requests for which nodes are started."""
    amounts = describe(to_units(shape.resources))
    text = f"{_name(shape)}: {count} x {amounts} get {_numbers(starting)}"
    return Unmet("lease", shape.label, count, text)


def occupied(kind: str, shape: ShapeDemand, count: int, able: int) -> Unmet:
    """Requests that only nodes can hold for which there is no group."""
    amounts = describe(to_units(shape.resources))
    where = f"{able} nodes that could hold them are in use"
    if shape.node_ids:
        names = ", ".join(one[:8] for one in shape.node_ids)
        where = f"they must run on node {names}"
    text = f"{_name(shape)}: {count} x {amounts} wait until others give back: {where}"
    return Unmet(kind, shape.label, count, text)


def gang_starts(gang: GangDemand, starting: Mapping[str, int]) -> Unmet:
    """A placement group for which nodes are started."""
    return _of(gang, f"its {len(gang.bundles)} bundles get {_numbers(starting)}")


def gang_limited(gang: GangDemand, groups: Sequence[NodeGroup]) -> Unmet:
    """A placement group that would fit if others gave back."""
    bundles = bundles_of(gang)
    able = [
        group for group in groups if any(_fits(Shape(group), one) for one in bundles)
    ]
    text = (
        f"its {len(bundles)} bundles ({gang.strategy}) wait until others give back, "
        f"{_limits(able)}; raise the limit to have it sooner"
    )
    return replace(_of(gang, text), is_limited=True)


def gang_divided(gang: GangDemand, names: Sequence[str]) -> Unmet:
    """A placement group that no single group could hold, though one has to."""
    text = (
        f"its {len(gang.bundles)} bundles need nodes of {' and '.join(names)}, and are "
        "started together only in one group; make it smaller, or make two of it"
    )
    return _of(gang, text)


def gang_no_fit(
    gang: GangDemand, shapes: Mapping[str, Shape], slots: Sequence[Slot]
) -> Unmet:
    """A placement group that could not be placed if nobody held anything."""
    bundles = by_size(bundles_of(gang))
    for bundle in bundles:
        here = any(slot.could_hold(bundle.need, bundle.selector) for slot in slots)
        if not here and not any(_fits(one, bundle) for one in shapes.values()):
            return _of(gang, _misfit(bundle.need, [bundle.selector], shapes))
    limits = _limits([shape.group for shape in shapes.values()])
    if gang.topology:
        values = f"the same value of label {gang.topology}"
        if gang.domain:
            values = f"{gang.topology}={gang.domain}"
        text = (
            f"its {len(bundles)} bundles must be on nodes with {values}, and no such "
            f"nodes hold them together, {limits}; raise the limit or add a group"
        )
        return _of(gang, text)
    if gang.strategy == "STRICT_PACK":
        whole = describe(merged(bundles).need)
        text = (
            f"its bundles must be on one node (STRICT_PACK), and {whole} fits no "
            "group; use another strategy or add a group"
        )
    elif gang.strategy == "STRICT_SPREAD":
        text = (
            f"its {len(bundles)} bundles must be on different nodes (STRICT_SPREAD), "
            f"{limits}; raise the limit or make it smaller"
        )
    else:
        whole = describe(merged(bundles).need)
        text = (
            f"its {len(bundles)} bundles need {whole} together, {limits}; raise "
            "the limit or make it smaller"
        )
    return _of(gang, text)


def _of(gang: GangDemand, text: str) -> Unmet:
    name = gang.name or f"placement group {gang.group_id[:12]}"
    return Unmet("gang", gang.group_id, len(gang.bundles), f"{name}: {text}")


def _name(shape: ShapeDemand) -> str:
    return shape.label.partition(" {")[0] or "request"


def _numbers(starting: Mapping[str, int]) -> str:
    parts = [
        f"{count} new node{'s' * (count > 1)} of {name}"
        for name, count in starting.items()
    ]
    return " and ".join(parts)


def _limits(groups: Sequence[NodeGroup]) -> str:
    if not groups:
        return "and no group has nodes for it"
    parts = [f"{group.name} is limited to {group.max_nodes} nodes" for group in groups]
    return ", ".join(parts)


def _fits(shape: Shape, bundle: Bundle) -> bool:
    if shape.group.max_nodes <= 0:
        return False
    return shape.new_slot().could_hold(bundle.need, bundle.selector)


def _misfit(
    need: Units,
    selectors: Sequence[Mapping[str, str]],
    shapes: Mapping[str, Shape],
) -> str:
    """Why no group holds a request."""
    advice = "change the request or add a group"
    head = f"bundle {describe(need)} fits no group"
    usable = [shape for shape in shapes.values() if shape.group.max_nodes > 0]
    if not usable:
        return f"{head} (there is none that may have nodes); add a group"
    large = [shape for shape in usable if shape.new_slot().room(need) > 0]
    if large:
        wanted = " or ".join(describe_labels(one) for one in selectors)
        names = ", ".join(shape.group.name for shape in large)
        if any(matches(one, shape.labels) for one in selectors for shape in usable):
            names += ", and those that do are too small"
        return f"{head} ({names} would, but lacks labels {wanted}); {advice}"
    most = {name: max(shape.total.get(name, 0) for shape in usable) for name in need}
    short = {name: units for name, units in most.items() if units < need[name]}
    parts = ", ".join(
        f"{name}: {units / UNITS:g}" for name, units in (short or most).items()
    )
    if short:
        return f"{head} (largest has {parts}); {advice}"
    return f"{head} (none has all of it, at most {parts} apart); {advice}"


def describe_labels(selector: Mapping[str, str]) -> str:
    """Text such as ``{zone: in(a,b)}``."""
    return "{" + ", ".join(f"{key}: {text}" for key, text in selector.items()) + "}"
