"""What happens to the cluster as a whole, noted by the control service.

Nodes, jobs, actors and placement groups: each change of state is one event. The newest
are kept here for whoever asks; all go, with those of calls, to the event files of the
session (:mod:`rayshim.adapters.events`).
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rayshim.adapters.raylet.channels import Peer
    from rayshim.adapters.raylet.control import ControlService
    from rayshim.adapters.raylet.head_nodes import KnownNode
    from rayshim.lineage.placement_groups import Group

#: Events that are kept for whoever asks.
KEPT_EVENTS = 10_000
#: Ended jobs that are remembered.
KEPT_JOBS = 1_000
#: Seconds in which events are gathered before they are written.
WRITE_AFTER_S = 1.0


class ClusterEvent(NamedTuple):
    """One change."""

    #: Seconds since the epoch.
    time_s: float
    #: "node", "job", "actor" or "placement_group".
    kind: str
    #: Hex.
    id: str
    #: As lists of state show it.
    state: str
    name: str = ""
    node_id: str = ""
    pid: int = 0
    job_id: str = ""
    message: str = ""


class JobLife:
    """One driver, as lists of jobs show it."""

    __slots__ = ("address", "ended_s", "pid", "started_s")

    def __init__(self, address: str, pid: int, started_s: float) -> None:
        self.address = address
        self.pid = pid
        #: Seconds since the epoch.
        self.started_s = started_s
        #: 0 while it runs.
        self.ended_s = 0.0


class EventLog:
    """Takes note of changes, and passes them on to the files once a second.

    Args:
        control: Whose changes.
        server: The process it is in.
    """

    def __init__(self, control: ControlService, server: Any) -> None:
        self._control = control
        self._server = server
        self.events: deque[ClusterEvent] = deque(maxlen=KEPT_EVENTS)
        #: Node id -> when it joined, and when it died (0: not yet); since the epoch.
        self.node_times: dict[str, list[float]] = {}
        #: Job id -> its driver.
        self.jobs: OrderedDict[bytes, JobLife] = OrderedDict()
        #: Actor id -> (state, pid, restarts) that was noted last.
        self._actors: dict[bytes, tuple[str, int, int]] = {}
        self._groups: dict[bytes, str] = {}
        self._unwritten: list[ClusterEvent] = []
        control.nodes.on_joined.append(self.node_joined)
        control.nodes.on_died.append(self.node_died)
        control.actors.on_news = self.actors_changed
        control.groups.on_news = self.group_changed

    def note(self, event: ClusterEvent) -> None:
        """Takes one event in."""
        self.events.append(event)
        if not self._unwritten:
            self._server.loop.call_later(WRITE_AFTER_S, self.write)
        self._unwritten.append(event)

    def write(self) -> None:
        """Passes what is not written yet on to the files."""
        events, self._unwritten = self._unwritten, []
        if events:
            self._server.event_files.add_cluster_events(events)

    def node_joined(self, node: KnownNode) -> None:
        """A node is there, for the first time or again."""
        now = time.time()
        if not self.node_times.setdefault(node.node_id, [now, 0.0])[1]:
            info = node.join.info
            pid = node.join.pid
            self.note(
                ClusterEvent(
                    now, "node", node.node_id, "ALIVE", info.node_ip, node.node_id, pid
                )
            )

    def node_died(self, node: KnownNode, death: str) -> None:
        """A node is gone for good."""
        now = time.time()
        known = self._control.nodes.known
        if len(self.node_times) > 2 * len(known) + 1000:
            # The stores of drivers on other hosts come and go as nodes.
            self.node_times = {
                node_id: times
                for node_id, times in self.node_times.items()
                if node_id in known
            }
        self.node_times.setdefault(node.node_id, [0.0, 0.0])[1] = now
        self.note(
            ClusterEvent(
                now,
                "node",
                node.node_id,
                "DEAD",
                node.join.info.node_ip,
                node.node_id,
                node.join.pid,
                message=death,
            )
        )

    def driver_came(self, peer: Peer) -> None:
        """A driver connected."""
        life = self.jobs.get(peer.job_id)
        if life is not None and life.pid == peer.pid:
            life.ended_s = 0.0  # its channel was broken for a while
            return
        now = time.time()
        self.jobs[peer.job_id] = JobLife(peer.address, peer.pid, now)
        while len(self.jobs) > KEPT_JOBS:
            self.jobs.popitem(last=False)
        job = peer.job_id.hex()
        self.note(ClusterEvent(now, "job", job, "RUNNING", pid=peer.pid, job_id=job))

    def driver_left(self, peer: Peer) -> None:
        """A driver is gone."""
        life = self.jobs.get(peer.job_id)
        if life is None or life.ended_s:
            return
        life.ended_s = time.time()
        job = peer.job_id.hex()
        self.note(
            ClusterEvent(
                life.ended_s, "job", job, "SUCCEEDED", pid=peer.pid, job_id=job
            )
        )

    def actors_changed(self, actor_ids: Iterable[bytes]) -> None:
        """Actors may have changed."""
        service = self._control.actors
        for actor_id in actor_ids:
            actor = service.machine.actors.get(actor_id)
            if actor is None:
                self._actors.pop(actor_id, None)
                continue
            state = shown_state(actor)
            fact = (state, actor.pid, actor.incarnation)
            if self._actors.get(actor_id) == fact:
                continue
            self._actors[actor_id] = fact
            cargo = service.cargo.get(actor_id)
            self.note(
                ClusterEvent(
                    time.time(),
                    "actor",
                    actor_id.hex(),
                    state,
                    actor.spec.class_name,
                    cargo.node_id if cargo is not None else "",
                    actor.pid,
                    actor.spec.job_id.hex(),
                    actor.cause if state in ("DEAD", "RESTARTING") else "",
                )
            )

    def group_changed(self, group: Group) -> None:
        """A placement group may have changed."""
        from rayshim.adapters.raylet.groups import _shown

        state = _shown(group)
        if self._groups.get(group.group_id) == state:
            return
        self._groups[group.group_id] = state
        if state == "REMOVED":
            del self._groups[group.group_id]
        self.note(
            ClusterEvent(
                time.time(),
                "placement_group",
                group.group_id.hex(),
                state,
                group.name,
                job_id=group.job_id.hex(),
            )
        )


def shown_state(actor: Any) -> str:
    """The state of an actor in the words of lists."""
    state: str = actor.shown_state
    if state == "PENDING":
        is_registered = actor.state.name in ("UNKNOWN", "REGISTERED")
        return "DEPENDENCIES_UNREADY" if is_registered else "PENDING_CREATION"
    return state
