"""Why no node of a cluster takes a request, a placement group or its bundles.

Pure functions over what the nodes said. The order of reasons is that in which they
have to be mended: nodes that are asked for and dead, labels that nobody has, amounts
that nobody has, and last room that others take up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rayshim.lineage import placement
from rayshim.lineage.bundle_placement import Needs, place
from rayshim.lineage.labels import matches, rank
from rayshim.lineage.reasons import Reason
from rayshim.lineage.resources import Units, describe, to_amounts

#: Nodes that one explanation names.
SHOWN_NODES = 8
#: Label that every node has, and that says nothing about what could be asked for.
_NODE_ID = "ray.io/node-id"


class NodeView(NamedTuple):
    """A node that is not dead."""

    node_id: str
    ip: str
    #: Name of a :class:`~rayshim.lineage.membership.NodeState`.
    state: str
    total: Mapping[str, int]
    free: Mapping[str, int]
    labels: Mapping[str, str] = {}


class Wanted(NamedTuple):
    """A request that waits."""

    label: str
    need: Units
    waited_s: float
    nodes: Sequence[str] = ()
    is_soft: bool = True
    selectors: Sequence[Mapping[str, str]] = ()


def request_reasons(wanted: Wanted, views: Sequence[NodeView]) -> list[Reason]:
    """Why a request that belongs to no placement group is not granted."""
    head = f"{wanted.label} waits for {wanted.waited_s:.1f} s"
    need = wanted.need
    text = f"needs {describe(need)}"
    numbers: dict[str, Any] = {
        "needed": to_amounts(need),
        "waited_s": wanted.waited_s,
    }
    chosen = list(views)
    if wanted.nodes and not wanted.is_soft:
        names = ", ".join(one[:8] for one in wanted.nodes)
        text += f" on node {names}"
        numbers["nodes"] = list(wanted.nodes)
        chosen = [view for view in views if view.node_id in wanted.nodes]
        if not chosen:
            return [
                Reason(
                    "affinity",
                    f"{head}: {text}, which is dead or was never part of this cluster",
                    numbers,
                    "use soft=True to let it run elsewhere then",
                )
            ]
    if wanted.selectors:
        choices = " or ".join(str(dict(one)) for one in wanted.selectors)
        text += f" on a node with labels {choices}"
        numbers["selectors"] = [dict(one) for one in wanted.selectors]
        fitting = [v for v in chosen if rank(wanted.selectors, v.labels) >= 0]
        if not fitting:
            there = labels_text(chosen, wanted.selectors)
            return [
                Reason(
                    "labels",
                    f"{head}: {text}; no node has them: {there}",
                    numbers,
                    "change the selector, or start a node with these labels",
                )
            ]
        chosen = fitting
    numbers["nodes"] = [_facts(view, need) for view in chosen[:SHOWN_NODES]]
    able = [view for view in chosen if placement.fits(need, view.total)]
    if not able:
        return [_infeasible(f"{head}: {text}", need, chosen, numbers)]
    resting = [view for view in able if view.state != "ALIVE"]
    reasons = []
    if len(resting) == len(able):
        states = ", ".join(f"{v.node_id[:8]} is {v.state}" for v in resting)
        reasons.append(
            Reason(
                "node",
                f"{head}: {text}; what could take it gets no new work: node {states}",
                {**numbers, "states": {v.node_id: v.state for v in resting}},
                "it goes on when the node is back, or another one has room",
            )
        )
    else:
        reasons.append(
            Reason("resources", f"{head}: {text}; {nodes_text(need, chosen)}", numbers)
        )
    return reasons


def _infeasible(
    head: str, need: Units, views: Sequence[NodeView], numbers: dict[str, Any]
) -> Reason:
    if not views:
        text = f"{head}; the cluster has no node, so that it cannot start until one"
        return Reason("infeasible", f"{text} with enough joins", numbers)
    nearest = min(views, key=lambda view: _distance(need, view.total))
    lacking = lacks(need, nearest.total)
    remedy = f"start a node with {describe(need)}"
    if all(nearest.total.get(name, 0) for name in lacking):
        # Else less would be nothing of it.
        remedy = f"ask for {describe(lacking)} less, or {remedy}"
    return Reason(
        "infeasible",
        f"{head}; no node of the cluster has that, so that it cannot start until one "
        f"with enough joins: {nodes_text(need, views)}; the nearest, node "
        f"{nearest.node_id[:8]}, lacks {describe(lacking)}",
        {**numbers, "nearest": nearest.node_id, "lacking": to_amounts(lacking)},
        remedy,
    )


def lacks(need: Mapping[str, int], have: Mapping[str, int]) -> Units:
    """What is missing of ``need``."""
    return {
        name: units - have.get(name, 0)
        for name, units in need.items()
        if have.get(name, 0) < units
    }


def _distance(need: Mapping[str, int], have: Mapping[str, int]) -> tuple[int, float]:
    """Number of resources that are short, then by how large a share."""
    short = lacks(need, have)
    return len(short), sum(units / need[name] for name, units in short.items())


def nodes_text(need: Mapping[str, int], views: Sequence[NodeView]) -> str:
    """What each node has of what is needed."""
    parts = []
    for view in views[:SHOWN_NODES]:
        free = {name: view.free.get(name, 0) for name in need}
        total = {name: view.total.get(name, 0) for name in need}
        state = "" if view.state == "ALIVE" else f", {view.state}"
        parts.append(
            f"node {view.node_id[:8]} ({view.ip}{state}) has free {describe(free)} of "
            f"{describe(total)}"
        )
    more = len(views) - SHOWN_NODES
    if more > 0:
        parts.append(f"and {more} more nodes")
    return "; ".join(parts) or "the cluster has no node"


def labels_text(
    views: Sequence[NodeView], selectors: Sequence[Mapping[str, str]]
) -> str:
    """The labels that nodes have under the names that selectors ask for, or all."""
    names = {name for selector in selectors for name in selector}
    values: dict[str, dict[str, None]] = {}
    for view in views:
        for name, value in view.labels.items():
            if name != _NODE_ID or name in names:
                values.setdefault(name, {})[value] = None
    shown = {name: found for name, found in values.items() if name in names} or values
    parts = [f"{name} is {' or '.join(list(v)[:5])}" for name, v in shown.items()]
    parts += [f"no node has {name}" for name in sorted(names - values.keys())]
    return ", ".join(parts[:SHOWN_NODES]) or "no node has any label"


def group_reasons(
    needs: Needs,
    views: Sequence[NodeView],
    *,
    count: int,
    places: Mapping[int, str],
    waited_s: float,
) -> list[Reason]:
    """Why bundles of a placement group have no node.

    Args:
        needs: of the bundles that have none.
        views: the nodes that are not dead.
        count: bundles of the group.
        places: index -> node of the others.
        waited_s: since it was asked for.
    """
    missing, strategy = needs.bundles, needs.strategy
    numbers: dict[str, Any] = {
        "strategy": strategy,
        "bundles": count,
        "missing": {str(index): to_amounts(one) for index, one in missing.items()},
        "waited_s": waited_s,
    }
    head = (
        f"{len(missing)} of its {count} bundles have no node for {waited_s:.1f} s "
        f"({strategy})"
    )
    reasons = []
    for index, need in missing.items():
        text = f"{head}: bundle {index} needs {describe(need)}"
        selector = needs.selectors.get(index) or {}
        fitting = [v for v in views if matches(selector, v.labels)]
        if selector and not fitting:
            there = labels_text(views, [selector])
            reasons.append(
                Reason(
                    "labels",
                    f"{text} on a node with labels {dict(selector)}; no node has them: "
                    f"{there}",
                    {**numbers, "bundle": index, "selectors": [dict(selector)]},
                    "change the selector, or start a node with these labels",
                )
            )
        elif not any(placement.fits(need, view.total) for view in fitting):
            reasons.append(_infeasible(text, need, fitting, numbers))
    if reasons:
        return reasons
    idle = [placement.View(v.node_id, v.total, v.total, v.labels) for v in views]
    usable = [
        placement.View(v.node_id, v.total, v.free, v.labels)
        for v in views
        if v.state == "ALIVE"
    ]
    each = ", ".join(f"{index} {describe(need)}" for index, need in missing.items())
    if place(needs, idle, places) is None:
        wanted = {
            "STRICT_SPREAD": f"a node of its own for each of {count} bundles, and "
            f"{len(views)} nodes are there",
            "STRICT_PACK": "one node with room for all of them",
        }.get(strategy, "more than all nodes have together")
        if needs.topology:
            wanted += f", on nodes with one value of the label {needs.topology}"
        total: Units = {}
        for need in missing.values():
            for name, units in need.items():
                total[name] = total.get(name, 0) + units
        return [
            Reason(
                "infeasible",
                f"{head}: bundles {each} need {wanted}, even when nothing else runs: "
                f"{nodes_text(total, views)}",
                {**numbers, "needed": to_amounts(total), "nodes": len(views)},
                "use fewer or smaller bundles or another strategy, or start nodes",
            )
        ]
    for index, need in missing.items():
        if not any(placement.fits(need, view.available) for view in usable):
            shown = [v for v in views if placement.fits(need, v.total)]
            text = f"{head}: bundle {index} needs {describe(need)}; "
            text += nodes_text(need, shown)
            reasons.append(Reason("resources", text, {**numbers, "bundle": index}))
    if not reasons:
        total = {}
        for need in missing.values():
            for name, units in need.items():
                total[name] = total.get(name, 0) + units
        text = f"{head}: bundles {each} do not fit together now; "
        reasons = [Reason("resources", text + nodes_text(total, views), numbers)]
    return reasons


def _facts(view: NodeView, need: Mapping[str, int]) -> dict[str, Any]:
    return {
        "node_id": view.node_id,
        "state": view.state,
        "free": to_amounts({name: view.free.get(name, 0) for name in need}),
        "total": to_amounts({name: view.total.get(name, 0) for name in need}),
    }
