"""Kueue's arithmetic: which flavors a workload gets, or in its words why none.

Source: https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from rayshim.k8s.api import Object
from rayshim.k8s.testing.localkube.quantities import quantity
from rayshim.k8s.testing.localkube.scheduling import tolerates

#: Flavor of quotas that are given without one.
DEFAULT_FLAVOR = "default"
#: (flavor, resource) -> amount.
Amounts = dict[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """Resources that a workload takes from one flavor together."""

    resources: tuple[str, ...]
    flavors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterQueue:
    """A ClusterQueue, as far as quota goes."""

    name: str
    groups: tuple[ResourceGroup, ...]
    nominal: Mapping[tuple[str, str], float]
    #: What may be borrowed of each; not in it: all that is free in the cohort.
    borrowing: Mapping[tuple[str, str], float] = field(default_factory=dict)
    cohort: str = ""
    #: Whether one that does not fit holds back those behind it.
    is_strict: bool = False
    #: Whether resources without quota are free, instead of refused.
    is_lenient: bool = False


def read_cluster_queue(made: Object) -> ClusterQueue:
    """The quota of a ClusterQueue object."""
    spec = made["spec"]
    groups: list[ResourceGroup] = []
    nominal: Amounts = {}
    borrowing: Amounts = {}
    for one in spec.get("resourceGroups") or ():
        flavors = one.get("flavors") or ()
        groups.append(
            ResourceGroup(
                tuple(one["coveredResources"]), tuple(each["name"] for each in flavors)
            )
        )
        for flavor in flavors:
            for row in flavor.get("resources") or ():
                place = (flavor["name"], row["name"])
                nominal[place] = quantity(row["nominalQuota"])
                if row.get("borrowingLimit") is not None:
                    borrowing[place] = quantity(row["borrowingLimit"])
    return ClusterQueue(
        made["metadata"]["name"],
        tuple(groups),
        nominal,
        borrowing,
        spec.get("cohortName") or spec.get("cohort") or "",
        is_strict=spec.get("queueingStrategy") == "StrictFIFO",
    )


def plain_queue(name: str, quota: Mapping[str, float]) -> ClusterQueue:
    """A ClusterQueue with one flavor and nobody to borrow from."""
    return ClusterQueue(
        name,
        (ResourceGroup(tuple(quota), (DEFAULT_FLAVOR,)),),
        {(DEFAULT_FLAVOR, resource): amount for resource, amount in quota.items()},
        is_lenient=True,
    )


@dataclass(frozen=True, slots=True)
class Assignment:
    """What an admitted workload uses."""

    flavors: tuple[str, ...]
    usage: Mapping[tuple[str, str], float]


def assign(
    need: Mapping[str, float],
    queue: ClusterQueue,
    queues: Iterable[ClusterQueue],
    used: Mapping[str, Mapping[tuple[str, str], float]],
    obstacle: Callable[[str], str],
) -> Assignment | str:
    """Find flavors with enough quota.

    Args:
        need: resource -> amount of the whole workload.
        queue: where it waits.
        queues: all of them.
        used: name of a ClusterQueue -> what its admitted workloads use.
        obstacle: why the workload's pods cannot use a flavor; empty: they can.

    Returns:
        What it uses, or Kueue's message.
    """
    cohort = [one for one in queues if queue.cohort and one.cohort == queue.cohort]
    covered = {name for group in queue.groups for name in group.resources}
    chosen: list[str] = []
    usage: Amounts = {}
    problems = [
        f"resource {name} unavailable in ClusterQueue"
        for name in sorted(need)
        if name not in covered and not queue.is_lenient
    ]
    for group in queue.groups:
        wanted = {name: need[name] for name in group.resources if need.get(name)}
        if not wanted:
            continue
        found = False
        for flavor in group.flavors:
            reasons = [one for one in [obstacle(flavor)] if one]
            for name, amount in wanted.items():
                free = _free((flavor, name), queue, cohort, used)
                if amount > free + 1e-9:
                    reasons.append(
                        f"insufficient unused quota for {name} in flavor {flavor}, "
                        f"{amount - max(free, 0.0):g} more needed"
                    )
            if not reasons:
                chosen.append(flavor)
                usage |= {(flavor, name): amount for name, amount in wanted.items()}
                found = True
                break
            problems += reasons
        if found:
            # What other flavors lacked does not matter any more.
            problems = [one for one in problems if " in flavor " not in one]
            problems = [one for one in problems if not one.startswith("flavor ")]
        else:
            break
    if problems:
        return f"couldn't assign flavors to pod set main: {', '.join(problems)}"
    return Assignment(tuple(dict.fromkeys(chosen)), usage)


def flavor_obstacle(flavor: Object | None, name: str, spec: Object) -> str:
    """Why pods cannot use a flavor, in Kueue's words; empty: they can.

    Args:
        flavor: the ResourceFlavor; None: there is none.
        name: of the flavor.
        spec: of a pod.
    """
    if flavor is None:
        return "" if name == DEFAULT_FLAVOR else f"flavor {name} not found"
    given = flavor.get("spec") or {}
    selector = spec.get("nodeSelector") or {}
    for key, value in (given.get("nodeLabels") or {}).items():
        if selector.get(key, value) != value:
            return f"flavor {name} doesn't match node affinity"
    tolerations = [*(spec.get("tolerations") or ()), *(given.get("tolerations") or ())]
    for taint in given.get("nodeTaints") or ():
        if taint["effect"] != "PreferNoSchedule" and not tolerates(tolerations, taint):
            return f"untolerated taint {taint['key']} in flavor {name}"
    return ""


def total_usage(
    usages: Iterable[tuple[str, Mapping[tuple[str, str], float]]],
) -> dict[str, Amounts]:
    """ClusterQueue -> what all its workloads use."""
    found: dict[str, Amounts] = {}
    for name, usage in usages:
        mine = found.setdefault(name, {})
        for place, amount in usage.items():
            mine[place] = mine.get(place, 0.0) + amount
    return found


def flavors_usage(
    queue: ClusterQueue, used: Mapping[tuple[str, str], float]
) -> list[Object]:
    """As in ``status.flavorsUsage`` of LocalQueues and ClusterQueues."""
    return [
        {
            "name": flavor,
            "resources": [
                {"name": resource, "total": _text(resource, used.get(place, 0.0))}
                for place in queue.nominal
                for resource in [place[1]]
                if place[0] == flavor
            ],
        }
        for flavor in dict.fromkeys(place[0] for place in queue.nominal)
    ]


def _free(
    place: tuple[str, str],
    queue: ClusterQueue,
    cohort: list[ClusterQueue],
    used: Mapping[str, Mapping[tuple[str, str], float]],
) -> float:
    def taken(one: ClusterQueue) -> float:
        return used.get(one.name, {}).get(place, 0.0)

    own = queue.nominal.get(place, 0.0) - taken(queue)
    if not cohort:
        return own
    limit = queue.borrowing.get(place, float("inf"))
    shared = sum(one.nominal.get(place, 0.0) - taken(one) for one in cohort)
    return min(own + limit, shared)


def _text(resource: str, amount: float) -> str:
    if resource == "cpu" and amount != round(amount):
        return f"{round(amount * 1000)}m"
    return str(round(amount))
