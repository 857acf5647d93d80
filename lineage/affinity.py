"""Wishes for a node by name: when to wait for it, when to fail, what to say then.

A node is *able* if it would have room with nothing on it, and has the labels. A hard
wish for nodes of which none is able fails at once, since no node changes what it is. A
soft one counts only while its node is able; then it is waited for, unless the user said
that it may go elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rayshim.lineage.labels import rank
from rayshim.lineage.placement import View, fits
from rayshim.lineage.resources import describe

#: What a request says as its strategy: rather wait for the node than run elsewhere.
WAIT = "AFFINITY"
#: Rather fail than wait.
FAIL = "AFFINITY_OR_FAIL"
#: Both of Ray's reasons; its users look for these words.
_UNMET = (
    "The node specified via NodeAffinitySchedulingStrategy doesn't exist any more or "
    "is infeasible, and soft=False was specified"
)

Selectors = Sequence[Mapping[str, str]]


def is_able(need: Mapping[str, int], view: View, selectors: Selectors) -> bool:
    """Whether a node could ever run a lease."""
    return fits(need, view.total) and rank(selectors, view.labels) >= 0


def refusal(
    label: str,
    need: Mapping[str, int],
    wanted: Mapping[str, View | None],
    selectors: Selectors,
    strategy: str,
) -> str:
    """Why a lease fails that may run on these nodes only; empty if it does not.

    Args:
        label: what the lease is for.
        need: units of each resource, > 0.
        wanted: node id -> the node, None for one that is dead or was never there.
        selectors: as of the request.
        strategy: as of the request.

    Example:
        >>> one = View("ab", {"CPU": 10_000}, {"CPU": 10_000})
        >>> refusal("f", {"CPU": 10_000}, {"ab": one}, (), FAIL)
        ''
        >>> "node ab has {CPU: 1} in all" in refusal(
        ...     "f", {"CPU": 20_000}, {"ab": one}, (), WAIT
        ... )
        True
    """
    reasons = []
    for node_id, view in wanted.items():
        name = f"node {node_id[:8]}"
        if view is None:
            reasons.append(f"{name} is dead or was never part of this cluster")
        elif not fits(need, view.total):
            total = {one: view.total.get(one, 0) for one in need}
            reasons.append(f"{name} has {describe(total)} in all")
        elif rank(selectors, view.labels) < 0:
            text = " or ".join(str(dict(one)) for one in selectors)
            reasons.append(f"{name} does not have the labels {text}")
        elif strategy == FAIL and not fits(need, view.available):
            free = {one: view.available.get(one, 0) for one in need}
            reasons.append(
                f"{name} has only {describe(free)} free and _fail_on_unavailable is set"
            )
        else:
            return ""
    return (
        f"{_UNMET}: {label} needs {describe(need)}, and {'; '.join(reasons)}. Pass "
        "soft=True to let it run elsewhere."
    )
