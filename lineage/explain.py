"""Why a lease waits at its node and who holds what, in words and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rayshim.lineage.leases import Lease, LeaseState
from rayshim.lineage.raylet import Raylet
from rayshim.lineage.reasons import Reason
from rayshim.lineage.resources import Units, describe, to_amounts

#: Holders that one line names.
SHOWN_HOLDERS = 5
#: In a session on one node, how the resource of a selector that it does not satisfy
#: begins.
SELECTOR = "label_selector "


def lease(raylet: Raylet, lease_id: bytes, now: float) -> list[str]:
    """The texts of :func:`lease_reasons`."""
    return [reason.text for reason in lease_reasons(raylet, lease_id, now)]


def lease_reasons(raylet: Raylet, lease_id: bytes, now: float) -> list[Reason]:
    """Reasons, most important first; none for an id that is not known."""
    found = raylet.leases.get(lease_id)
    if found is None:
        return []
    request = found.request
    age_s = now - found.since_s
    age = f"{age_s:.1f} s"
    numbers: dict[str, Any] = {"waited_s": age_s, "needed": to_amounts(request.need)}
    if found.state is LeaseState.GRANTED:
        assert found.executor is not None
        pid = found.executor.pid
        if found.note:
            text = f"{request.label} has its resources for {age}: {found.note}"
            return [Reason("environment", text, {**numbers, "pid": pid})]
        waits = ", waiting in get or wait" if found.executor.is_blocked else ""
        text = f"{request.label} runs on the executor with pid {pid} for {age}{waits}"
        return [Reason("running", text, {"pid": pid, "seconds": age_s})]
    if found.state is LeaseState.STARTING:
        booting = sum(not one.address for one in raylet.executors)
        text = (
            f"{request.label} has its resources and waits for an executor process "
            f"for {age}; {booting} are starting"
        )
        return [Reason("executor", text, {**numbers, "starting": booting})]
    if raylet.is_draining:
        text = f"{request.label} waits for {age}: its node leaves and grants no more"
        return [Reason("node", text, numbers)]
    if request.group:
        return [_group_reason(raylet, found, now)]
    return [
        need_reason(raylet, request.need, now, f"{request.label} waits for {age}: ")
    ]


def need_reason(raylet: Raylet, need: Units, now: float, head: str = "") -> Reason:
    """Why ``need`` does not fit on the node now; ``head`` begins the text."""
    node = raylet.resources
    total = {name: node.total.get(name, 0) for name in need}
    numbers: dict[str, Any] = {
        "needed": to_amounts(need),
        "total": to_amounts(total),
    }
    if not node.is_feasible(need):
        lacking = {
            name: units - total[name]
            for name, units in need.items()
            if total[name] < units
        }
        numbers["lacking"] = to_amounts(lacking)
        selectors = [one for one in lacking if one.startswith(SELECTOR)]
        if selectors:
            text = f"{head}needs {describe(need)}; no node has these labels"
            remedy = "change the selector, or start with these labels"
            return Reason("labels", text, numbers, remedy)
        # A node of a cluster speaks for itself alone: others may have more.
        if raylet.is_clustered:
            return Reason(
                "resources",
                f"{head}needs {describe(need)}; this node has at most "
                f"{describe(total)}",
                numbers,
            )
        return Reason(
            "infeasible",
            f"{head}needs {describe(need)}; the cluster has at most {describe(total)}, "
            "so that it cannot start until a node with enough joins",
            numbers,
            f"ask for less, or start with {describe(lacking)} more",
        )
    missing = node.missing(need)
    free = {name: node.available.get(name, 0) for name in missing}
    short = {name: total[name] for name in missing}
    held = list(_holders(raylet, missing, now))
    numbers["free"] = to_amounts(free)
    numbers["holders"] = [facts for _, facts in held[:SHOWN_HOLDERS]]
    text = f"{head}needs {describe(need)}; free {describe(free)} of {describe(short)}"
    if held:
        text += f", in use by {_listed([text for text, _ in held])}"
    return Reason("resources", text, numbers)


def _holders(
    raylet: Raylet, names: Mapping[str, int], now: float, source: Any = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Text and facts of each who holds of ``source``, by default the node."""
    of_node = source is None or source is raylet.resources
    source = raylet.resources if of_node else source
    for one in raylet.leases.values():
        if one.allocation is None or one.source is not source:
            continue
        units = {k: v for k, v in one.allocation.units.items() if k in names}
        lent = one.allocation.lent_cpu
        if lent and "CPU" in units:
            units["CPU"] -= lent
            if not units["CPU"]:
                del units["CPU"]
        if units:
            pid = one.executor.pid if one.executor else 0
            age_s = now - one.since_s
            held_s = f"({f'pid {pid}' if pid else 'starting'}, {age_s:.0f} s)"
            text = f"{_holder(one.request.label, describe(units))} {held_s}"
            facts = {"who": one.request.label, "pid": pid, "seconds": age_s}
            yield text, {**facts, "held": to_amounts(units)}
    if not of_node:
        return
    for group, bundles in raylet.groups.items():
        for index, bundle in bundles.items():
            units = {k: v for k, v in bundle.allocation.units.items() if k in names}
            if units:
                who = f"bundle {index} {describe(units)} of group {group.hex()[:12]}"
                yield who, {"who": who, "held": to_amounts(units)}


def _listed(texts: list[str]) -> str:
    more = len(texts) - SHOWN_HOLDERS
    shown = ", ".join(texts[:SHOWN_HOLDERS])
    return f"{shown} and {more} more" if more > 0 else shown


def _group_reason(raylet: Raylet, lease: Lease, now: float) -> Reason:
    request = lease.request
    group, bundle, need = request.group, request.bundle, request.need
    name = f"placement group {group.hex()[:12]}"
    numbers: dict[str, Any] = {
        "group": group.hex(),
        "bundle": bundle,
        "needed": to_amounts(need),
        "waited_s": now - lease.since_s,
    }
    bundles = raylet.groups.get(group)
    if bundles is None:
        return Reason(
            "group",
            f"needs {describe(need)} of {name}, which has not got its resources yet",
            numbers,
        )
    chosen = [one for index, one in bundles.items() if bundle in (-1, index)]
    parts = ", ".join(
        f"{describe(one.resources.available)} of {describe(one.resources.total)}"
        for one in chosen
    )
    numbers["free"] = [to_amounts(one.resources.available) for one in chosen]
    which = "its bundles" if bundle < 0 else f"its bundle {bundle}"
    text = f"needs {describe(need)} of {name}; {which} has free {parts or 'nothing'}"
    held = [
        text for one in chosen for text, _ in _holders(raylet, need, now, one.resources)
    ]
    if held:
        text += f", in use by {_listed(held)}"
    if chosen and not any(one.resources.is_feasible(need) for one in chosen):
        remedy = "no bundle is large enough even when it is idle: ask for less"
        return Reason("infeasible", text, numbers, remedy)
    return Reason("group", text, numbers)


def reservation_reason(raylet: Raylet, group: bytes, now: float) -> Reason | None:
    """Why the bundles of a group are not reserved at its node; None: nothing waits."""
    waiting = raylet._reservations.get(group)
    if waiting is None:
        return None
    age = f"{now - waiting.since_s:.1f} s"
    head = f"its {len(waiting.bundles)} bundles wait for {age}: "
    return need_reason(raylet, waiting.need, now, head)


def lease_state(raylet: Raylet, one: Lease) -> str:
    """Name of a lease's state; INFEASIBLE while it waits for what is not there."""
    if one.state is LeaseState.WAITING and not raylet.is_clustered:
        group = one.request.group
        sources = raylet._sources(group, one.request.bundle) if group else ()
        if not group and not raylet.resources.is_feasible(one.request.need):
            return "INFEASIBLE"
        sources = list(sources)
        if sources and not any(s.is_feasible(one.request.need) for s in sources):
            return "INFEASIBLE"
    return one.state.name


def lease_rows(
    raylet: Raylet, now: float, backlogs: Mapping[bytes, int]
) -> list[dict[str, Any]]:
    """One row for each lease, by arrival."""
    return [
        {
            "lease_id": lease_id.hex(),
            "label": one.request.label,
            "state": lease_state(raylet, one),
            "holder": one.request.holder,
            "resources": to_amounts(one.request.need),
            "pid": one.executor.pid if one.executor else 0,
            "seconds": now - one.since_s,
            "backlog": backlogs.get(lease_id, 0),
        }
        for lease_id, one in raylet.leases.items()
    ]


def executor_rows(raylet: Raylet, now: float) -> list[dict[str, Any]]:
    """One row for each executor."""
    return [
        {
            "worker_id": one.worker_id.hex(),
            "pid": one.pid,
            "state": one.state.name,
            "job_id": one.job_id.hex(),
            "is_blocked": one.is_blocked,
            "seconds": now - one.since_s,
        }
        for one in raylet.executors
    ]


def _holder(label: str, held: str) -> str:
    """Who holds what; the labels of tasks name the amounts already."""
    return label if "{" in label else f"{label or 'a lease'} {held}"
