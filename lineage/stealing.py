"""Where a lease goes that its node cannot grant.

A lease *leaves* a node by going to another one after it could not be granted there.
Three rules hold:

1. It moves at most :data:`~rayshim.lineage.spillback.MAX_HOPS` times at once; then it
   rests before each further move, each time twice as long
   (:func:`~rayshim.lineage.spillback.pause_s`).
2. It moves only to a node that has room for it by all that is known.
3. It goes back to a node that it left only after that node has said anew what it has:
   no two nodes send a lease to and fro because of what they said before.

Pure functions over what nodes said, and how often they said something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rayshim.lineage.placement import View, Wish, choose
from rayshim.lineage.spillback import pause_s


def open_to(
    views: Sequence[View], left: Mapping[str, int], told: Mapping[str, int]
) -> list[View]:
    """The nodes that a lease may go to (rule 3).

    Args:
        views: the nodes that may get work, in order of joining.
        left: node -> how often it had told its load when it could not grant the lease.
        told: node -> how often it has told its load by now.
    """
    return [
        view
        for view in views
        if view.node_id not in left or told[view.node_id] > left[view.node_id]
    ]


def thief(
    need: Mapping[str, int],
    at: str,
    hops: int,
    views: Sequence[View],
    wish: Wish,
    *,
    rested_s: float = 0.0,
) -> str:
    """The node that takes over a lease that waits on another one; empty if none.

    Args:
        need: units of each resource, > 0.
        at: where it waits.
        hops: how often it has moved.
        views: the nodes that it may go to (see :func:`open_to`).
        wish: where it would like to go.
        rested_s: how long it has been there.
    """
    if rested_s < pause_s(hops):
        return ""
    others = [view for view in views if view.node_id != at]
    choice = choose(need, others, wish)
    return choice.node_id if choice is not None and choice.has_room else ""
