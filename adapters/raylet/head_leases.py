"""Leases that nobody could grant yet: the head's queue, and where each one goes.

Two kinds of requests are here. A raylet asks for one of its peers (``PlaceLease``) and
is answered with the node to ask; the control service asks for an actor, and the
request itself is sent to the node. The choice is :mod:`rayshim.lineage.placement`'s,
and :mod:`rayshim.lineage.stealing`'s for what waits at a node that cannot grant it.

In a cluster each of them is a task of Dask's scheduler, from the question to the end
of the lease (:mod:`.lease_engine`). Until Dask is there, in a session on one node, and
should Dask ever fail, the same entries go the same ways without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rayshim.adapters.raylet import lease_reports
from rayshim.adapters.raylet.entry_tasks import EntryTasks
from rayshim.adapters.raylet.head_wishes import policy_of
from rayshim.adapters.raylet.lease_choice import NodeChooser
from rayshim.adapters.raylet.lease_engine import Engine, Tasks
from rayshim.adapters.raylet.lease_entry import LeaseEntry
from rayshim.adapters.raylet.lease_nodes import PlacerNodes
from rayshim.adapters.raylet.lease_queue import LeaseQueue
from rayshim.adapters.raylet.pacing import Pace
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire import node_messages as nodes
from rayshim.lineage.leases import LIFE_HOPS

if TYPE_CHECKING:
    from rayshim.adapters.raylet.channels import ChannelServer
    from rayshim.adapters.raylet.groups import GroupService
    from rayshim.adapters.raylet.head_nodes import KnownNode, NodeDirectory

#: Seconds after which a request that never came to its node is given up: its owner
#: died, or needs it no more.
ARRIVAL_S = 2.0
#: Seconds between looks at what waits at nodes that cannot grant it, while no node has
#: more room: it may have rested there long enough.
STUCK_LOOK_S = 0.1


class LeasePlacer:
    """The leases that go through the head, and the unplaced demand of the cluster.

    Args:
        server: The process of the control service.
        directory: Its nodes.
    """

    def __init__(self, server: ChannelServer, directory: NodeDirectory) -> None:
        self._server = server
        self.nodes = directory
        #: Whether nodes tell what becomes of what is placed.
        self._is_followed = directory.is_cluster and not server.config.with_raylet
        #: Lease id -> request that is not granted: it needs a node, waits at one that
        #: cannot grant it, or is an actor's.
        self._entries: dict[bytes, LeaseEntry] = {}
        #: Lease id -> the others: sent to a node, or granted there.
        self._placed: dict[bytes, LeaseEntry] = {}
        self._queue = LeaseQueue()
        #: Requests that a node was not heard of yet, in the order of sending.
        self._travelling: dict[bytes, LeaseEntry] = {}
        self._count = 0
        #: Leases in the queue that wait at a node.
        self._stuck_ids: set[bytes] = set()
        #: When they were looked at last.
        self._looked_s = 0.0
        #: Dask's scheduler, once it runs.
        self.engine = Engine(lambda: self._known.note_all())
        self._tasks = EntryTasks(self.engine)
        policy = policy_of(server.config.settings)
        self._known = PlacerNodes(directory, self.engine, policy, self._is_followed)
        self._chooser = NodeChooser(
            directory, self._known, self._is_followed, server.now
        )
        self._are_tasks_lost = False
        self.now = server.now
        #: Restarts of the control service so far.
        self.lives = 0
        #: ``on_refused(lease_id, reason, kind)``: an actor will never be placed.
        self.on_refused: Callable[[bytes, str, str], None]
        #: Some node may have room now.
        self.retry = Pace(server.loop, self._retry)
        directory.on_joined.append(self._node_joined)
        directory.on_told.append(self._node_told)
        directory.on_status.append(self._node_changed)
        directory.on_room.append(self.retry)
        directory.on_died.append(self._node_died)

    @property
    def groups(self) -> GroupService:
        """The placement groups, in whose bundles leases may be."""
        return self._chooser.groups

    @groups.setter
    def groups(self, groups: GroupService) -> None:
        self._chooser.groups = groups

    def attach(self, tasks: Tasks) -> None:
        """Dask's scheduler is there: what is here becomes its tasks."""
        tasks.decide, tasks.sent = self._decide, self._sent
        tasks.on_ready = self._node_ready
        tasks.on_lost = self._tasks_lost
        self.engine.tasks = tasks
        with self.engine:
            for node in self.nodes.alive():
                self._node_joined(node)
            self._adopt_all()

    def _tasks_lost(self) -> None:
        """Somebody restarted Dask's scheduler: it forgot nodes and leases."""
        if self.engine.tasks is not None and not self._are_tasks_lost:
            self._are_tasks_lost = True  # This is called for each of the nodes.
            self._server.loop.call_soon(self._attach_again)

    def _attach_again(self) -> None:
        self._are_tasks_lost = False
        if self.engine.tasks is not None:
            self.attach(self.engine.tasks)

    def _node_ready(self, node_id: str) -> None:
        """The scheduler knows a node from now on."""
        node = self.nodes.find(node_id)
        if node is not None:
            self._known.note(node)
        self._tasks.add_late()
        self.retry()

    def _adopt_all(self) -> None:
        """Makes tasks of the entries whose node the scheduler knows by now."""
        self._known.note_all()
        for entry in sorted(
            [*self._entries.values(), *self._placed.values()],
            key=lambda entry: entry.priority,
        ):
            self._tasks.add(entry)
        self.retry()

    # From raylets.

    def ask(self, node_id: str, request: wire.RequestLease, is_away: bool) -> None:
        """A raylet cannot grant a request now."""
        lease_id = request.lease_id
        known = self._find(lease_id)
        if known is not None and not known.asker:
            return
        if known is not None and known.node == node_id and known.hops <= request.hops:
            self._cannot_grant(known, request, is_away)
            return
        if known is not None and known.hops > request.hops:
            if known.has_arrived or known.asker != node_id or not known.node:
                return
            # The answer was lost on the way.
            self._forget(known)
        elif known is not None:
            self._forget(known)
        entry = self._new(request, node_id, node_id)
        entry.is_away = is_away
        if not is_away:
            # It said that it has no room, whatever was heard of it before.
            entry.left[node_id] = self._chooser.told_count(node_id)
        if known is not None:
            entry.since_s, entry.priority = known.since_s, known.priority
        self._begin(entry)

    def _cannot_grant(
        self, entry: LeaseEntry, request: wire.RequestLease, is_away: bool
    ) -> None:
        """The node that a request was sent to asks for another one."""
        node_id, lease_id = entry.node, request.lease_id
        entry.request, entry.asker, entry.is_away = request, node_id, is_away
        entry.hops = request.hops
        entry.is_followed = entry.has_arrived = True
        entry.is_granted = False
        self._travelling.pop(lease_id, None)
        if is_away:
            # It holds the request no more, and may be the answer.
            self._take_back(entry)
            return
        self._stuck(entry)
        self._try(entry)

    def _stuck(self, entry: LeaseEntry) -> None:
        lease_id = entry.request.lease_id
        entry.is_stuck = True
        entry.left[entry.node] = self._chooser.told_count(entry.node)
        self._entries[lease_id] = entry
        self._placed.pop(lease_id, None)
        self._enqueue(entry)
        self._stuck_ids.add(lease_id)
        self._tasks.stuck(entry)

    def cancel(self, node_id: str, lease_id: bytes) -> None:
        """A raylet needs no answer any more."""
        entry = self._find(lease_id)
        if entry is None or entry.asker != node_id:
            return
        if not entry.is_followed:
            self._forget(entry)
        elif not entry.is_granted:
            # It was granted or dropped there, as its next load will say.
            self._settle(entry, node_id)

    def _settle(self, entry: LeaseEntry, node_id: str) -> None:
        """A request stays at a node after all."""
        lease_id = entry.request.lease_id
        entry.is_stuck = entry.is_moving = False
        entry.has_arrived = True
        self._travelling.pop(lease_id, None)
        self._leave_queue(lease_id)
        if entry.asker or entry.is_granted:
            self._entries.pop(lease_id, None)
            self._placed[lease_id] = entry
        was_at, entry.node = entry.node, node_id
        self._tasks.settle(entry, was_at)

    # From the actor service.

    def place(self, request: wire.RequestLease, home: str) -> None:
        """An actor needs an executor somewhere, best on the node ``home``."""
        # Else nodes may take it for a late copy of an earlier life's request.
        request.hops = self.lives * LIFE_HOPS
        known = self._find(request.lease_id)
        if known is not None:
            self._forget(known)
        self._begin(self._new(request, "", home))

    def unplace(self, lease_id: bytes) -> None:
        """An actor needs none any more."""
        entry = self._entries.get(lease_id)
        if entry is not None:
            self._forget(entry)
            if entry.node:
                self.nodes.send(entry.node, wire.CancelLease(lease_id))

    def knows(self, lease_id: bytes) -> bool:
        """Whether a request is under way."""
        return lease_id in self._entries

    def granted(self, node_id: str, lease_id: bytes) -> None:
        """An actor has its executor on a node."""
        entry = self._entries.get(lease_id)
        if entry is not None and entry.node not in ("", node_id):
            # The grant was made for an earlier life of the control service.
            self.nodes.send(entry.node, wire.CancelLease(lease_id))
        if entry is None:
            return
        if self._is_followed:
            self._runs(entry, node_id)
        else:
            self._forget(entry)

    def rejected(self, node_id: str, lease_id: bytes, kind: str) -> bool:
        """Whether a request that a node rejected goes on elsewhere."""
        entry = self._entries.get(lease_id)
        if entry is None and kind == "setup":
            return False  # Granted there, but its environment cannot be built.
        if entry is None or entry.node != node_id:
            return True  # It was taken back, or was of an earlier life.
        if kind not in ("cancelled", "drained"):
            self._forget(entry)
            return False
        self._take_back(entry)
        return True

    def _take_back(self, entry: LeaseEntry) -> None:
        """A request is at no node any more, and needs one."""
        lease_id = entry.request.lease_id
        entry.node = ""
        entry.is_moving = entry.is_stuck = entry.has_arrived = False
        self._travelling.pop(lease_id, None)
        self._placed.pop(lease_id, None)
        self._entries[lease_id] = entry
        self._enqueue(entry)
        self._tasks.release(entry)
        if not entry.node:
            self._try(entry)

    # What changes.

    def _retry(self) -> None:
        self._give_up_lost()
        if not self._has_news() or not self._queue:
            return
        with self._chooser.one_pass():
            entries, may_fit = self._entries, self._chooser.may_fit
            self._queue.try_all(
                lambda lease_id: self._try(entries[lease_id]),
                lambda lease_id: may_fit(entries[lease_id]),
            )

    def _has_news(self) -> bool:
        """Whether there may be room, or what waits at a node may go on."""
        has_news = self._known.take_news()
        now = self.now()
        is_due = bool(self._stuck_ids) and now - self._looked_s >= STUCK_LOOK_S
        if has_news or is_due:
            self._looked_s = now
        return has_news or is_due

    def _give_up_lost(self) -> None:
        """Forgets what should have come to its node long ago."""
        limit_s = self.now() - ARRIVAL_S
        while self._travelling:
            entry = next(iter(self._travelling.values()))
            if entry.sent_s > limit_s:
                return
            self._forget(entry)

    def _node_joined(self, node: KnownNode) -> None:
        self._known.note(node)
        self._tasks.node_joined(node, self.nodes.machine.is_usable(node.node_id))

    def _node_changed(self, node: KnownNode) -> None:
        self._known.note(node)
        self._tasks.node_usable(node, self.nodes.machine.is_usable(node.node_id))

    def _node_told(self, node: KnownNode, load: nodes.NodeLoad) -> None:
        """A node says what became of what was placed there."""
        node_id = node.node_id
        self._known.note(node)
        for lease_id in load.arrived:
            entry = self._find(lease_id)
            if entry is not None and entry.node == node_id:
                self._travelling.pop(lease_id, None)
                entry.has_arrived = True
        for lease_id in load.granted:
            entry = self._find(lease_id)
            if entry is None and self._is_followed:
                # This head was restarted since, or it came very late.
                entry = self._unknown(lease_id, node_id)
            if entry is not None:
                self._runs(entry, node_id)
        for lease_id in load.waiting:
            entry = self._entries.get(lease_id)
            if entry is None or entry.asker or entry.node != node_id:
                continue
            if not entry.is_moving and not entry.is_stuck:
                entry.has_arrived = True
                self._stuck(entry)
        for lease_id in load.ended:
            entry = self._find(lease_id)
            if entry is None or entry.node != node_id or not entry.has_arrived:
                continue
            if entry.asker or entry.is_granted:
                self._forget(entry)
        self._tasks.node_told(node)

    def _runs(self, entry: LeaseEntry, node_id: str) -> None:
        """A node has granted a lease."""
        if entry.is_granted and entry.node == node_id:
            return
        entry.is_granted = True
        self._settle(entry, node_id)
        self._tasks.granted(entry)

    def _unknown(self, lease_id: bytes, node_id: str) -> LeaseEntry:
        request = wire.RequestLease(lease_id, b"", "(granted before)", {}, {}, 0)
        entry = self._new(request, node_id, node_id)
        entry.node = node_id
        return entry

    def _node_died(self, node: KnownNode, death: str) -> None:
        node_id = node.node_id
        self._known.drop(node_id)
        for entry in [*self._entries.values(), *self._placed.values()]:
            if entry.node == node_id:
                if entry.asker or entry.is_granted:
                    self._forget(entry)  # Its owner asks anew.
                else:
                    self._take_back(entry)
            elif entry.asker == node_id and not entry.node:
                self._forget(entry)
        self._tasks.node_left(node_id)

    # Entries.

    def _find(self, lease_id: bytes) -> LeaseEntry | None:
        return self._entries.get(lease_id) or self._placed.get(lease_id)

    def _new(self, request: wire.RequestLease, asker: str, home: str) -> LeaseEntry:
        self._count += 1
        return LeaseEntry(request, asker, home, self.now(), self._count)

    def _begin(self, entry: LeaseEntry) -> None:
        lease_id = entry.request.lease_id
        self._entries[lease_id] = entry
        self._enqueue(entry)
        if not self._is_refused(entry):
            self._tasks.add(entry)
            if self.engine.tasks is None:
                self._try(entry)

    def _forget(self, entry: LeaseEntry) -> None:
        """A lease is over, or goes on without the head."""
        lease_id = entry.request.lease_id
        self._entries.pop(lease_id, None)
        self._placed.pop(lease_id, None)
        self._travelling.pop(lease_id, None)
        self._leave_queue(lease_id)
        self._tasks.forget(lease_id)

    # Choosing.

    def _enqueue(self, entry: LeaseEntry) -> None:
        entry.is_patient = self._chooser.is_patient(entry)
        self._queue.add(entry)

    def _leave_queue(self, lease_id: bytes) -> None:
        self._queue.remove(lease_id)
        self._stuck_ids.discard(lease_id)

    def _try(self, entry: LeaseEntry) -> bool:
        """Whether something came of looking for a node."""
        if self._is_refused(entry):
            return True
        lease_id, was_at = entry.request.lease_id, entry.node
        if was_at:
            node_id = self._chooser.next_node_for(entry)
            if not node_id:
                return False
            if not entry.asker:
                # It may be granted there just now: the node says which it was.
                entry.is_moving = True
                self._leave_queue(lease_id)
                return self.nodes.send(was_at, wire.CancelLease(lease_id))
            self._tasks.move(entry, node_id)
            if entry.node == was_at:
                self._sent(lease_id, node_id)
            return True
        if self._tasks.wake(entry):
            return bool(entry.node) or lease_id not in self._entries
        node_id = self._decide(lease_id)
        if node_id:
            self._sent(lease_id, node_id)
        return bool(node_id)

    def _decide(self, lease_id: bytes) -> str:
        """The node for a request that is at none; empty if it has to wait here."""
        entry = self._find(lease_id)
        if entry is None:
            return ""
        # Of one that is at a node the engine did not know.
        return entry.node or self._chooser.node_for(entry)

    def _sent(self, lease_id: bytes, node_id: str) -> None:
        """A request goes to a node: tells it, or who asked."""
        entry = self._find(lease_id)
        if entry is None or entry.node == node_id:
            return
        node = self.nodes.find(node_id)
        assert node is not None
        request, now = entry.request, self.now()
        if entry.bundle is not None:
            have = node.bundles[entry.bundle]
            for name, units in entry.need.items():
                have[name] -= units
        elif entry.takes_room:
            node.place(lease_id, entry.need, now)
            self._known.note(node)
        self._leave_queue(lease_id)
        entry.is_stuck = entry.is_moving = entry.has_arrived = False
        entry.node, entry.sent_s = node_id, now
        if not entry.asker:
            # Else it would be taken for a late copy where it was before.
            request.hops += 1
            entry.hops = request.hops
            node.link.send(request)
            return
        self._entries.pop(lease_id, None)
        if self._is_followed:
            entry.hops = request.hops + (node_id != entry.asker)
            entry.is_followed = entry.is_followed or node_id == entry.asker
            self._placed[lease_id] = entry
            self._travelling[lease_id] = entry
        placed = nodes.LeasePlaced(lease_id, node.join.info.address)
        self.nodes.send(entry.asker, placed)

    # What can never be.

    def _is_refused(self, entry: LeaseEntry) -> bool:
        """Whether no node will ever take a request; then its asker is told."""
        reason, kind = self._chooser.refusal(entry)
        if not reason:
            return False
        lease_id = entry.request.lease_id
        self._forget(entry)
        if entry.asker:
            refused = nodes.LeasePlaced(lease_id, "", reason, kind)
            self.nodes.send(entry.asker, refused)
        else:
            self.on_refused(lease_id, reason, kind)
        return True

    # For people and autoscalers.

    def find(self, lease_id: bytes) -> LeaseEntry | None:
        """A request that is not granted."""
        return self._entries.get(lease_id)

    def not_granted(self) -> Mapping[bytes, LeaseEntry]:
        """All of those, by id."""
        return self._entries

    def looks(self, lease_id: bytes) -> bool:
        """Whether a request needs a node, or another one."""
        return lease_id in self._queue

    def waiting(self) -> Iterator[tuple[LeaseEntry, int]]:
        """The requests that need a node: the first of equal ones, and how many."""
        for lease_id, count in self._queue.counts():
            yield self._entries[lease_id], count

    def explain(self, lease_id: bytes) -> list[str]:
        """Why a request waits; empty if it is not here."""
        return lease_reports.explain(self, lease_id)

    def rows(self) -> list[dict[str, Any]]:
        """One row for each request that is not granted, by arrival."""
        return lease_reports.rows(self)

    def task_rows(self) -> list[dict[str, Any]]:
        """One row for each lease task, by arrival."""
        return lease_reports.task_rows(self)
