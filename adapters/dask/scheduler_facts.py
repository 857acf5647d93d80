"""What runs inside Dask's own scheduler to answer the platform.

These functions travel by value (Dask's ``run_function``), once in the life of a
scheduler, so that it needs no rayshim: they use nothing of it. After that it answers
two more kinds of requests, with plain values.
"""

from __future__ import annotations

from typing import Any

#: Requests that an equipped scheduler answers.
FACTS, RETIRE = "rayshim_facts", "rayshim_retire"


def equip(dask_scheduler: Any) -> None:
    """Teaches a scheduler the two requests.

    Args:
        dask_scheduler: given by Dask.
    """

    def facts() -> dict[str, Any]:
        return scheduler_facts(dask_scheduler)

    async def retiring(address: str) -> str:
        return await retire(dask_scheduler, address)

    dask_scheduler.handlers[FACTS] = facts
    dask_scheduler.handlers[RETIRE] = retiring


def scheduler_facts(dask_scheduler: Any) -> dict[str, Any]:
    """What its workers do, and which of its tasks wait for one.

    Args:
        dask_scheduler: given by Dask.

    Returns:
        ``instance``; ``workers``, each with ``address``, ``name``, ``ip``, ``status``,
        ``nthreads``, ``resources``, ``tasks`` (count of each shape that it processes),
        ``has_actors``, ``keys`` (values that it holds), ``sole_bytes``; and
        ``waiting``: shapes of tasks that have no worker. A shape is
        [resources, workers, hosts, is_loose, label, count].
    """

    def shapes(tasks: Any) -> list[list[Any]]:
        counted: dict[Any, list[Any]] = {}
        for ts in tasks:
            resources = dict(ts.resource_restrictions or {})
            workers = sorted(ts.worker_restrictions or ())
            hosts = sorted(ts.host_restrictions or ())
            is_loose = bool(ts.loose_restrictions)
            key = (tuple(sorted(resources.items())), *workers, 0, *hosts, is_loose)
            if key not in counted:
                label = str(ts.prefix.name)
                counted[key] = [resources, workers, hosts, is_loose, label, 0]
            counted[key][5] += 1
        return list(counted.values())

    def about(ws: Any) -> dict[str, Any]:
        return {
            "address": str(ws.address),
            "name": str(ws.name),
            "ip": str(ws.host),
            "status": str(ws.status.name),
            "nthreads": int(ws.nthreads),
            "resources": dict(ws.resources),
            "tasks": shapes(ws.processing),
            "has_actors": bool(ws.actors),
            "keys": len(ws.has_what),
            "sole_bytes": sum(
                max(0, ts.nbytes) for ts in ws.has_what if len(ts.who_has) == 1
            ),
        }

    unrunnable, queued = dask_scheduler.unrunnable, dask_scheduler.queued
    return {
        "instance": str(dask_scheduler.id),
        "workers": [about(ws) for ws in dask_scheduler.workers.values()],
        "waiting": shapes([*unrunnable, *queued]),
    }


async def retire(dask_scheduler: Any, address: str) -> str:
    """Has a worker take no more tasks, and hands what it holds to others.

    The worker's process stays, with nothing to do: what starts containers again would
    only have it join anew. It ends with its Deployment.

    Args:
        dask_scheduler: given by Dask.
        address: of the worker.

    Returns:
        Why it was refused; empty: it is done, or the worker is gone.
    """
    ws = dask_scheduler.workers.get(address)
    if ws is None:
        return ""
    if ws.processing or ws.actors:
        what = f"{len(ws.processing)} tasks" if ws.processing else "actors"
        return f"it has {what}"
    done = await dask_scheduler.retire_workers(
        workers=[address], close_workers=False, remove=False
    )
    if address in done or address not in dask_scheduler.workers:
        return ""
    sole = sum(len(ts.who_has) == 1 for ts in ws.has_what)
    return f"it holds {sole} values that no other worker can take"
