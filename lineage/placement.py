"""Which node gets a lease. For bundles of groups see :mod:`.bundle_placement`.

Pure functions over what nodes said they have. Rules for a lease:

1. Only nodes that would have room if nobody held anything come into question.
2. Of them one that has room now is taken: the first of the wanted nodes (data is
   there, or the user named them); else, unless it is to be spread, the asker's own
   node; else the one that is used least, and of equals the one that joined first.
3. A hard wish for nodes is never broken, however long it takes.
4. Of label selectors the first one counts that leads to a node with room.
5. Work that needs no GPU goes to nodes without one if they have room.
6. How long the asker's own node comes first, and of how many good nodes one is drawn,
   is a :class:`Policy`. Without one, it comes first while it has room, and the best
   node is taken.

:class:`rayshim.lineage.node_index.NodeIndex` gives the same choices over many nodes
without looking at each.

Source: the hybrid policy is described in Ray's documentation ("Scheduling",
default strategy).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rayshim.lineage.labels import matches
from rayshim.lineage.resources import CPU, GPU


class View(NamedTuple):
    """What is known of a node that may get work."""

    node_id: str
    total: Mapping[str, int]
    available: Mapping[str, int]
    labels: Mapping[str, str] = {}


class Wish(NamedTuple):
    """Where a lease would like to go."""

    #: The asker's node; may be empty.
    home: str = ""
    #: In order of preference; empty: any.
    nodes: Sequence[str] = ()
    #: False: only ``nodes`` will do.
    is_soft: bool = True
    is_spread: bool = False
    #: A wanted node that could have room is waited for, even if others have some.
    is_patient: bool = False
    #: Label selectors in order of preference, of which one must be satisfied.
    selectors: Sequence[Mapping[str, str]] = ()


class Policy(NamedTuple):
    """How work that has no wish is spread.

    Ray's hybrid policy is ``Policy(0.5, 0.2)``: stay until half of the own node is
    used, then go to one of the fifth of the nodes that are used least.
    """

    #: Used share of the asker's own node up to which it is taken without a look at
    #: the others; above, it is taken if none of them is used less.
    spread_threshold: float = math.inf
    #: Share of the nodes that are drawn from, the least used ones; at least one node.
    top_k_fraction: float = 0.0

    def best_k(self, count: int) -> int:
        """How many of ``count`` nodes are drawn from."""
        return max(1, int(count * self.top_k_fraction))


ANYWHERE = Wish()
STAY_HOME = Policy()


class Choice(NamedTuple):
    """A node for a lease."""

    node_id: str
    #: False: it has room only later, when others give back.
    has_room: bool


def fits(need: Mapping[str, int], have: Mapping[str, int]) -> bool:
    """Whether ``have`` covers ``need``."""
    for name, units in need.items():  # thrice as fast as all()
        if have.get(name, 0) < units:
            return False
    return True


def usage(view: View, need: Mapping[str, int]) -> float:
    """The largest used share of CPU and of what is needed, from 0 to 1."""
    most = 0.0
    for name in (CPU, *need):
        total = view.total.get(name, 0)
        if total and (share := 1 - view.available.get(name, 0) / total) > most:
            most = share
    return most


def choose(
    need: Mapping[str, int],
    views: Sequence[View],
    wish: Wish = ANYWHERE,
    *,
    policy: Policy = STAY_HOME,
    draw: int = 0,
) -> Choice | None:
    """The node for a lease, or None when none of them could ever have room.

    Args:
        need: units of each resource, > 0.
        views: the nodes that may get work, in order of joining.
        wish: see :class:`Wish`.
        policy: see :class:`Policy`.
        draw: number that picks among the best nodes, >= 0; 0 takes the best one. For
            what is to be spread it should grow from choice to choice.
    """
    best_k = policy.best_k(len(views))
    if not wish.selectors:
        return _choose(need, views, wish, policy, draw, best_k)
    later: Choice | None = None
    for selector in wish.selectors:
        group = [one for one in views if matches(selector, one.labels)]
        choice = _choose(need, group, wish, policy, draw, best_k)
        if choice is not None and choice.has_room:
            return choice
        later = later or choice
    return later


def _choose(
    need: Mapping[str, int],
    views: Sequence[View],
    wish: Wish,
    policy: Policy,
    draw: int,
    best_k: int,
) -> Choice | None:
    """The same without a look at labels."""
    order = {node_id: place for place, node_id in enumerate(wish.nodes)}
    able = [
        view
        for view in views
        if fits(need, view.total) and (wish.is_soft or view.node_id in order)
    ]
    if not able:
        return None
    wanted = sorted(
        (view for view in able if view.node_id in order),
        key=lambda view: order[view.node_id],
    )
    if wish.is_patient and wanted:
        able = wanted
    free = [view for view in able if fits(need, view.available)]
    for view in wanted:
        if view in free:
            return Choice(view.node_id, True)
    if not free:
        best = min(wanted or able, key=lambda view: usage(view, need))
        return Choice(best.node_id, False)
    if GPU not in need:
        free = [view for view in free if not view.total.get(GPU)] or free
    best_first = sorted(free, key=lambda view: usage(view, need))
    if not wish.is_spread:
        least = usage(best_first[0], need)
        for view in free:
            if view.node_id == wish.home and (
                (share := usage(view, need)) < policy.spread_threshold or share <= least
            ):
                return Choice(view.node_id, True)
    else:
        # What takes nothing would always go to the node that is used least.
        least = usage(best_first[0], need) if need else math.inf
        best_k = sum(usage(view, need) <= least for view in best_first)
    drawn_from = best_first[:best_k]
    return Choice(drawn_from[draw % len(drawn_from)].node_id, True)
