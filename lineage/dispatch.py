"""Which call goes to which lease, and when a lease is asked for or given back.

One :class:`SchedulingClass` at the owner holds the calls of one function (with its
resources and environment) that wait for an executor, and the leases that
serve them. Rules:

1. The depth of a lease's pipeline is the number of calls that fit into
   :data:`PIPELINE_S` at the measured cost, and 1 while the cost is unknown: a call
   waits behind others only as long as that.
2. An idle lease next to one with unstarted calls takes over half of them
   (:meth:`SchedulingClass.steal`), so no call waits behind a long one while a CPU
   idles.
3. A lease that is idle for :data:`IDLE_S`, or that somebody else waits for, goes
   back; one that is busy when it is claimed goes back after the calls in hand.
4. The calls behind a late one return to the queue, and a late lease gets no more: a
   pipeline that is deep because calls were short never holds them behind a long one.
5. Where each call is to have a place of its own (``single_use``, the strategy SPREAD),
   a lease takes one call and goes back, however short calls are.
6. After an executor died with calls of a class, its next calls are pushed one at a
   time: what waits behind a call that dies, or its result that was held for a moment,
   would have to run once more.
7. Calls with large arguments on another node are a class of their own with that node
   as its ``home``, whose raylet is asked first.

The class decides; the shell sends. A call is any object; the shell keys calls by
task id.
"""

from __future__ import annotations

from collections import deque
from typing import Any

#: Work that may be pushed ahead to one executor, in seconds.
PIPELINE_S = 0.005
MAX_DEPTH = 512
#: Calls in one push.
BATCH = 64
#: An idle lease is kept this long for the next call.
IDLE_S = 1.0
#: A claimed lease that is busy is kept at least this long, so that classes that
#: compete do not spend their time on changing hands.
QUANTUM_S = 0.05
#: A lease whose replies are late by this much is worth stealing from.
STEAL_AFTER_S = 0.002
#: A lease without a reply for this long is *late*: what waits behind its first call is
#: taken back even if no lease is idle, and another lease is asked for. Longer than a
#: stall that a loaded machine gives any process now and then.
LATE_S = 0.01
#: Replies after a crash for which calls are pushed one at a time.
CAREFUL_REPLIES = 50
#: Requests of one class that may be under way at once.
MAX_REQUESTS = 16


class LeaseSlot:
    """One granted lease of a class."""

    __slots__ = (
        "address",
        "channel",
        "draining",
        "granted_s",
        "idle_since_s",
        "inflight",
        "lease_id",
        "pid",
        "progress_s",
        "raylet",
        "reclaimed",
        "single_use",
        "stealing",
        "wanted",
    )

    def __init__(self, lease_id: bytes, channel: Any, now_s: float) -> None:
        self.lease_id = lease_id
        #: The executor's channel (opaque here).
        self.channel = channel
        self.address = ""
        self.pid = 0
        #: The channel of the raylet that granted it (opaque here).
        self.raylet: Any = None
        #: Task id -> call, in the order pushed: the first is the one that runs.
        self.inflight: dict[bytes, Any] = {}
        self.granted_s = now_s
        self.idle_since_s = now_s
        #: When the executor last replied or got its first call.
        self.progress_s = now_s
        #: Somebody else waits for this lease.
        self.reclaimed = False
        #: Somebody else would use this lease if there were no calls for it.
        self.wanted = False
        #: It goes back after its first call.
        self.single_use = False
        #: No more calls are pushed; the lease goes back when it is empty.
        self.draining = False
        #: A steal is under way.
        self.stealing = False


class SchedulingClass:
    """The waiting calls and the leases of one scheduling class."""

    __slots__ = (
        "base",
        "careful",
        "cost_s",
        "home",
        "key",
        "label",
        "max_depth",
        "queue",
        "requested",
        "single_use",
        "slots",
        "template",
        "told_backlog",
    )

    def __init__(
        self,
        key: Any,
        label: str,
        template: Any,
        max_depth: int = MAX_DEPTH,
        *,
        single_use: bool = False,
    ) -> None:
        self.key = key
        #: Node with the arguments of its calls, or empty: this one (rule 7).
        self.home = ""
        #: The class that its calls would be of without large arguments elsewhere.
        self.base: SchedulingClass | None = None
        #: Each call gets a lease of its own (rule 5).
        self.single_use = single_use
        #: Length of the queue that the raylet was told last.
        self.told_backlog = 0
        self.label = label
        #: What the shell asks a lease with (opaque here).
        self.template = template
        #: 1 where an executor must not hold a second call (max_calls, no retries).
        self.max_depth = 1 if single_use else max_depth
        #: Replies to come before calls are pushed behind others again (rule 6).
        self.careful = 0
        self.queue: deque[Any] = deque()
        self.slots: list[LeaseSlot] = []
        #: Lease ids under way, in the order asked.
        self.requested: dict[bytes, float] = {}
        #: Mean run time of a call, or None before the first result.
        self.cost_s: float | None = None

    def at(self, node_id: str) -> SchedulingClass:
        """The same class for calls whose arguments are on another node (rule 7)."""
        made = SchedulingClass(
            (self.key, node_id),
            self.label,
            self.template,
            self.max_depth,
            single_use=self.single_use,
        )
        made.home = node_id
        made.base = self
        made.cost_s = self.cost_s
        return made

    @staticmethod
    def is_late(slot: LeaseSlot, now_s: float) -> bool:
        """True if a lease has not replied for longer than calls usually take."""
        return bool(slot.inflight) and now_s - slot.progress_s >= LATE_S

    def depth(self) -> int:
        """Calls that one lease may hold (rule 1)."""
        if self.cost_s is None or self.careful:
            return 1
        depth = int(PIPELINE_S / (self.cost_s + 2e-6))
        if depth < 1:
            return 1
        return depth if depth < self.max_depth else self.max_depth

    def assign(self, *, flush: bool, now_s: float) -> list[tuple[LeaseSlot, list[Any]]]:
        """Take calls from the queue for leases with room.

        Args:
            flush: False while a submitter may add more soon: then only an idle lease
                or a full batch is worth a message.
            now_s: the time.
        """
        queue, slots = self.queue, self.slots
        if not queue:
            return []
        depth = self.depth()
        # Asked at every submission, mostly in vain: look for a lease with room first.
        limit = depth if flush or len(queue) >= BATCH else 1
        for slot in slots:
            if len(slot.inflight) < limit:
                break
        else:
            return []
        pushes: list[tuple[LeaseSlot, list[Any]]] = []
        if len(slots) > 1:
            slots = sorted(slots, key=lambda slot: len(slot.inflight))
        usable = [
            slot
            for slot in slots
            if not slot.draining
            and not self.is_late(slot, now_s)
            and not (slot.reclaimed and now_s - slot.granted_s >= QUANTUM_S)
        ]
        for place, slot in enumerate(usable):
            if not queue:
                break
            held = len(slot.inflight)
            room = depth - held
            if room <= 0:
                continue
            waiting = len(queue)
            if not flush and held and waiting < BATCH:
                continue
            share = -(-waiting // (len(usable) - place))
            count = min(room, share, waiting)
            calls = [queue.popleft() for _ in range(count)]
            if not held:
                slot.progress_s = now_s
            pushes.append((slot, calls))
        return pushes

    def leases_wanted(self, now_s: float = 0.0) -> int:
        """How many more leases to ask for now."""
        waiting = len(self.queue)
        if not waiting:
            return 0
        most = waiting if waiting < MAX_REQUESTS else MAX_REQUESTS
        most -= len(self.requested)
        if most <= 0:
            return 0
        if not self.slots or self.cost_s is None or self.single_use:
            return most
        for slot in self.slots:
            if slot.inflight and now_s - slot.progress_s >= LATE_S:
                return most
        # Another executor pays off when it takes a millisecond or more of work.
        wanted = int(waiting * self.cost_s / 0.001) - len(self.requested)
        return max(0, min(wanted, most))

    def crashed(self) -> None:
        """An executor died with calls of the class (rule 6)."""
        self.careful = CAREFUL_REPLIES

    def record_cost(self, cost_s: float) -> None:
        """Blend the mean cost of a batch into the estimate.

        A slow call counts at once and a fast one slowly: a pipeline that is too
        deep costs more than one that is too shallow.
        """
        if self.careful:
            self.careful -= 1
        old = self.cost_s
        if old is None or cost_s > old:
            self.cost_s = cost_s
        else:
            self.cost_s = 0.8 * old + 0.2 * cost_s

    def steal(self, now_s: float) -> tuple[LeaseSlot, int] | None:
        """The lease to take unstarted calls back from, and how many (rule 2)."""
        if self.queue or not any(
            not slot.inflight and not slot.draining for slot in self.slots
        ):
            return None
        best: LeaseSlot | None = None
        for slot in self.slots:
            if len(slot.inflight) < 2 or slot.stealing:
                continue
            if now_s - slot.progress_s < STEAL_AFTER_S:
                continue
            if best is None or len(slot.inflight) > len(best.inflight):
                best = slot
        if best is None:
            return None
        return best, max(1, len(best.inflight) // 2)

    def late(self, now_s: float) -> list[tuple[LeaseSlot, int]]:
        """Late leases and how many unstarted calls to take back from each (rule 4)."""
        return [
            (slot, len(slot.inflight) - 1)
            for slot in self.slots
            if len(slot.inflight) > 1
            and not slot.stealing
            and self.is_late(slot, now_s)
        ]

    def has_pipelines(self) -> bool:
        """True if a call is pushed behind another: :meth:`late` may find it later."""
        return any(len(slot.inflight) > 1 for slot in self.slots)

    def may_steal_later(self) -> bool:
        """True if a later look at :meth:`steal` could find something."""
        idle = busy = False
        for slot in self.slots:
            if not slot.inflight:
                idle = True
            elif len(slot.inflight) > 1:
                busy = True
        return idle and busy

    def returnable(self, now_s: float) -> list[LeaseSlot]:
        """Leases to give back now (rule 3); marks claimed busy ones as draining."""
        out = []
        for slot in self.slots:
            if slot.inflight:
                if slot.reclaimed and now_s - slot.granted_s >= QUANTUM_S:
                    slot.draining = True
            elif slot.draining or (
                not self.queue
                and (
                    slot.reclaimed or slot.wanted or now_s - slot.idle_since_s >= IDLE_S
                )
            ):
                out.append(slot)
            elif slot.reclaimed and now_s - slot.granted_s >= QUANTUM_S:
                out.append(slot)
        return out

    def validate(self) -> None:
        """Check the invariants; used by tests after every step."""
        ids = [slot.lease_id for slot in self.slots]
        assert len(ids) == len(set(ids)), "a lease is listed twice"
        assert not set(ids) & set(self.requested), "a granted lease is still asked for"
        for slot in self.slots:
            assert len(slot.inflight) <= MAX_DEPTH
