"""The loop: what the control service says, what the planner makes of it, done.

What must hold whatever happens:

1. A node is stopped only after it left the cluster, never joined it, or died.
2. A drain may be refused by the node; then the node is left alone for ``HOLD_S``.
3. Nothing is stopped while the demand is older than 30 s (the planner's rule), while a
   restarted head has not heard again of every node that was there before, or until
   ``SETTLE_S`` after that: what waits at a node is told after the node itself.
4. Nothing that the loop forgets by being restarted matters: nodes are known from the
   provider and from the demand.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rayshim.autoscaler.control import Control
from rayshim.autoscaler.provider import ProvidedNode, Provider
from rayshim.autoscaler.status import Status
from rayshim.lineage.autoscaling import plan
from rayshim.lineage.demand import Demand
from rayshim.lineage.node_groups import Drain, Launching, NodeGroup, Plan

logger = logging.getLogger(__name__)

#: Seconds between two turns.
INTERVAL_S = 1.0
#: Seconds for a node to say that it drains; after that it has refused.
DRAIN_ANSWER_S = 3.0
#: Seconds for which a node that refused is not drained.
HOLD_S = 15.0
#: Seconds after which a node that was in the cluster, and is not in the demand any
#: more, has left: one that joins anew, as after a refused drain, is away for a moment.
GONE_S = 3.0
#: Seconds after which nodes that a restarted head has not heard of count as gone.
REJOIN_S = 60.0
#: Seconds after that for the nodes to say again what waits at them.
SETTLE_S = 3.0
#: Seconds without launches after a failed one; doubled with each more, up to the limit.
BACK_OFF_S, MAX_BACK_OFF_S = 1.0, 120.0
#: What has not changed is told again after so many seconds.
REPORT_S = 5.0


@dataclass(slots=True)
class _Draining:
    told_s: float
    reason: str


@dataclass(slots=True)
class _Failed:
    count: int
    until_s: float
    reason: str


class Autoscaler:
    """Keeps the nodes of groups at what the demand needs.

    Args:
        control: the control service.
        provider: what starts and stops nodes.
        groups: in order of preference.
        max_nodes: of all groups together; None: only the groups' own limits.
        interval_s: seconds between two turns.
        dry_run: plans and says what it would do; does nothing.
        clock: Unix time.

    Thread safety: :meth:`step` runs in one thread at a time; :attr:`status` may be read
    from any.
    """

    def __init__(
        self,
        control: Control,
        provider: Provider,
        groups: Sequence[NodeGroup],
        *,
        max_nodes: int | None = None,
        interval_s: float = INTERVAL_S,
        dry_run: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._control = control
        self._provider = provider
        self.groups = tuple(groups)
        self._max_nodes = max_nodes
        self._interval_s = interval_s
        self._is_dry_run = dry_run
        self._clock = clock
        #: The newest demand; None before the first one.
        self._demand: Demand | None = None
        #: After a restart of the head: ids of nodes that it has not heard of yet.
        self._missing: set[str] = set()
        self._restarted_s = 0.0
        #: Until when a cluster that is complete again may still tell what waits.
        self._settled_s = 0.0
        #: Ids of nodes that have joined the cluster once.
        self._joined: set[str] = set()
        #: Node id -> when a node that had joined was missed first.
        self._gone_s: dict[str, float] = {}
        #: Node id -> drain that was ordered.
        self._draining: dict[str, _Draining] = {}
        #: Node id -> (until when it is left alone, why it refused).
        self._held: dict[str, tuple[float, str]] = {}
        #: Group -> what its launches came to.
        self._failed: dict[str, _Failed] = {}
        self._reported: tuple[float, Mapping[str, Any]] = (0.0, {})
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        #: The last turn.
        self.status = Status()

    # The thread.

    def start(self) -> None:
        """Begins to turn in a thread of its own."""
        self._thread = threading.Thread(
            target=self._run, name="rayshim-autoscaler", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; nodes stay as they are. Idempotent."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.step()
            except Exception:
                # The next turn starts from what is there then.
                logger.exception("a turn of the autoscaler failed")
            self._stopping.wait(self._interval_s)

    # One turn.

    def step(self) -> Status:
        """Looks, decides and acts once."""
        now = self._clock()
        note = self._hear(now)
        demand = self._demand
        if demand is None:
            self.status = Status(now, note=note, is_dry_run=self._is_dry_run)
            return self.status
        provided = self._provider.list()
        if not self._is_dry_run:
            provided = self._clear(demand, provided, now)
        launching = self._launching(demand, provided)
        decided = self._plan(demand, provided, launching, now)
        held = {
            node_id: text
            for node_id, (until_s, text) in self._held.items()
            if now < until_s
        }
        drain = tuple(one for one in decided.drain if one.node_id not in held)
        decided = replace(decided, drain=drain)
        if not self._is_dry_run:
            self._act(decided, now)
        self.status = Status(
            now,
            decided,
            _count(one.group for one in demand.nodes if one.group),
            launching,
            {node_id: one.reason for node_id, one in self._draining.items()},
            held,
            {name: one.reason for name, one in self._failed.items()},
            note,
            self._is_dry_run,
        )
        self._report(now)
        return self.status

    def _hear(self, now: float) -> str:
        """Takes the newest demand; what is to be said of it."""
        before = self._demand
        try:
            demand = self._control.demand()
        except (ConnectionError, RuntimeError, ValueError) as error:
            age = f"{now - before.time_s:.0f} s old" if before else "unknown"
            return f"the head does not answer, the demand is {age}: {error}"
        self._demand = demand
        here = {one.node_id for one in demand.nodes}
        if before is not None and before.instance != demand.instance:
            self._missing |= {one.node_id for one in before.nodes}
            self._restarted_s = now
            self._settled_s = now + SETTLE_S
        self._missing -= here
        self._joined |= here
        if now - self._restarted_s > REJOIN_S:
            self._missing.clear()
        if self._missing:
            self._settled_s = now + SETTLE_S
            return (
                "the head was restarted and has not heard again of "
                f"{len(self._missing)} nodes: none is stopped"
            )
        if now < self._settled_s:
            return (
                "the head was restarted and its nodes tell it again what waits: none "
                "is stopped"
            )
        return ""

    def _clear(
        self, demand: Demand, provided: Sequence[ProvidedNode], now: float
    ) -> list[ProvidedNode]:
        """Stops what is not, and never will be, in the cluster."""
        facts = {one.node_id: one for one in demand.nodes}
        for node_id, drain in list(self._draining.items()):
            node = facts.get(node_id)
            if node is None:
                continue  # It left, and is stopped below.
            if not node.is_draining and now - drain.told_s > DRAIN_ANSWER_S:
                del self._draining[node_id]
                note = self._control.drain_notes().get(node_id, "")
                self._held[node_id] = (now + HOLD_S, note or "it did not drain")
        left = []
        for one in provided:
            node_id = one.node_id
            was_here = node_id in self._joined
            if node_id in facts or self._missing:
                self._gone_s.pop(node_id, None)
            elif was_here:
                self._gone_s.setdefault(node_id, now)
            is_gone = now - self._gone_s.get(node_id, now) > GONE_S
            if node_id in facts or not (one.failure or is_gone):
                left.append(one)
                continue
            if one.failure and not was_here:
                self._has_failed(one, now)
            self._provider.stop(node_id)
            self._gone_s.pop(node_id, None)
            self._draining.pop(node_id, None)
            self._missing.discard(node_id)
        running = {one.group for one in demand.nodes}
        for name in [name for name in self._failed if name in running]:
            if now > self._failed[name].until_s:
                del self._failed[name]
        return left

    def _has_failed(self, node: ProvidedNode, now: float) -> None:
        before = self._failed.get(node.group)
        count = before.count + 1 if before else 1
        wait_s = min(MAX_BACK_OFF_S, BACK_OFF_S * 2 ** min(count - 1, 10))
        self._failed[node.group] = _Failed(count, now + wait_s, node.failure)
        logger.warning(
            "a node of group %s did not come up: %s", node.group, node.failure
        )

    def _launching(
        self, demand: Demand, provided: Sequence[ProvidedNode]
    ) -> tuple[Launching, ...]:
        here = {one.node_id for one in demand.nodes}
        return tuple(
            Launching(one.group, one.started_s, one.node_id)
            for one in provided
            if one.node_id not in here and not one.failure
        )

    def _plan(
        self,
        demand: Demand,
        provided: Sequence[ProvidedNode],
        launching: Sequence[Launching],
        now: float,
    ) -> Plan:
        there = _count(one.group for one in demand.nodes if one.group)
        for one in launching:
            there[one.group] = there.get(one.group, 0) + 1
        caps = {
            group.name: there.get(group.name, 0)
            for group in self.groups
            if group.name in self._failed and now < self._failed[group.name].until_s
        }

        def decide() -> Plan:
            return plan(
                demand,
                [_capped(group, caps.get(group.name)) for group in self.groups],
                now=now,
                launching=launching,
                draining=list(self._draining),
                may_drain=now >= self._settled_s,
            )

        decided = decide()
        if self._max_nodes is None:
            return decided
        budget = max(0, self._max_nodes - sum(there.values()))
        for group in self.groups:
            # Whole plans again, so that a placement group gets all its nodes or none.
            if sum(decided.launch.values()) <= budget:
                break
            mine = min(decided.launch.get(group.name, 0), budget)
            cap = there.get(group.name, 0) + mine
            caps[group.name] = min(cap, caps.get(group.name, cap))
            decided = decide()
            budget_left = budget - decided.launch.get(group.name, 0)
            for other in self.groups[self.groups.index(group) + 1 :]:
                cap = there.get(other.name, 0) + max(0, budget_left)
                caps[other.name] = min(cap, caps.get(other.name, cap))
            decided = decide()
        return decided

    def _act(self, decided: Plan, now: float) -> None:
        groups = {group.name: group for group in self.groups}
        for name, count in decided.launch.items():
            logger.debug("starting %d nodes of group %s", count, name)
            try:
                self._provider.launch(groups[name], count)
            except OSError as error:
                failure = f"{count} nodes could not be started: {error}"
                self._has_failed(ProvidedNode("", name, now, failure), now)
        for one in decided.cancel:
            if one.node_id not in self._joined:
                self._provider.stop(one.node_id)
        for drain in decided.drain:
            self._drain(drain, now)

    def _drain(self, drain: Drain, now: float) -> None:
        if drain.node_id in self._draining:
            return
        logger.debug("draining node %s: %s", drain.node_id[:8], drain.reason)
        try:
            is_told = self._control.drain(drain.node_id, drain.reason)
        except (ConnectionError, RuntimeError):
            return  # The next turn sees what came of it.
        if is_told:
            self._draining[drain.node_id] = _Draining(now, drain.reason)

    def _report(self, now: float) -> None:
        reported_s, before = self._reported
        report = self.status.report()
        if report == before and now - reported_s < REPORT_S:
            return
        try:
            self._control.report(report)
        except (ConnectionError, RuntimeError):
            return  # It is told in the next turn.
        self._reported = (now, report)


def _capped(group: NodeGroup, cap: int | None) -> NodeGroup:
    if cap is None or cap >= group.max_nodes:
        return group
    # What must be there counts as wanted; it may not be had now.
    return replace(group, max_nodes=cap, min_nodes=min(group.min_nodes, cap))


def _count(names: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts
