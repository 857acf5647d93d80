"""The platform at a multiple of its load."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from rayshim.k8s.config import ConfigError, Group, Platform, Queue
from rayshim.k8s.figures import whole
from rayshim.k8s.sizes import required_workers, train_sizes


def scaled(platform: Platform, factor: float) -> Platform:
    """The platform at a multiple of its load: sizes follow the service levels anew.

    Requests a second, rows, bytes and the GPU hours of a configuration grow by the
    factor; latencies, windows and the number of configurations stay. Training gets
    workers until its window holds, at the speed that each has now. Limits, minimum and
    warm workers grow as their group's need does, quotas as the limits of their groups.
    From ``own_cluster_from_scale`` on, serving moves to an EKS cluster and a head of
    its own: the platform ``<name>-serve`` in ``others``.

    Args:
        platform: at its own load.
        factor: 10 for ten times the load; above 0.

    Raises:
        ConfigError: the factor is not above 0 and finite.
    """
    if not 0 < factor < math.inf:
        raise ConfigError("scale", f"must be above 0, not {factor}", platform.source)
    larger = _with_load(platform, factor)
    groups = tuple(_group(one, platform, larger, factor) for one in platform.groups)
    queues = tuple(_queue(one, platform.groups, groups) for one in platform.queues)
    larger = replace(
        larger, groups=groups, queues=queues, scale=platform.scale * factor
    )
    serve = larger.serve
    if serve is None or larger.scale < serve.own_cluster_from_scale:
        return larger
    return _apart(larger, serve.group)


def _with_load(platform: Platform, factor: float) -> Platform:
    """The service levels at the new load."""
    serve, train, tune = platform.serve, platform.train, platform.tune
    if serve is not None:
        serve = replace(serve, requests_per_s=serve.requests_per_s * factor)
    if train is not None:
        before = train_sizes(train)
        train = replace(train, rows=train.rows * factor, data_tb=train.data_tb * factor)
        # Whoever planned more workers than are needed goes on doing so.
        reserve = train.workers / before.needed.value
        workers = whole(train_sizes(train).needed.value * reserve)
        speed = before.per_worker.value * workers
        train = replace(train, workers=workers, rows_per_s=speed)
    if tune is not None:
        tune = replace(
            tune,
            gpu_hours_each=tune.gpu_hours_each * factor,
            budget_gpu_hours=tune.budget_gpu_hours * factor,
        )
    return replace(platform, serve=serve, train=train, tune=tune)


def _group(group: Group, before: Platform, after: Platform, factor: float) -> Group:
    used = required_workers(before, group.name)
    needed = required_workers(after, group.name)
    growth = needed / used if used else factor
    return replace(
        group,
        min=whole(group.min * growth),
        warm=whole(group.warm * growth),
        max=max(whole(group.max * growth), needed, 1),
    )


def _queue(queue: Queue, before: tuple[Group, ...], after: tuple[Group, ...]) -> Queue:
    """Its quota, changed as what its groups may have together."""

    def changed(amounts: Mapping[str, float]) -> dict[str, float]:
        found = {}
        for name, value in amounts.items():
            was = sum(_most(one, name) for one in before if one.name in queue.groups)
            now = sum(_most(one, name) for one in after if one.name in queue.groups)
            found[name] = float(whole(value * now / was)) if was else value
        return found

    borrowing = None if queue.borrowing is None else changed(queue.borrowing)
    return replace(queue, quota=changed(queue.quota), borrowing=borrowing)


def _most(group: Group, resource: str) -> float:
    """What all workers of a group together ask for."""
    if resource == "cpu":
        return group.max * group.cpus
    if resource == "memory":
        return group.max * group.memory_gib
    accelerator = group.accelerator
    if accelerator is not None and accelerator.resource == resource:
        return float(group.max * accelerator.count)
    return float(group.max) if resource == "pods" else 0.0


def _apart(platform: Platform, group: str) -> Platform:
    """Serving on a cluster of its own, if something else is left."""
    rest = tuple(one for one in platform.groups if one.name != group)
    shared = [
        level
        for level in (platform.train, platform.tune, platform.ingest)
        if level is not None and level.group == group
    ]
    if not rest or shared:
        return platform
    serving = replace(
        platform,
        name=f"{platform.name}-serve",
        eks_cluster=f"{platform.eks_cluster}-serve",
        groups=(platform.group(group),),
        queues=_queues_of(platform, {group}),
        train=None,
        ingest=None,
        tune=None,
    )
    return replace(
        platform,
        groups=rest,
        queues=_queues_of(platform, {one.name for one in rest}),
        serve=None,
        serve_host="",
        others=(serving,),
    )


def _queues_of(platform: Platform, groups: set[str]) -> tuple[Queue, ...]:
    """The queues that these groups use, with their share of the quota."""
    kept = tuple(one for one in platform.groups if one.name in groups)
    return tuple(
        replace(
            _queue(queue, platform.groups, kept),
            groups=tuple(name for name in queue.groups if name in groups),
        )
        for queue in platform.queues
        if groups & set(queue.groups)
    )
