"""Gangs: placement groups whose pods Kueue admits together or not at all.

A gang is a DaskWorkerGroup of its own, as large as its placement group needs, whose
pods are one of Kueue's *pod groups*. Its size never changes, since Kueue counts the
pods of a group once (https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods): a lost pod
is made again by its Deployment and takes the lost one's place.
No other module knows of pod groups.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rayshim.k8s import names
from rayshim.k8s.config import Group, Platform
from rayshim.k8s.observed import PodState, Worker

Object = dict[str, Any]

#: Hex digits of a placement group's id in the id of its gang.
ID_DIGITS: Final = 9
#: Annotation of a gang's worker group: hex id of its placement group.
SUBJECT: Final = "rayshim.io/placement-group"


class GangError(ValueError):
    """An object is not the gang that it should be."""


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang as its DaskWorkerGroup says."""

    gang: str
    #: Name of the DaskWorkerGroup.
    worker_group: str
    #: Name of the group in platform.yaml.
    group: str
    #: Pods that Kueue admits together.
    size: int
    #: Hex id of its placement group; empty: nobody noted it.
    subject: str = ""


def gang_id(placement_group_id: str) -> str:
    """Id of the gang of a placement group.

    Args:
        placement_group_id: hex.

    Raises:
        ValueError: it is too short to tell placement groups apart.

    Example:
        >>> gang_id("7f20c1d2e3a4b5c6")
        'g7f20c1d2e'
    """
    digits = placement_group_id.lower()[:ID_DIGITS]
    if len(digits) < ID_DIGITS or not set(digits) <= set("0123456789abcdef"):
        raise ValueError(
            f"{placement_group_id!r} is no hex id of a placement group: at least "
            f"{ID_DIGITS} digits are needed"
        )
    return f"g{digits}"


def gang_object(
    platform: Platform, group: str, gang: str, size: int, *, subject: str = ""
) -> Object:
    """The DaskWorkerGroup of a gang.

    Args:
        platform: the file.
        group: name of a group with ``is_gang``.
        gang: id, of :func:`gang_id`.
        size: workers, >= 1; all of them or none are started.
        subject: hex id of the placement group, noted as an annotation.

    Raises:
        ValueError: the group takes no gangs, or the size is not possible.
    """
    from rayshim.k8s.rendering.workers import worker_group

    about = platform.group(group)
    _check(platform, about, size)
    return as_gang(worker_group(platform, about), platform, about, gang, size, subject)


def as_gang(
    rendered: Mapping[str, Any],
    platform: Platform,
    group: Group,
    gang: str,
    size: int,
    subject: str = "",
) -> Object:
    """A rendered DaskWorkerGroup, made into that of a gang.

    Args:
        rendered: the group's own, which is left as it is.
        platform: the file.
        group: of the gang.
        gang: its id.
        size: workers.
        subject: hex id of its placement group.
    """
    made: Object = copy.deepcopy(dict(rendered))
    meta = made["metadata"]
    meta["name"] = names.worker_group(platform.name, group.name, gang)
    labels = meta.setdefault("labels", {})
    labels[names.GANG] = gang
    if subject:
        meta.setdefault("annotations", {})[SUBJECT] = subject
    worker = made["spec"]["worker"]
    worker["replicas"] = size
    pods = worker.setdefault("metadata", {})
    labels = pods.setdefault("labels", {})
    labels[names.GANG] = gang
    labels[names.QUEUE] = group.queue
    labels[names.POD_GROUP] = meta["name"]
    if group.priority:
        labels[names.PRIORITY_CLASS] = group.priority
    annotations = pods.setdefault("annotations", {})
    annotations[names.POD_GROUP_SIZE] = str(size)
    annotations[names.POD_GROUP_SERVING] = "true"
    return made


def _check(platform: Platform, group: Group, size: int) -> None:
    if not group.is_gang or not group.queue:
        raise ValueError(
            f"{group.name}: a gang needs Kueue, and the group has no "
            f"{'queue' if group.is_gang else 'is_gang'}; set groups.{group.name}."
            f"{'queue' if group.is_gang else 'gang'} in {platform.source}"
        )
    if not 1 <= size <= group.max:
        raise ValueError(
            f"{group.name}: a gang of {size} workers does not fit (max is "
            f"{group.max}); ask for fewer bundles or raise groups.{group.name}.max"
        )


def is_gang(worker_group: Mapping[str, Any]) -> bool:
    """Whether a DaskWorkerGroup belongs to a gang."""
    return bool(names.GANG in (worker_group["metadata"].get("labels") or {}))


def read_gang(worker_group: Mapping[str, Any]) -> Gang:
    """A gang from its DaskWorkerGroup.

    Raises:
        GangError: it is none, or its pods are not counted as its replicas say.
    """
    meta = worker_group["metadata"]
    labels = meta.get("labels") or {}
    name = meta["name"]
    if names.GANG not in labels:
        raise GangError(f"daskworkergroup {name} is no gang: no label {names.GANG}")
    worker = worker_group["spec"]["worker"]
    annotations = (worker.get("metadata") or {}).get("annotations") or {}
    counted = str(annotations.get(names.POD_GROUP_SIZE, ""))
    if not counted.isdigit():
        raise GangError(
            f"daskworkergroup {name} has no {names.POD_GROUP_SIZE}: Kueue cannot admit "
            "its pods together; delete it, it is made again"
        )
    return Gang(
        gang=labels[names.GANG],
        worker_group=name,
        group=labels.get(names.GROUP, ""),
        size=int(counted),
        subject=(meta.get("annotations") or {}).get(SUBJECT, ""),
    )


def is_resized(worker_group: Mapping[str, Any]) -> bool:
    """Whether somebody changed the replicas of a gang, which is never resized.

    Raises:
        GangError: it is no gang.
    """
    replicas = worker_group["spec"]["worker"].get("replicas")
    return bool(replicas != read_gang(worker_group).size)


def is_admitted(workers: Iterable[Worker]) -> bool:
    """Whether Kueue let a gang's pods go (a gated one means: none of them runs)."""
    pods = [one.pod for one in workers]
    held = (PodState.GATED, PodState.MISSING)
    return bool(pods) and all(one not in held for one in pods)


def is_partial(workers: Sequence[Worker]) -> bool:
    """Whether some of a gang's pods were let go and others are held: never by Kueue."""
    gated = sum(one.pod is PodState.GATED for one in workers)
    missing = sum(one.pod is PodState.MISSING for one in workers)
    return 0 < gated < len(workers) - missing


def waits_for_quota(
    gang: str,
    waiting: int,
    size: int,
    queue: str,
    used: Mapping[str, tuple[float, float]],
) -> str:
    """What is said of a gang whose pods Kueue holds.

    Args:
        gang: its id.
        waiting: pods that are gated.
        size: pods of the gang.
        queue: name of the ClusterQueue.
        used: flavor -> (what of it is used, what there is).

    Example:
        >>> waits_for_quota("tr-7f2", 3, 4, "train", {"a100": (8, 8)})
        '3 of 4 pods of gang tr-7f2 wait for quota in ClusterQueue train (a100: 8 used of 8)'
    """  # noqa: E501
    amounts = ", ".join(
        f"{flavor}: {taken:g} used of {quota:g}"
        for flavor, (taken, quota) in sorted(used.items())
    )
    said = f"{waiting} of {size} pods of gang {gang} wait for quota in ClusterQueue"
    return f"{said} {queue}" + (f" ({amounts})" if amounts else "")


def quota_of(
    cluster_queue: Mapping[str, Any], resource: str = ""
) -> dict[str, tuple[float, float]]:
    """Flavor -> (used, nominal quota) of a ClusterQueue, for :func:`waits_for_quota`.

    Args:
        cluster_queue: as Kubernetes has it; ``status.flavorsUsage`` may be missing.
        resource: only of this resource, as "nvidia.com/gpu"; empty: the scarcest one
            of each flavor.
    """
    used: dict[tuple[str, str], float] = {}
    for flavor in (cluster_queue.get("status") or {}).get("flavorsUsage") or []:
        for one in flavor.get("resources") or []:
            used[flavor["name"], one["name"]] = quantity(one.get("total", 0))
    found: dict[str, tuple[float, float]] = {}
    for covered in cluster_queue["spec"].get("resourceGroups") or []:
        for flavor in covered.get("flavors") or []:
            rows = [
                (
                    used.get((flavor["name"], one["name"]), 0.0),
                    quantity(one["nominalQuota"]),
                )
                for one in flavor.get("resources") or []
                if resource in ("", one["name"])
            ]
            if rows:
                found[flavor["name"]] = min(rows, key=lambda row: row[1] - row[0])
    return found


#: Suffixes of Kubernetes' quantities.
_FACTORS: Final = {
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
    "Pi": 2.0**50,
}


def quantity(text: object) -> float:
    """A quantity of Kubernetes as a number.

    Raises:
        ValueError: it is none.

    Example:
        >>> quantity("500m"), quantity("2Gi"), quantity(8)
        (0.5, 2147483648.0, 8.0)
    """
    word = str(text).strip()
    digits = word.rstrip("KMGTPkmi")
    suffix = word[len(digits) :]
    try:
        return float(digits) * (_FACTORS[suffix] if suffix else 1.0)
    except (ValueError, KeyError):
        raise ValueError(f"{text!r} is no quantity of Kubernetes") from None
