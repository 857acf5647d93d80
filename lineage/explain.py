"""Why a lease waits and who holds what, in words and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayshim.lineage.leases import LeaseState
from rayshim.lineage.raylet import Raylet
from rayshim.lineage.resources import Units, describe, to_amounts

#: Holders that one line names.
SHOWN_HOLDERS = 5


def lease(raylet: Raylet, lease_id: bytes, now: float) -> list[str]:
    """Reasons, most important first; empty for an id that is not known."""
    found = raylet.leases.get(lease_id)
    if found is None:
        return []
    request = found.request
    age = f"{now - found.since_s:.1f} s"
    if found.state is LeaseState.GRANTED:
        assert found.executor is not None
        pid = found.executor.pid
        waits = ", waiting in get or wait" if found.executor.is_blocked else ""
        return [f"{request.label} runs on the executor with pid {pid} for {age}{waits}"]
    if found.state is LeaseState.STARTING:
        booting = sum(not one.address for one in raylet.executors)
        return [
            f"{request.label} has its resources and waits for an executor process "
            f"for {age}; {booting} are starting"
        ]
    if request.group:
        return [_group_reason(raylet, request.group, request.bundle, request.need)]
    return [f"{request.label} waits for {age}: {need_text(raylet, request.need, now)}"]


def need_text(raylet: Raylet, need: Units, now: float) -> str:
    """Why ``need`` does not fit on the node now."""
    node = raylet.resources
    total = {name: node.total.get(name, 0) for name in need}
    if not node.is_feasible(need):
        return (
            f"needs {describe(need)}; the cluster has at most {describe(total)}, so "
            "that it cannot start until a node with enough joins"
        )
    missing = node.missing(need)
    free = {name: node.available.get(name, 0) for name in missing}
    short = {name: total[name] for name in missing}
    held = holders(raylet, missing, now)
    return f"needs {describe(need)}; free {describe(free)} of {describe(short)}" + (
        f", in use by {held}" if held else ""
    )


def holders(raylet: Raylet, names: Mapping[str, int], now: float) -> str:
    """Who holds any of the named resources, longest first."""
    texts = []
    for one in raylet.leases.values():
        if one.allocation is None or one.source is not raylet.resources:
            continue
        held = {
            name: units for name, units in one.allocation.units.items() if name in names
        }
        if held:
            pid = one.executor.pid if one.executor else 0
            age = now - one.since_s
            texts.append(
                f"{_holder(one.request.label, describe(held))} (pid {pid}, {age:.0f} s)"
            )
    for group, bundles in raylet.groups.items():
        for index, bundle in bundles.items():
            held = {
                name: units
                for name, units in bundle.allocation.units.items()
                if name in names
            }
            if held:
                texts.append(
                    f"bundle {index} {describe(held)} of group {group.hex()[:12]}"
                )
    more = len(texts) - SHOWN_HOLDERS
    shown = ", ".join(texts[:SHOWN_HOLDERS])
    return f"{shown} and {more} more" if more > 0 else shown


def _group_reason(raylet: Raylet, group: bytes, bundle: int, need: Units) -> str:
    name = f"placement group {group.hex()[:12]}"
    bundles = raylet.groups.get(group)
    if bundles is None:
        return f"needs {describe(need)} of {name}, which has not got its resources yet"
    chosen = [one for index, one in bundles.items() if bundle in (-1, index)]
    parts = ", ".join(
        f"{describe(one.resources.available)} of {describe(one.resources.total)}"
        for one in chosen
    )
    which = "its bundles" if bundle < 0 else f"its bundle {bundle}"
    return f"needs {describe(need)} of {name}; {which} has free {parts or 'nothing'}"


def lease_rows(
    raylet: Raylet, now: float, backlogs: Mapping[bytes, int]
) -> list[dict[str, Any]]:
    """One row for each lease, by arrival."""
    return [
        {
            "lease_id": lease_id.hex(),
            "label": one.request.label,
            "state": one.state.name,
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
