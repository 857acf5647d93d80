"""What Dask's own scheduler says, as a :class:`~rayshim.lineage.demand.Demand`. Pure.

Dask gives tasks with resource restrictions to a worker that has such resources at all,
however many it has already: they pile up there as *processing*, and neither its own
adaptive scaling nor its state "no-worker" says so. So the tasks of each worker are laid
into its resources, and what does not fit is what the cluster lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from rayshim.lineage.demand import NODE_GROUP_LABEL, Demand, NodeFacts, ShapeDemand

CPU: Final = "CPU"
#: Of a worker that takes no more tasks.
RETIRING: Final = "closing_gracefully"
#: Of those that still take part in the cluster.
ALIVE: Final = frozenset({"running", "paused", RETIRING})
#: Amounts that differ by less are equal.
_EPSILON: Final = 1e-9

#: [resources, workers, hosts, is_loose, label, count], as ``scheduler_facts`` says it.
Shape = Sequence[Any]


def resources_of(shape: Shape) -> dict[str, float]:
    """What one task of a shape needs: what it says, else one CPU."""
    return {name: float(value) for name, value in shape[0].items()} or {CPU: 1.0}


def totals_of(worker: Mapping[str, Any]) -> dict[str, float]:
    """Resources of a worker; as many CPUs as threads if it does not say."""
    given = {name: float(value) for name, value in worker["resources"].items()}
    return {CPU: float(worker["nthreads"]), **given}


def has_left(worker: Mapping[str, Any]) -> bool:
    """Whether a worker takes no tasks and has nothing any more.

    Its process may still be there; the cluster would not miss it.
    """
    if worker["status"] not in ALIVE:
        return True
    is_empty = not worker["keys"] and not worker["tasks"] and not worker["has_actors"]
    return worker["status"] == RETIRING and is_empty


def is_busy(worker: Mapping[str, Any]) -> bool:
    """Whether it has tasks or actors."""
    return bool(worker["tasks"]) or bool(worker["has_actors"])


def laid(
    worker: Mapping[str, Any],
) -> tuple[dict[str, float], list[tuple[Shape, int]]]:
    """Lays a worker's tasks into its resources.

    Returns:
        What is left of them, and the shapes that do not fit, with how many of each.
    """
    free = totals_of(worker)
    over: list[tuple[Shape, int]] = []
    for shape in sorted(worker["tasks"], key=_by_size):
        needs, count = resources_of(shape), int(shape[5])
        amounts = {name: value for name, value in needs.items() if value > 0}
        fits = min(
            (
                int((free.get(name, 0.0) + _EPSILON) // value)
                for name, value in amounts.items()
            ),
            default=count,
        )
        fits = min(fits, count)
        for name, value in amounts.items():
            free[name] = max(0.0, free.get(name, 0.0) - fits * value)
        if fits < count:
            over.append((shape, count - fits))
    return free, over


def _by_size(shape: Shape) -> tuple[float, float]:
    """Tasks that need rare things come first: others may go elsewhere."""
    needs = resources_of(shape)
    return -sum(v for name, v in needs.items() if name != CPU), -needs.get(CPU, 0.0)


def demand_of(
    facts: Mapping[str, Any],
    *,
    time_s: float,
    labels_of: Callable[[str], Mapping[str, str]],
    idle_s: Mapping[str, float],
    draining: Iterable[str] = (),
    oldest_s: Callable[[Any], float] = lambda shape: 0.0,
) -> Demand:
    """The demand of a cluster of Dask.

    Args:
        facts: of ``scheduler_facts``.
        time_s: Unix time of the facts.
        labels_of: labels of the node of a worker's name.
        idle_s: address -> seconds without work.
        draining: addresses of workers that are being retired.
        oldest_s: seconds that the oldest task of a shape (see :func:`shape_key`) waits.
    """
    told = set(draining)
    nodes: list[NodeFacts] = []
    pieces: dict[Any, tuple[Shape, int]] = {}
    waiting = [(shape, int(shape[5])) for shape in facts["waiting"]]
    for worker in facts["workers"]:
        if worker["status"] not in ALIVE:
            continue
        free, over = laid(worker)
        waiting += over
        if has_left(worker):
            continue
        address = worker["address"]
        is_draining = worker["status"] == RETIRING or address in told
        labels = dict(labels_of(worker["name"]))
        nodes.append(
            NodeFacts(
                address,
                labels.get(NODE_GROUP_LABEL, ""),
                totals_of(worker),
                free if worker["status"] == "running" else dict.fromkeys(free, 0.0),
                labels,
                worker["ip"],
                0.0 if is_busy(worker) else idle_s.get(address, 0.0),
                is_draining,
                sole_copies_bytes=int(worker["sole_bytes"]),
            )
        )
    for shape, count in waiting:
        key = shape_key(shape)
        before = pieces.get(key)
        pieces[key] = (before[0], before[1] + count) if before else (shape, count)
    leases = tuple(
        ShapeDemand(
            resources_of(shape),
            count,
            label=str(shape[4]),
            oldest_s=oldest_s(key),
            is_infeasible=not any(_could(node, resources_of(shape)) for node in nodes),
            node_ids=_allowed(shape, nodes),
        )
        for key, (shape, count) in pieces.items()
    )
    return Demand(str(facts["instance"]), time_s, tuple(nodes), leases)


def shape_key(shape: Shape) -> Any:
    """Equal for tasks that a worker could be exchanged for."""
    where = () if shape[3] else (*shape[1], "", *shape[2])
    return tuple(sorted(resources_of(shape).items())), where


def _could(node: NodeFacts, needs: Mapping[str, float]) -> bool:
    return all(node.total.get(k, 0.0) + _EPSILON >= v for k, v in needs.items())


def _allowed(shape: Shape, nodes: Sequence[NodeFacts]) -> tuple[str, ...]:
    """Ids of the nodes that a task was tied to; empty: any."""
    if shape[3]:
        return ()
    hosts = set(shape[2])
    of_hosts = [node.node_id for node in nodes if node.ip in hosts]
    # One that is not there is named all the same: no other node will do.
    return (*shape[1], *(of_hosts or sorted(hosts)))
