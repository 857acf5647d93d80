"""Which nodes get the bundles of a placement group: all of them, or none.

Pure functions over what nodes said they have. Rules:

1. A bundle goes to a node with room whose labels satisfy the bundle's selector.
2. STRICT_PACK: one node for all. PACK: few nodes; those that have bundles of the group
   come first. SPREAD: each bundle goes where the fewest of the group are.
   STRICT_SPREAD: a node of its own for each bundle.
3. With a topology label, all nodes of the group have the same value of it.
4. Bundles without a GPU go to nodes without one if that costs nothing else.

Packing is a search among many ways; PACK tries three: few nodes first, first fit by
decreasing size, and a search that gives up after :data:`SEARCH_STEPS` tries.

Source: the strategies are those of Ray's documentation ("Placement Groups").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rayshim.lineage.labels import matches
from rayshim.lineage.placement import View, fits
from rayshim.lineage.resources import GPU, Units

#: Tries of the last way to pack; a few milliseconds.
SEARCH_STEPS = 500


class Needs(NamedTuple):
    """What bundles need that are placed together."""

    #: Index -> units of each resource, > 0.
    bundles: Mapping[int, Units]
    #: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD".
    strategy: str
    #: Index -> label selector; without one, any node will do.
    selectors: Mapping[int, Mapping[str, str]] = {}
    #: Label of which all nodes must have the same value; empty: none.
    topology: str = ""
    #: That value, if it is settled since other bundles are placed.
    domain: str = ""
    #: Node that is tried first (STRICT_PACK); may be empty.
    target: str = ""


class Placed(NamedTuple):
    """Nodes for bundles."""

    #: Index -> node, in order of the indexes.
    nodes: dict[int, str]
    #: Value of the topology label; empty without one.
    domain: str


def place(
    needs: Needs, views: Sequence[View], placed: Mapping[int, str] | None = None
) -> Placed | None:
    """Nodes for all bundles, or None when they do not all fit now.

    Args:
        needs: what is to be placed.
        views: the nodes that may get work, in order of joining.
        placed: bundles of the group that are on nodes already, by index.
    """
    if not needs.topology:
        nodes = _place(needs, views, placed or {})
        return None if nodes is None else Placed(nodes, "")
    domains: dict[str, list[View]] = {}
    for view in views:
        value = view.labels.get(needs.topology)
        if value is not None and needs.domain in ("", value):
            domains.setdefault(value, []).append(view)
    for value, members in domains.items():
        nodes = _place(needs, members, placed or {})
        if nodes is not None:
            return Placed(nodes, value)
    return None


class _Task(NamedTuple):
    """A placement under way."""

    bundles: Mapping[int, Units]
    #: Node -> what is left of it; best nodes first.
    free: dict[str, Units]
    #: Index -> nodes whose labels will do; not in it: all.
    allowed: dict[int, frozenset[str]]
    #: Indexes, those first that are hardest to place.
    order: list[int]

    def able(self, index: int, node_id: str) -> bool:
        """Whether a bundle may go to a node now."""
        names = self.allowed.get(index)
        if names is not None and node_id not in names:
            return False
        return fits(self.bundles[index], self.free[node_id])

    def within(self, nodes: Sequence[str]) -> _Task:
        """The same with these nodes only, and room of its own to fill."""
        return self._replace(free={one: dict(self.free[one]) for one in nodes})


def _place(
    needs: Needs, views: Sequence[View], placed: Mapping[int, str]
) -> dict[int, str] | None:
    used: dict[str, int] = {}
    for node_id in placed.values():
        used[node_id] = used.get(node_id, 0) + 1
    task = _task_of(needs, views)
    nodes = list(task.free)
    if needs.strategy == "STRICT_PACK":
        if used:
            nodes = [node_id for node_id in nodes if node_id in used]
        nodes.sort(key=lambda node_id: node_id != needs.target)
        return _on_one(task, nodes)
    if needs.strategy == "PACK":
        homes = [node_id for node_id in nodes if node_id in used]
        nodes = homes + [node_id for node_id in nodes if node_id not in used]
        return (
            _on_one(task, nodes)
            or _on_few(task.within(nodes), len(homes))
            or _first_fit(task.within(nodes))
            or _search(task.within(nodes))
        )
    if needs.strategy == "STRICT_SPREAD":
        return _match(task.within([one for one in nodes if one not in used]))
    # An even spread may leave no room for the last bundles where another one would.
    return _spread(task.within(nodes), dict(used)) or _search(task.within(nodes))


def _task_of(needs: Needs, views: Sequence[View]) -> _Task:
    if not any(GPU in bundle for bundle in needs.bundles.values()):
        views = sorted(views, key=lambda view: bool(view.total.get(GPU)))
    allowed = {
        index: frozenset(view.node_id for view in views if matches(text, view.labels))
        for index, text in needs.selectors.items()
        if text and index in needs.bundles
    }
    count = len(views)

    def difficulty(index: int) -> tuple[int, int, int, int]:
        bundle = needs.bundles[index]
        choices = len(allowed[index]) if index in allowed else count
        return choices, -len(bundle), -max(bundle.values(), default=0), index

    free = {view.node_id: dict(view.available) for view in views}
    return _Task(needs.bundles, free, allowed, sorted(needs.bundles, key=difficulty))


def _on_one(task: _Task, nodes: Sequence[str]) -> dict[int, str] | None:
    """One node for all bundles."""
    whole: Units = {}
    for bundle in task.bundles.values():
        for name, units in bundle.items():
            whole[name] = whole.get(name, 0) + units
    for node_id in nodes:
        if fits(whole, task.free[node_id]) and all(
            node_id in names for names in task.allowed.values()
        ):
            return dict.fromkeys(sorted(task.bundles), node_id)
    return None


def _on_few(task: _Task, homes: int) -> dict[int, str] | None:
    """Again and again the node that takes most of what is left.

    The first ``homes`` nodes have bundles of the group already and are filled first.
    """
    chosen: dict[int, str] = {}
    left = task.order
    nodes = list(task.free)
    while left:
        best: list[int] = []
        best_node = ""
        for position, node_id in enumerate(nodes):
            if position == homes and best:
                break
            taken = _fill(task, left, node_id)
            if len(taken) > len(best):
                best, best_node = taken, node_id
        if not best:
            return None
        for index in best:
            _take(task.free[best_node], task.bundles[index])
            chosen[index] = best_node
        left = [index for index in left if index not in chosen]
        homes -= nodes.index(best_node) < homes
        nodes.remove(best_node)
    return dict(sorted(chosen.items()))


def _fill(task: _Task, left: Sequence[int], node_id: str) -> list[int]:
    """Which of the bundles that are left a node takes."""
    room = task.within([node_id])
    taken = []
    for index in left:
        if room.able(index, node_id):
            _take(room.free[node_id], task.bundles[index])
            taken.append(index)
    return taken


def _first_fit(task: _Task) -> dict[int, str] | None:
    """Each bundle, difficult ones first, goes to the first node where it fits."""
    chosen: dict[int, str] = {}
    for index in task.order:
        for node_id, have in task.free.items():
            if task.able(index, node_id):
                _take(have, task.bundles[index])
                chosen[index] = node_id
                break
        else:
            return None
    return dict(sorted(chosen.items()))


def _search(task: _Task) -> dict[int, str] | None:
    """Any way at all, by trying; gives up after SEARCH_STEPS tries."""
    need: Units = {}
    have: Units = {}
    for bundle in task.bundles.values():
        for name, units in bundle.items():
            need[name] = need.get(name, 0) + units
    for room in task.free.values():
        for name, units in room.items():
            have[name] = have.get(name, 0) + units
    if not fits(need, have):
        return None
    chosen: dict[int, str] = {}
    steps = SEARCH_STEPS
    nodes = list(task.free)
    #: For each bundle that is placed: its node's position.
    path: list[int] = []
    start = 0
    while len(path) < len(task.order):
        index = task.order[len(path)]
        for position in range(start, len(nodes)):
            steps -= 1
            if task.able(index, nodes[position]):
                _take(task.free[nodes[position]], task.bundles[index])
                path.append(position)
                chosen[index] = nodes[position]
                start = 0
                break
        else:
            if not path or steps <= 0:
                return None
            position = path.pop()
            bundle = task.bundles[task.order[len(path)]]
            _take(task.free[nodes[position]], {k: -v for k, v in bundle.items()})
            start = position + 1
    return dict(sorted(chosen.items()))


def _spread(task: _Task, used: dict[str, int]) -> dict[int, str] | None:
    """Many nodes: each bundle goes where the fewest of the group are."""
    chosen: dict[int, str] = {}
    for index in task.order:
        able = [node_id for node_id in task.free if task.able(index, node_id)]
        if not able:
            return None
        node_id = min(able, key=lambda one: used.get(one, 0))
        _take(task.free[node_id], task.bundles[index])
        used[node_id] = used.get(node_id, 0) + 1
        chosen[index] = node_id
    return dict(sorted(chosen.items()))


def _match(task: _Task) -> dict[int, str] | None:
    """A node of its own for each bundle (augmenting paths; Kuhn 1955)."""
    if len(task.order) > len(task.free):
        return None
    taken: dict[str, int] = {}
    able = {
        index: [node_id for node_id in task.free if task.able(index, node_id)]
        for index in task.order
    }

    def find(index: int, seen: set[str]) -> bool:
        for node_id in able[index]:
            if node_id not in taken:
                taken[node_id] = index
                return True
        for node_id in able[index]:
            if node_id not in seen:
                seen.add(node_id)
                if find(taken[node_id], seen):
                    taken[node_id] = index
                    return True
        return False

    if not all(find(index, set()) for index in task.order):
        return None
    chosen = {index: node_id for node_id, index in taken.items()}
    return dict(sorted(chosen.items()))


def _take(have: Units, need: Mapping[str, int]) -> None:
    for name, units in need.items():
        have[name] = have.get(name, 0) - units
