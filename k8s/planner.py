"""What the autoscaler does next, given what is lacking and what is there. Pure.

:func:`rayshim.lineage.autoscaling.plan` says how many nodes each group needs and which
may go. This module tells it what Kubernetes adds to that: Deployments that are no nodes
yet, or no more, count as launching; a gang's workers count against their group's
maximum and serve nobody else. And it turns the plan into writes, so that the operator
never has a worker to remove:

1. ``replicas`` is lowered to the number of Deployments that are left after the
   deletions before it, and only when the operator has finished with the number before:
   else it may just be making workers up to that.
2. A worker is deleted when its node has left, when it never joined and is not needed,
   or when it was lost for twice the cold start.
3. Workers that somebody else asked for, by a higher ``replicas``, are not cancelled
   while they start; once they are there they go as others do, when they are idle.
4. What was not done in a turn is decided again in the next one, from what is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath

from rayshim.k8s import names
from rayshim.k8s.config import Group, Platform
from rayshim.k8s.gang import gang_id
from rayshim.k8s.gang_decisions import GangTurn, decide_gangs
from rayshim.k8s.observed import (
    Decisions,
    DeleteWorker,
    DrainWorker,
    KeepWorker,
    Memory,
    Observed,
    ObservedGroup,
    PodState,
    SetReplicas,
    StartGang,
)
from rayshim.k8s.worker_states import (
    DRAIN_ANSWER_S,
    GONE_S,
    Seen,
    WorkerState,
    survey,
)
from rayshim.lineage.autoscaling import STALE_S, plan
from rayshim.lineage.demand import Demand, NodeFacts
from rayshim.lineage.node_groups import Launching, NodeGroup, Plan

#: How far a worker has come that has not joined: what is cancelled first is first.
PROGRESS = (
    PodState.MISSING,
    PodState.GATED,
    PodState.FAILED,
    PodState.PENDING,
    PodState.RUNNING,
    PodState.READY,
)


def decide(
    demand: Demand | None,
    observed: Observed,
    platform: Platform,
    now: float,
    *,
    memory: Memory | None = None,
    may_stop: bool = True,
) -> Decisions:
    """What to do now.

    Args:
        demand: what the head said last, with the time when it was heard; None: never
            yet. One older than 30 s starts only minimum and warm workers.
        observed: what is in Kubernetes.
        platform: the file.
        now: Unix time.
        memory: what was noticed in earlier turns; nothing of it only makes it wait
            longer.
        may_stop: False while the demand may be incomplete: nothing is drained,
            cancelled or deleted.

    Returns:
        The decisions, in the order in which they are carried out. Carried out again and
        again on a world that does not change by itself, they come to an end.
    """
    return _Turn(demand, observed, platform, now, memory or Memory(), may_stop).decide()


class _Turn:
    """Decisions being made."""

    def __init__(
        self,
        demand: Demand | None,
        observed: Observed,
        platform: Platform,
        now: float,
        memory: Memory,
        may_stop: bool,
    ) -> None:
        is_fresh = demand is not None and now - demand.time_s <= STALE_S
        self._demand = demand or Demand("", 0.0)
        self._observed = observed
        self._platform = platform
        self._now = now
        self._memory = memory
        self._may_stop = may_stop and is_fresh
        self._seen = survey(observed, demand, now, memory)
        self._groups = {one.name: one for one in platform.groups}
        #: Group -> its own worker group, of no gang.
        self._bases = {one.group: one for one in observed.groups if not one.gang}
        self._has_demand = demand is not None
        self._notes: list[str] = []
        self._delete: list[DeleteWorker] = []
        self._drain: list[DrainWorker] = []
        self._keep: list[KeepWorker] = []
        #: Hex ids of nodes that left and came again with a drain noted.
        self._returned: dict[str, Seen] = {}

    def decide(self) -> Decisions:
        """The whole turn."""
        self._note_age()
        if self._may_stop:
            self._clear()
        gangs = self._gangs()
        planned = plan(
            self._as_planned(),
            [_node_group(one) for one in self._platform.groups],
            now=self._now,
            launching=self._launching(),
            draining=list(self._returned),
            may_drain=self._may_stop,
        )
        if self._may_stop:
            self._let_go(planned)
        launch, replicas = self._replicas(planned)
        return Decisions(
            joined=tuple(
                name
                for name, one in self._seen.items()
                if one.node is not None and not one.worker.has_joined
            ),
            keep=(*self._keep, *gangs.keep),
            delete=tuple(self._delete),
            end_gangs=tuple(gangs.end),
            drain=(*self._drain, *gangs.drain),
            replicas=(*replicas, *gangs.replicas),
            start_gangs=tuple(
                StartGang(gang_id(one.group_id), one.group, one.count, one.group_id)
                for one in planned.apart
            ),
            launch=launch,
            infeasible=planned.infeasible,
            waiting=(*planned.waiting, *gangs.waiting),
            late=planned.late,
            notes=tuple(self._notes),
        )

    def _note_age(self) -> None:
        if not self._has_demand:
            self._notes.append(
                "the head has not said yet what is lacking: only minimum and warm "
                "workers are started"
            )
        elif self._now - self._demand.time_s > STALE_S:
            self._notes.append(
                f"demand is {self._now - self._demand.time_s:.0f} s old: nothing is "
                "stopped, and only minimum and warm workers are started"
            )

    # What has gone, or came back.

    def _clear(self) -> None:
        """Deletes what has left, and settles drains that came to nothing."""
        for one in self._seen.values():
            if one.worker.gang or one.worker.group not in self._groups:
                continue
            if one.state is WorkerState.LEFT:
                if one.is_away or self._now - one.since_s >= GONE_S:
                    self._remove(one, one.worker.drain_reason or "its node has left")
            elif one.state is WorkerState.LOST and self._is_given_up(one):
                wait_s = 2 * self._groups[one.worker.group].cold_start_s
                said = f": {one.worker.note}" if one.worker.note else ""
                self._remove(one, f"it was lost for more than {wait_s:g} s{said}")
            elif one.state is WorkerState.DRAINING and one.node is not None:
                if one.node.is_draining:
                    continue
                if one.has_returned:
                    self._returned[one.node.node_id] = one
                elif self._has_refused(one):
                    self._keep.append(
                        KeepWorker(
                            one.worker.name,
                            one.worker.group,
                            "its node did not drain",
                            is_refused=True,
                        )
                    )

    def _has_refused(self, one: Seen) -> bool:
        return self._now - (one.worker.draining_since_s or 0.0) > DRAIN_ANSWER_S

    def _is_given_up(self, one: Seen) -> bool:
        limit_s = 2 * self._groups[one.worker.group].cold_start_s
        return self._now - one.since_s > limit_s

    def _remove(self, one: Seen, reason: str) -> None:
        worker = one.worker
        self._delete.append(
            DeleteWorker(worker.name, worker.worker_group, worker.group, reason)
        )

    @property
    def _removed(self) -> set[str]:
        return {one.worker for one in self._delete}

    # What the planner is given.

    def _gangs(self) -> GangTurn:
        own = self._gang_ids()
        return decide_gangs(
            self._observed,
            self._seen,
            [one for one in self._demand.gangs if gang_id(one.group_id) in own],
            self._platform,
            self._now,
            placing={gang_id(one) for one in self._demand.placing},
            memory=self._memory,
            may_stop=self._may_stop,
        )

    def _gang_ids(self) -> set[str]:
        return {one.gang for one in self._observed.groups if one.gang}

    def _as_planned(self) -> Demand:
        """The demand without what has gangs already, and the nodes as they count."""
        nodes = [
            node
            for facts in self._demand.nodes
            if (node := self._counted(facts)) is not None
        ]
        gone = self._removed
        for name, one in self._seen.items():
            group = one.worker.group
            if one.worker.gang or one.node is not None or name in gone:
                continue
            if one.state in (WorkerState.LEFT, WorkerState.DELETING):
                nodes.append(_taken(name, group))
        for about in self._observed.groups:
            if about.gang:
                there = self._there(about.name)
                count = max(about.replicas, about.size, there)
                count = there if about.is_deleting else count
                names_ = (f"{about.name}/{number}" for number in range(count))
                nodes += [_taken(name, about.group) for name in names_]
        own = self._gang_ids()
        gangs = [one for one in self._demand.gangs if gang_id(one.group_id) not in own]
        return replace(self._demand, nodes=tuple(nodes), gangs=tuple(gangs))

    def _counted(self, facts: NodeFacts) -> NodeFacts | None:
        """A node as the planner counts it; None: not at all."""
        worker = facts.labels.get(names.WORKER, "")
        if not worker:
            # The head, or a node that somebody started by hand.
            return replace(facts, group="", is_pinned=True)
        one = self._seen.get(worker)
        if one is None or one.node is not facts:
            return None  # Its Deployment is gone, and it will be in a moment.
        is_going = facts.is_draining or one.state is WorkerState.DELETING
        if one.state is WorkerState.DRAINING:
            is_going |= facts.node_id not in self._returned
        if one.worker.gang or one.worker.group not in self._groups:
            return replace(facts, group="", is_pinned=True, is_draining=is_going)
        held = self._memory.held.get(worker, 0.0) > self._now
        return replace(
            facts,
            group=one.worker.group,
            is_draining=is_going,
            is_pinned=facts.is_pinned or held,
        )

    def _launching(self) -> list[Launching]:
        """Workers that are not there yet, or are being started anew."""
        gone = self._removed
        asked_for = self._asked_for()
        found = []
        for name, one in self._seen.items():
            group = one.worker.group
            if one.worker.gang or name in gone or group not in self._groups:
                continue
            progress = PROGRESS.index(one.worker.pod)
            if one.state is WorkerState.STARTING:
                created_s = one.worker.created_s
                since_s = self._now if name in asked_for else created_s
                found.append(Launching(group, since_s, name, progress))
            elif one.state is WorkerState.LOST:
                # Left to its Deployment: neither late nor to be cancelled.
                found.append(Launching(group, self._now, name, progress))
        for group, about in self._bases.items():
            if group in self._groups and not about.is_deleting:
                since_s = self._memory.owed.get(about.name, self._now)
                found += [Launching(group, since_s)] * self._owed(about)
        return found

    def _asked_for(self) -> set[str]:
        """Workers that start because somebody has raised ``replicas``: the newest."""
        found: set[str] = set()
        for about in self._bases.values():
            raised = about.replicas - (about.written or 0)
            mine = [
                one.worker
                for one in self._seen.values()
                if one.worker.worker_group == about.name
                and one.state is WorkerState.STARTING
            ]
            mine.sort(key=lambda one: (-one.created_s, one.name))
            found |= {one.name for one in mine[: max(raised, 0)]}
        return found

    # What the plan comes to.

    def _let_go(self, planned: Plan) -> None:
        by_node = {
            one.node.node_id: one for one in self._seen.values() if one.node is not None
        }
        for drain in planned.drain:
            one = by_node[drain.node_id]
            if one.worker.name not in self._removed and drain.node_id not in (
                self._returned
            ):
                self._drain.append(
                    DrainWorker(
                        one.worker.name, drain.node_id, drain.group, drain.reason
                    )
                )
        for node_id, one in self._returned.items():
            worker = one.worker
            is_pinned = one.node is not None and one.node.is_pinned
            if node_id in planned.undrain or not one.is_idle or is_pinned:
                reason = "it is needed again"
                self._keep.append(KeepWorker(worker.name, worker.group, reason))
            else:
                reason = worker.drain_reason
                self._drain.append(
                    DrainWorker(worker.name, node_id, worker.group, reason)
                )
        for launching in planned.cancel:
            found = self._seen.get(launching.node_id)
            if found is not None and found.state is WorkerState.STARTING:
                state = found.worker.pod.value
                reason = f"nothing needs it any more ({state}, it had not joined)"
                self._remove(found, reason)

    def _there(self, worker_group: str) -> int:
        return sum(
            one.worker.worker_group == worker_group for one in self._seen.values()
        )

    def _is_settled(self, about: ObservedGroup) -> bool:
        """Whether the operator makes no worker for ``replicas`` any more."""
        if about.handled == about.replicas:
            return True
        there = self._there(about.name)
        if about.handled is None and there >= about.replicas:
            return True
        wait_s = 2 * self._groups[about.group].cold_start_s
        return self._now - self._memory.owed.get(about.name, self._now) > wait_s

    def _owed(self, about: ObservedGroup) -> int:
        if self._is_settled(about):
            return 0
        return max(about.replicas - self._there(about.name), 0)

    def _replicas(
        self, planned: Plan
    ) -> tuple[Mapping[str, int], tuple[SetReplicas, ...]]:
        """What is written, and which of the launches that comes to."""
        launch: dict[str, int] = {}
        found = []
        for group in self._platform.groups:
            wanted = planned.launch.get(group.name, 0)
            about = self._bases.get(group.name)
            if about is None or about.is_deleting:
                if wanted:
                    name = names.worker_group(self._platform.name, group.name)
                    self._notes.append(
                        f"{group.name}: {wanted} workers are needed and there is no "
                        f"daskworkergroup {name}; run rayshim k8s up"
                    )
                continue
            written = self._write(group, about, wanted)
            if written is not None:
                found.append(written)
                wanted = max(written.replicas - self._base_count(about), 0)
            else:
                wanted = 0
            if wanted:
                launch[group.name] = wanted
        return launch, tuple(found)

    def _base_count(self, about: ObservedGroup) -> int:
        """Workers without those that are started now."""
        removed = sum(one.worker_group == about.name for one in self._delete)
        return self._there(about.name) - removed + self._owed(about)

    def _write(
        self, group: Group, about: ObservedGroup, wanted: int
    ) -> SetReplicas | None:
        there = self._there(about.name)
        kept = self._base_count(about)
        target = kept + wanted
        reason = f"{wanted} more are needed" if wanted else ""
        if about.replicas < there:
            # Not by us: it is never written lower than what is there.
            reason = (
                f"replicas was set to {about.replicas} while {there} workers are "
                "there; it is set back, since the operator would remove any of the "
                f"cluster. To have fewer, lower groups.{group.name}.max in "
                # Without the folder in which the autoscaler's pod finds it.
                f"{PurePath(self._platform.source).name}"
            )
        elif not self._is_settled(about):
            target = max(target, about.replicas)
        elif target == about.replicas and wanted:
            # The operator looks again only at a number that differs: first down to
            # what is there, up again in the next turn.
            target, reason = kept, f"{about.replicas - kept} are gone"
        elif not wanted:
            reason = f"{about.replicas - target} are gone"
        if target == about.replicas:
            return None
        return SetReplicas(
            about.name,
            group.name,
            target,
            about.resource_version,
            reason,
            is_repair=about.replicas < there,
        )


def _node_group(group: Group) -> NodeGroup:
    return replace(group.node_group(), is_apart=group.is_gang)


def _taken(name: str, group: str) -> NodeFacts:
    """Something that counts against the maximum of its group, and is of no use."""
    return NodeFacts(f"-{name}", group, {}, {}, is_draining=True)
