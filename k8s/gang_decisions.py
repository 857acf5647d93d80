"""What becomes of the gangs that are there. Pure.

A gang stays as it is while its placement group waits or runs. Then it ends as a whole:
all its nodes are drained in one turn, and once none is left, its worker group is
deleted. If a node refuses, since something else runs there by now, the gang stays until
that has ended, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rayshim.k8s import gang as gangs
from rayshim.k8s.config import Group, Platform
from rayshim.k8s.observed import (
    DrainWorker,
    EndGang,
    KeepWorker,
    Memory,
    Observed,
    ObservedGroup,
    PodState,
    SetReplicas,
)
from rayshim.k8s.worker_states import DRAIN_ANSWER_S, GONE_S, Seen, WorkerState
from rayshim.lineage.demand import GangDemand
from rayshim.lineage.node_groups import Unmet

#: Seconds for which all nodes of a gang have been idle when it ends. A placement group
#: that follows may take them over until then.
IDLE_S = 5.0
#: Seconds after which a placement group that does not wait is over, or its nodes say
#: that it is there: what they say of themselves comes later than what the head decides.
UNWANTED_S = 3.0


@dataclass(slots=True)
class GangTurn:
    """Decisions about gangs; see :class:`rayshim.k8s.observed.Decisions`."""

    end: list[EndGang] = field(default_factory=list)
    drain: list[DrainWorker] = field(default_factory=list)
    keep: list[KeepWorker] = field(default_factory=list)
    replicas: list[SetReplicas] = field(default_factory=list)
    waiting: list[Unmet] = field(default_factory=list)


def decide_gangs(
    observed: Observed,
    seen: Mapping[str, Seen],
    waiting: Sequence[GangDemand],
    platform: Platform,
    now: float,
    *,
    placing: Collection[str] = (),
    memory: Memory,
    may_stop: bool,
) -> GangTurn:
    """What to do with the gangs that are there.

    Args:
        observed: what is in Kubernetes.
        seen: its workers.
        waiting: placement groups that wait, of a demand that is new if ``may_stop``.
        platform: the file.
        now: Unix time.
        placing: ids of the gangs whose placement groups are being given places: they
            neither wait nor run.
        memory: which workers have refused, and since when placement groups wait no
            more.
        may_stop: whether what nothing needs may go.
    """
    turn = GangTurn()

    def is_over(about: ObservedGroup) -> bool:
        return now - memory.unwanted.get(about.gang, now) >= UNWANTED_S

    wanted = {gangs.gang_id(one.group_id): one for one in waiting}
    ending: list[tuple[int, EndGang]] = []
    for about in observed.groups:
        if not about.gang:
            continue
        members = [
            one for one in seen.values() if one.worker.worker_group == about.name
        ]
        demand = wanted.get(about.gang)
        if demand is not None:
            text = _waits_for(about, members, platform, observed)
            turn.waiting.append(_unmet(demand, text))
        if about.is_deleting:
            continue
        if demand is not None:
            # Whatever was begun when it seemed over is given up.
            turn.keep += [
                _keep(one, "its placement group waits again")
                for one in members
                if may_stop and _can_stay(one)
            ]
        elif about.gang not in placing and may_stop and is_over(about):
            ended = _let_go(turn, about, members, platform, now, memory)
            if ended is not None:
                progress = max((_progress(one) for one in members), default=0)
                ending.append((progress, ended))
                continue
        _repair(turn, about, members)
    turn.end = [one for _, one in sorted(ending, key=lambda pair: pair[0])]
    return turn


def _let_go(
    turn: GangTurn,
    about: ObservedGroup,
    members: Sequence[Seen],
    platform: Platform,
    now: float,
    memory: Memory,
) -> EndGang | None:
    """What ends a gang whose placement group waits no more."""
    if all(one.node is None for one in members):
        if any(not one.is_away and now - one.since_s < GONE_S for one in members):
            if any(one.worker.has_joined for one in members):
                return None
        has_run = any(one.worker.has_joined for one in members)
        why = "has ended" if has_run else "is gone, and its workers had not joined"
        return _end(about, why)
    with_node = [one for one in members if one.node is not None]
    staying = [one for one in with_node if one.state is WorkerState.JOINED]
    going = [one for one in with_node if one.state is WorkerState.DRAINING]
    deleting = [one for one in with_node if one.state is WorkerState.DELETING]
    if any(not one.is_idle for one in deleting):
        return None
    if not staying and all(one.has_returned and one.is_idle for one in going):
        return _end(about, "has ended")
    for one in going:
        assert one.node is not None
        since_s = now - (one.worker.draining_since_s or 0.0)
        if one.has_returned:
            if not one.is_idle:
                turn.keep.append(_keep(one, "it is used again"))
        elif not one.node.is_draining and since_s > DRAIN_ANSWER_S:
            turn.keep.append(
                replace(_keep(one, "its node did not drain"), is_refused=True)
            )
    settle_s = min(_group_timeout(platform, about.group), IDLE_S)
    is_over = all(one.is_idle for one in going)
    if is_over and all(_is_over(one, settle_s, memory, now) for one in staying):
        turn.drain += [
            DrainWorker(
                one.worker.name,
                one.node.node_id,
                about.group,
                f"the placement group of gang {about.gang} has ended",
            )
            for one in staying
            if one.node is not None
        ]
    return None


def _is_over(one: Seen, settle_s: float, memory: Memory, now: float) -> bool:
    node = one.node
    return (
        node is not None
        and one.is_idle
        and node.idle_s >= settle_s
        and node.idle_s > 0
        and not node.is_pinned
        and not node.is_draining
        and now >= memory.held.get(one.worker.name, 0.0)
    )


def _repair(turn: GangTurn, about: ObservedGroup, members: Sequence[Seen]) -> None:
    """Brings the size back to what Kueue counts, in steps the operator acts upon."""
    size, there = about.size or about.replicas, len(members)
    target = about.replicas
    if about.replicas < there:
        target = there
    elif there == size and about.replicas != size and about.handled == about.replicas:
        target = size
    elif there < size and about.handled == about.replicas:
        # The operator looks again only at a number that differs.
        target = there if about.replicas == size else size
    if target != about.replicas:
        turn.replicas.append(
            SetReplicas(
                about.name,
                about.group,
                target,
                about.resource_version,
                f"gang {about.gang} has {size} workers, of which {there} are there",
                is_repair=True,
            )
        )


def _can_stay(one: Seen) -> bool:
    return (
        one.state is WorkerState.DRAINING
        and one.node is not None
        and not one.node.is_draining
    )


def _keep(one: Seen, reason: str) -> KeepWorker:
    return KeepWorker(one.worker.name, one.worker.group, reason)


def _end(about: ObservedGroup, why: str) -> EndGang:
    subject = f" {about.subject[:12]}" if about.subject else ""
    reason = f"placement group{subject} {why}"
    return EndGang(about.gang, about.name, about.group, reason)


def _progress(one: Seen) -> int:
    """How far a member has come."""
    order = [PodState.MISSING, PodState.GATED, PodState.FAILED, PodState.PENDING]
    if one.node is not None:
        return len(order) + 1
    return order.index(one.worker.pod) if one.worker.pod in order else len(order)


def _group_timeout(platform: Platform, name: str) -> float:
    found = _group(platform, name)
    return found.idle_timeout_s if found else 0.0


def _group(platform: Platform, name: str) -> Group | None:
    return next((one for one in platform.groups if one.name == name), None)


def _unmet(demand: GangDemand, text: str) -> Unmet:
    name = demand.name or f"placement group {demand.group_id[:12]}"
    subject, count = demand.group_id, len(demand.bundles)
    return Unmet("gang", subject, count, f"{name}: {text}")


def _waits_for(
    about: ObservedGroup,
    members: Sequence[Seen],
    platform: Platform,
    observed: Observed,
) -> str:
    """What a placement group waits for that has a gang already."""
    size = max(about.size, about.replicas, len(members))
    group = _group(platform, about.group)
    if about.is_deleting:
        return f"its earlier workers (gang {about.gang}) still end"
    gated = [one for one in members if one.worker.pod is PodState.GATED]
    if gated:
        queue = group.queue if group else ""
        used = observed.quotas.get(queue, {})
        return gangs.waits_for_quota(about.gang, len(gated), size, queue, used)
    coming = [one for one in members if one.node is None]
    count = len(coming) + max(about.replicas - len(members), 0)
    if count:
        notes = sorted({one.worker.note for one in coming if one.worker.note})
        said = f" ({'; '.join(notes)})" if notes else ""
        return f"{count} of {size} workers of gang {about.gang} start{said}"
    return f"all {size} workers of gang {about.gang} are there, it is placed next"
