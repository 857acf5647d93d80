"""Owners of a simulated cluster: scheduling classes that ask for leases and run calls.

What decides is the code of real owners, `rayshim.lineage.dispatch`; around it the same
steps as in `rayshim._core.submit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayshim.adapters.wire import messages as wire
from rayshim.lineage import lease_events as ev
from rayshim.lineage.dispatch import IDLE_S, LeaseSlot, SchedulingClass

if TYPE_CHECKING:
    from simulated_world import SimulatedNode


class ClassLife:
    """One scheduling class at its owner: streams of calls, each after the one before.

    Args:
        home: node of the owner.
        width: calls that the owner keeps under way.
        life_s: how long it submits new ones.
        strategy: as in `RequestLease`.
    """

    def __init__(
        self, home: SimulatedNode, width: int, life_s: float, strategy: str = ""
    ) -> None:
        world = self.world = home.world
        self.home = home
        world.class_count += 1
        self.name = f"{home.node_id[:8]}/class-{world.class_count}"
        self._until_s = world.clock.now_s + life_s
        template = wire.RequestLease(
            b"", b"job!", self.name, {"CPU": 1.0}, {}, 0, strategy=strategy
        )
        self.scheduling = SchedulingClass(self.name, self.name, template)
        self.scheduling.queue.extend(world.new_id() for _ in range(width))
        #: Lease id -> when it was asked for, and the node that was asked last.
        self._asked: dict[bytes, tuple[float, SimulatedNode]] = {}
        self._nodes: dict[bytes, SimulatedNode] = {}
        self._is_idle_armed = False
        self._advance()

    def _advance(self) -> None:
        scheduling, clock = self.scheduling, self.world.clock
        now_s = clock.now_s
        for slot, calls in scheduling.assign(flush=True, now_s=now_s):
            for call in calls:
                slot.inflight[call] = call
                way_s = self._nodes[slot.lease_id].way_s(self)
                delay_s = self.world.call_s + 2 * way_s
                clock.after(delay_s, self._done, slot, call)
        if scheduling.queue:
            for _ in range(scheduling.leases_wanted(now_s)):
                lease_id = self.world.new_id()
                scheduling.requested[lease_id] = now_s
                self._asked[lease_id] = (now_s, self.home)
                self._ask(self.home, lease_id, 0)

    def _ask(self, node: SimulatedNode, lease_id: bytes, hops: int) -> None:
        template: wire.RequestLease = self.scheduling.template
        message = wire.RequestLease(
            lease_id,
            template.job_id,
            template.label,
            template.resources,
            {},
            len(self.scheduling.queue),
            hops=hops,
            strategy=template.strategy,
        )
        self.world.clock.after(node.way_s(self), node.request, self, message)

    def granted(self, node: SimulatedNode, grant: ev.GrantLease) -> None:
        """An executor is this class's."""
        scheduling, world = self.scheduling, self.world
        lease_id, now_s = grant.lease_id, world.clock.now_s
        asked = self._asked.pop(lease_id, None)
        scheduling.requested.pop(lease_id, None)
        if asked is None or (not scheduling.queue and scheduling.slots):
            self._give_back(node, lease_id)
            return
        world.count_grant(now_s - asked[0], is_local=node is self.home)
        self._nodes[lease_id] = node
        scheduling.slots.append(LeaseSlot(lease_id, None, now_s))
        self._advance()
        self._review()

    def rejected(self, node: SimulatedNode, rejection: ev.RejectLease) -> None:
        """The node that was asked sends the request elsewhere, or it was taken back."""
        lease_id = rejection.lease_id
        if rejection.kind != "spillback" or lease_id not in self._asked:
            return
        target = self.world.node_at(rejection.spill_to)
        self._asked[lease_id] = (self._asked[lease_id][0], target)
        self._ask(target, lease_id, rejection.hops + 1)

    def reclaimed(self, claim: ev.AskBack) -> None:
        """Somebody waits for what this class holds."""
        for slot in self.scheduling.slots:
            if slot.lease_id == claim.lease_id:
                if claim.if_idle:
                    slot.wanted = True
                else:
                    slot.reclaimed = True
                self._review()
                return

    def _done(self, slot: LeaseSlot, call: bytes) -> None:
        world, scheduling = self.world, self.scheduling
        now_s = world.clock.now_s
        del slot.inflight[call]
        slot.progress_s = slot.idle_since_s = now_s
        scheduling.record_cost(world.call_s)
        world.calls_done += 1
        if now_s < self._until_s:
            scheduling.queue.append(world.new_id())
        self._advance()
        self._review()

    def _review(self) -> None:
        scheduling, clock = self.scheduling, self.world.clock
        for slot in scheduling.returnable(clock.now_s):
            scheduling.slots.remove(slot)
            self._give_back(self._nodes.pop(slot.lease_id), slot.lease_id)
        if not scheduling.queue:
            for lease_id in list(scheduling.requested):
                del scheduling.requested[lease_id]
                _, node = self._asked.pop(lease_id)
                cancelled = ev.LeaseCancelled(lease_id)
                clock.after(node.way_s(self), node.feed, cancelled)
        if scheduling.slots and not self._is_idle_armed:
            self._is_idle_armed = True
            clock.after(IDLE_S / 4, self._idle_due)
        if scheduling.queue:
            self._advance()

    def _idle_due(self) -> None:
        self._is_idle_armed = False
        self._review()

    def _give_back(self, node: SimulatedNode, lease_id: bytes) -> None:
        returned = ev.LeaseReturned(lease_id)
        self.world.clock.after(node.way_s(self), node.feed, returned)
