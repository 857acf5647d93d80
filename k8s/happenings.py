"""What the autoscaler did, and what holds it back, as Events. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rayshim.k8s import names
from rayshim.k8s.config import Platform
from rayshim.k8s.event_log import About, Happening
from rayshim.k8s.observed import (
    Decisions,
    DeleteWorker,
    DrainWorker,
    EndGang,
    KeepWorker,
    SetReplicas,
    StartGang,
)
from rayshim.k8s.platform_status import PlatformStatus


def done(
    decisions_done: Sequence[object],
    decisions: Decisions,
    platform: Platform,
    uids: Mapping[str, str],
) -> Iterator[Happening]:
    """What was carried out.

    Args:
        decisions_done: those of a turn that came to something.
        decisions: all of them, for what was launched.
        platform: the file.
        uids: name of a worker group -> its uid.
    """

    def about(worker_group: str) -> About:
        return About("DaskWorkerGroup", worker_group, uids.get(worker_group, ""))

    for one in decisions_done:
        if isinstance(one, SetReplicas):
            count = decisions.launch.get(one.group, 0)
            text = f"replicas is {one.replicas} now: {one.reason}"
            if one.is_repair:
                yield Happening(about(one.worker_group), "Repaired", text, True)
            elif count:
                yield Happening(about(one.worker_group), "ScaledUp", text)
            else:
                yield Happening(about(one.worker_group), "ReplicasCorrected", text)
        elif isinstance(one, DeleteWorker):
            text = f"deleted {one.worker}: {one.reason}"
            yield Happening(about(one.worker_group), "ScaledDown", text)
        elif isinstance(one, DrainWorker):
            own = names.worker_group(platform.name, one.group)
            text = f"{one.worker} drains: {one.reason}"
            yield Happening(about(own), "Draining", text)
        elif isinstance(one, KeepWorker):
            own = names.worker_group(platform.name, one.group)
            text = f"{one.worker} stays: {one.reason}"
            reason = "DrainRefused" if one.is_refused else "DrainGivenUp"
            yield Happening(about(own), reason, text)
        elif isinstance(one, StartGang):
            own = names.worker_group(platform.name, one.group, one.gang)
            text = f"{one.size} workers for placement group {one.subject[:12]}"
            yield Happening(about(own), "GangStarted", text)
        elif isinstance(one, EndGang):
            yield Happening(about(one.worker_group), "GangEnded", one.reason)


def conditions(
    status: PlatformStatus, platform: Platform, uids: Mapping[str, str]
) -> Iterator[Happening]:
    """What holds now, told once when it begins.

    Args:
        status: of this turn.
        platform: the file.
        uids: name of a worker group -> its uid.
    """
    cluster = About("DaskCluster", platform.name)
    infeasible = status.decisions.infeasible
    if infeasible:
        text = "; ".join(sorted(one.text for one in infeasible))
        yield Happening(cluster, "Infeasible", text, True)
    for name, group in status.groups.items():
        own = names.worker_group(platform.name, name)
        about = About("DaskWorkerGroup", own, uids.get(own, ""))
        if group.failure:
            yield Happening(about, "WorkerFails", group.failure, True)
        if group.late:
            text = (
                f"{group.late} workers did not join within "
                f"{2 * platform.group(name).cold_start_s:g} s"
            )
            yield Happening(about, "WorkerLate", text, True)
