"""Looks for waits that can never end, in the control service.

    IDLE -> ASKING -> RESTING -> ASKING -> ... -> IDLE

IDLE: no process has said that a wait of it lasts. ASKING: a *look* is under way; the
processes that have to do with the waits that last are asked how they wait, what makes
the objects and where those calls are, wave after wave, until nothing more is to be
asked. RESTING: between two looks. Rules:

1. A deadlock is reported if two looks in a row find the same things stuck, by the same
   waits (waits are numbered, so a wait that ended and began again is another one).
   What was said before and after the end of the first look and is the same held at
   that instant; so all of it held together, and by itself it can never change.
2. What is not answered, or not in time, counts as moving. So lost or late messages and
   dead processes can delay a report and cannot cause one.
3. A wait is reported once.

Answers name their look; late and doubled ones change nothing. Which waits can never
end is decided by :mod:`rayshim.lineage.wait_graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from rayshim.lineage.transitions import InvalidTransition, Story
from rayshim.lineage.wait_graph import (
    ActorFact,
    Found,
    Maker,
    Node,
    Process,
    WaitGraph,
    WaitingLease,
)

#: Seconds between the two looks that a report needs.
CONFIRM_S = 0.25
#: Seconds until the next look while nothing is stuck; doubled each time.
REST_S, MAX_REST_S = 0.25, 2.0
#: Seconds that the answers of a look may take.
ANSWER_S = 1.0
#: Seconds in which reports that come together are gathered.
GATHER_S = 0.05


class Phase(Enum):
    """States of the machine."""

    IDLE = 0
    ASKING = 1
    RESTING = 2


class WaitsTold(NamedTuple):
    """A process tells unasked which of its waits last; none: they are over."""

    address: str
    said: Process


class WaitsAnswered(NamedTuple):
    """A process answers an :class:`AskProcess`."""

    address: str
    look: int
    said: Process
    makers: Mapping[bytes, Maker]


class NodeAnswered(NamedTuple):
    """The node answers an :class:`AskNode`."""

    look: int
    leases: Mapping[bytes, WaitingLease]
    actors: Mapping[bytes, ActorFact]
    drivers: Mapping[bytes, str]


class ProcessGone(NamedTuple):
    """A process is dead, or was not there to be asked."""

    address: str


class TimePassed(NamedTuple):
    """The time of a :class:`WakeAt` has come."""


class AskProcess(NamedTuple):
    """Ask a process how it waits, about objects it owns and calls it was sent."""

    address: str
    look: int
    objects: tuple[bytes, ...]
    tasks: tuple[bytes, ...]


class AskNode(NamedTuple):
    """Ask about leases, actors and the drivers of jobs."""

    look: int
    lease_ids: tuple[bytes, ...]
    actor_ids: tuple[bytes, ...]
    job_ids: tuple[bytes, ...]


class TellDeadlock(NamedTuple):
    """Tell a process that waits of it never end."""

    address: str
    numbers: tuple[int, ...]
    cycle: tuple[str, ...]


class WakeAt(NamedTuple):
    """Give a TimePassed at this time; takes the place of an earlier wish."""

    due_s: float


Command = AskProcess | AskNode | TellDeadlock | WakeAt


class WaitDetector:
    """The machine. See the module's text for its rules."""

    def __init__(self) -> None:
        self.phase = Phase.IDLE
        #: Exactly the living processes that say a wait of theirs lasts.
        self._lasting: dict[str, None] = {}
        #: Number of the present or last look.
        self._look = 0
        self._graph = WaitGraph()
        #: In ASKING: address -> answers that are owed.
        self._owed: dict[str, int] = {}
        self._owed_by_node = 0
        #: In ASKING: what was asked for already.
        self._asked: set[tuple[str, bytes]] = set()
        self._asked_node: set[bytes] = set()
        #: When the present phase ends by itself.
        self._due_s = 0.0
        self._rest_s = REST_S
        #: What the look before found stuck and did not report.
        self._suspects: frozenset[Node] = frozenset()
        #: Waits that were reported: (address, number).
        self._told: set[tuple[str, int]] = set()
        self._story = Story()

    def handle(self, event: Any, now: float) -> list[Command]:
        """Takes one event at time ``now`` (seconds, monotonic).

        Raises:
            InvalidTransition: the event is none of this machine.
        """
        self._story.add(event, now)
        method = _TABLE.get((self.phase, type(event)))
        if method is None:
            subject = getattr(event, "address", "").encode()
            story = self.story(getattr(event, "address", ""))
            raise InvalidTransition(subject, self.phase, event, story)
        return method(self, event, now)

    def story(self, address: str) -> list[str]:
        """The remembered events of a process, one line each."""
        return self._story.of(address)

    def validate(self) -> None:
        """Checks the invariants.

        Raises:
            AssertionError: one does not hold.
        """
        owed = sum(self._owed.values()) + self._owed_by_node
        assert (owed > 0) == (self.phase is Phase.ASKING)
        assert all(count > 0 for count in self._owed.values())
        assert self.phase is not Phase.IDLE or not self._lasting
        assert REST_S <= self._rest_s <= MAX_REST_S

    # Events.

    def _told_first(self, event: WaitsTold, now: float) -> list[Command]:
        self._note(event)
        return self._rest(GATHER_S, now) if self._lasting else []

    def _told_again(self, event: WaitsTold, now: float) -> list[Command]:
        self._note(event)
        if event.said.waits and self._due_s > now + GATHER_S:
            return self._rest(GATHER_S, now)
        return []

    def _told_meanwhile(self, event: WaitsTold, now: float) -> list[Command]:
        self._note(event)
        return []

    def _note(self, event: WaitsTold) -> None:
        if event.said.waits:
            self._lasting[event.address] = None
            self._rest_s = REST_S
        else:
            self._lasting.pop(event.address, None)

    def _gone(self, event: ProcessGone, now: float) -> list[Command]:
        self._lasting.pop(event.address, None)
        self._told = {one for one in self._told if one[0] != event.address}
        return []

    def _gone_meanwhile(self, event: ProcessGone, now: float) -> list[Command]:
        self._gone(event, now)
        self._graph.processes.pop(event.address, None)
        self._owed.pop(event.address, None)
        return self._go_on(now)

    def _ignore(self, event: Any, now: float) -> list[Command]:
        return []

    def _wake(self, event: TimePassed, now: float) -> list[Command]:
        if now < self._due_s:
            return []
        if not self._lasting:
            self.phase = Phase.IDLE
            self._suspects = frozenset()
            self._told.clear()
            return []
        self.phase = Phase.ASKING
        self._look += 1
        self._graph = WaitGraph()
        self._asked = set()
        self._asked_node = set()
        self._due_s = now + ANSWER_S
        commands: list[Command] = [
            self._ask(address, (), ()) for address in self._lasting
        ]
        return [*commands, WakeAt(self._due_s)]

    def _late(self, event: TimePassed, now: float) -> list[Command]:
        if now < self._due_s:
            return []
        self._owed.clear()
        self._owed_by_node = 0
        return self._conclude(now)

    def _answered(self, event: WaitsAnswered, now: float) -> list[Command]:
        owed = self._owed.get(event.address, 0)
        if event.look != self._look or not owed:
            return []
        self._graph.add(event.address, event.said)
        self._graph.makers.update(event.makers)
        if owed == 1:
            del self._owed[event.address]
        else:
            self._owed[event.address] = owed - 1
        return self._go_on(now)

    def _node_answered(self, event: NodeAnswered, now: float) -> list[Command]:
        if event.look != self._look or not self._owed_by_node:
            return []
        self._graph.leases.update(event.leases)
        self._graph.actors.update(event.actors)
        self._graph.drivers.update(event.drivers)
        self._owed_by_node -= 1
        return self._go_on(now)

    # Looks.

    def _ask(
        self, address: str, objects: tuple[bytes, ...], tasks: tuple[bytes, ...]
    ) -> Command:
        self._owed[address] = self._owed.get(address, 0) + 1
        self._asked.add((address, b""))
        return AskProcess(address, self._look, objects, tasks)

    def _go_on(self, now: float) -> list[Command]:
        """The next wave; or the end of the look."""
        commands = self._questions()
        if not commands and not self._owed and not self._owed_by_node:
            for address in dict.fromkeys(self._graph.suspect_drivers()):
                if (address, b"") not in self._asked:
                    commands.append(self._ask(address, (), ()))
            if not commands:
                return self._conclude(now)
        return commands

    def _questions(self) -> list[Command]:
        """What follows from the facts and was not asked yet."""
        graph = self._graph
        wanted: dict[str, tuple[dict[bytes, None], dict[bytes, None]]] = {}
        node_ids: dict[str, dict[bytes, None]] = {"lease": {}, "actor": {}, "job": {}}

        def ask(address: str, kind: int, subject: bytes) -> None:
            if address and (address, subject) not in self._asked:
                self._asked.add((address, subject))
                asked = wanted.setdefault(address, ({}, {}))
                if subject:
                    asked[kind][subject] = None

        def ask_node(kind: str, subject: bytes) -> None:
            if subject not in self._asked_node:
                self._asked_node.add(subject)
                node_ids[kind][subject] = None

        for process in graph.processes.values():
            for wait in process.waits:
                for object_id, owner in wait.objects:
                    ask(owner, 0, object_id)
        for object_id, maker in graph.makers.items():
            ask_node("job", object_id[20:24])
            ask(maker.address, 1, maker.task_id)
            for address, call in maker.slots:
                ask(address, 1, call)
            for argument, owner in maker.objects:
                ask(owner, 0, argument)
            for lease_id in maker.lease_ids:
                ask_node("lease", lease_id)
            if maker.kind == "actor" and not maker.address:
                ask_node("actor", maker.actor_id)
        for actor in graph.actors.values():
            ask(actor.address, 1, b"")
            ask(actor.handle[1], 0, actor.handle[0])
            if actor.lease_id:
                ask_node("lease", actor.lease_id)
        for lease in graph.leases.values():
            if lease.behind:
                ask_node("lease", lease.behind)
            for source in lease.sources:
                for holder in source.holders:
                    ask(holder.address, 1, b"")
        commands: list[Command] = [
            self._ask(address, tuple(objects), tuple(tasks))
            for address, (objects, tasks) in wanted.items()
        ]
        if any(node_ids.values()):
            self._owed_by_node += 1
            leases, actors, jobs = (tuple(ids) for ids in node_ids.values())
            commands.append(AskNode(self._look, leases, actors, jobs))
        return commands

    def _conclude(self, now: float) -> list[Command]:
        found = self._graph.deadlocks()
        commands: list[Command] = []
        suspects: set[Node] = set()
        for one in found:
            if one.nodes <= self._suspects:
                commands += self._tell(one)
            elif not self._told.issuperset(one.cycles):
                suspects |= one.nodes
        self._suspects = frozenset(suspects)
        self._graph = WaitGraph()
        if suspects:
            return commands + self._rest(CONFIRM_S, now)
        rest_s = self._rest_s
        self._rest_s = min(MAX_REST_S, 2 * rest_s)
        return commands + self._rest(rest_s, now)

    def _tell(self, found: Found) -> list[Command]:
        commands: list[Command] = []
        for (address, number), cycle in found.cycles.items():
            if (address, number) not in self._told:
                self._told.add((address, number))
                commands.append(TellDeadlock(address, (number,), tuple(cycle)))
        return commands

    def _rest(self, seconds: float, now: float) -> list[Command]:
        self.phase = Phase.RESTING
        self._due_s = now + seconds
        return [WakeAt(self._due_s)]


_P, _D = Phase, WaitDetector
_Method = Callable[[WaitDetector, Any, float], list[Command]]
_TABLE: dict[tuple[Phase, type], _Method] = {
    (_P.IDLE, WaitsTold): _D._told_first,
    (_P.RESTING, WaitsTold): _D._told_again,
    (_P.ASKING, WaitsTold): _D._told_meanwhile,
    (_P.IDLE, WaitsAnswered): _D._ignore,
    (_P.RESTING, WaitsAnswered): _D._ignore,
    (_P.ASKING, WaitsAnswered): _D._answered,
    (_P.IDLE, NodeAnswered): _D._ignore,
    (_P.RESTING, NodeAnswered): _D._ignore,
    (_P.ASKING, NodeAnswered): _D._node_answered,
    (_P.IDLE, ProcessGone): _D._gone,
    (_P.RESTING, ProcessGone): _D._gone,
    (_P.ASKING, ProcessGone): _D._gone_meanwhile,
    (_P.IDLE, TimePassed): _D._ignore,
    (_P.RESTING, TimePassed): _D._wake,
    (_P.ASKING, TimePassed): _D._late,
}
