"""Tours of the machines with a transition table, for ``generate_machines.py``.

To put a machine on the page, add a :class:`Tabled` to :data:`MACHINES` and write
``{{NAME_diagram}}``, ``{{NAME_grid}}`` and ``{{NAME_events}}`` where they belong in
``state-machines.in.md``. The machine has ``handle(event, now)`` and ``validate()``.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rayshim.lineage import membership, memory, pulls, recovery, waits
from rayshim.lineage import pull_events as pev
from rayshim.lineage.membership import NodeState
from rayshim.lineage.pulls import PullState
from rayshim.lineage.recovery import RecoveryState
from rayshim.lineage.transitions import InvalidTransition, picture
from rayshim.lineage.wait_graph import Process, Wait
from rayshim.lineage.waits import Phase

Table = dict[tuple[Any, type], Any]


@dataclass
class Found:
    """What a tour through a small world saw."""

    #: (state before, state after) -> names of the events that did it.
    moves: dict[tuple[Enum, Enum], set[str]] = field(default_factory=dict)
    #: (state, event type) -> states after it, of the subject of the event.
    after: dict[tuple[Enum, type], set[Enum]] = field(default_factory=dict)
    #: (state, event type) that gave a command.
    acted: set[tuple[Enum, type]] = field(default_factory=set)

    def move(self, before: Enum, after: Enum, event: object) -> None:
        """Remembers a change of state."""
        if before is not after:
            names = self.moves.setdefault((before, after), set())
            names.add(type(event).__name__)

    def outcome(self, before: Enum, event: object, after: Enum) -> None:
        """Remembers what an event made of its subject."""
        self.after.setdefault((before, type(event)), set()).add(after)


def tour(
    start: Any,
    events: Callable[[Any], Iterable[Any]],
    take: Callable[[Any, Any], None],
    key: Callable[[Any], Hashable],
    depth: int,
) -> None:
    """Gives every event to a copy of the machine in every state within ``depth``."""
    seen = {key(start)}
    line = deque([(start, 0)])
    while line:
        machine, steps = line.popleft()
        for event in events(machine):
            twin = copy.deepcopy(machine)
            take(twin, event)
            if steps + 1 < depth and key(twin) not in seen:
                seen.add(key(twin))
                line.append((twin, steps + 1))


@dataclass
class Tabled:
    """A machine with a transition table, and a small world to find its arrows in."""

    table: Table
    fresh: Callable[[], Any]
    #: State of the subject that the arrows are drawn for.
    state: Callable[[Any], Enum]
    #: Events to try; those about the subject come first.
    events: Sequence[Any]
    first: Enum
    last: Sequence[Enum] = ()
    #: Whether an event is about the subject.
    is_about: Callable[[Any], bool] = lambda event: True
    #: Events about all subjects: they are not in the table.
    outside: Sequence[type] = ()
    #: Seconds that pass with events of these kinds.
    seconds: dict[type, float] = field(default_factory=dict)
    depth: int = 6

    def walk(self) -> Found:
        """Tours the world."""
        found = Found()

        def events(machine: Any) -> list[Any]:
            now = self.state(machine)
            return [
                event
                for event in self.events
                if type(event) in self.outside
                or not self.is_about(event)
                or (now, type(event)) in self.table
            ]

        def take(machine: Any, event: Any) -> None:
            before = self.state(machine)
            now = getattr(machine, "tour_clock_s", 0.0)
            now += self.seconds.get(type(event), 0.0)
            machine.tour_clock_s = now
            try:
                if machine.handle(event, now):
                    found.acted.add((before, type(event)))
            except InvalidTransition:
                if self.is_about(event):
                    raise
            machine.validate()
            after = self.state(machine)
            found.move(before, after, event)
            if type(event) in self.outside or self.is_about(event):
                found.outcome(before, event, after)

        def key(machine: Any) -> Hashable:
            now = machine.__dict__.pop("tour_clock_s", 0.0)
            shown = repr(picture(machine))
            machine.tour_clock_s = now
            return shown

        tour(self.fresh(), events, take, key, self.depth)
        return found


_TASK = b"t" * 24
_VALUE = _TASK + (1).to_bytes(4, "little")
_OTHER_TASK = b"u" * 24
_OTHER = _OTHER_TASK + (1).to_bytes(4, "little")
_SOURCES = (pev.Source("n", "x"),)
_EXECUTORS = (memory.Candidate(b"w", 1 << 30, 0.0),)
_SAID = Process("f", (Wait(1, b"c", "", ((b"o", "b"),), True, "f"),))

MACHINES: dict[str, Tabled] = {
    "member": Tabled(
        table=membership._TABLE,
        fresh=lambda: membership.Membership(4.0),
        state=lambda machine: (
            machine.members["a"].state if "a" in machine.members else NodeState.UNKNOWN
        ),
        events=[
            membership.Expected("a"),
            membership.Mourned("a", "it was silent"),
            membership.Joined("a", 1),
            membership.Joined("a", 2),
            membership.Spoke("a"),
            membership.Leaving("a", "drained"),
            membership.ChannelEnded("a", 1),
            membership.ChannelEnded("a", 2),
            membership.TimePassed(),
        ],
        first=NodeState.UNKNOWN,
        last=[NodeState.DEAD],
        outside=[membership.TimePassed],
        seconds={membership.TimePassed: 1.0},
        depth=8,
    ),
    "recovery": Tabled(
        table=recovery.TABLE,
        fresh=lambda: recovery.RecoveryManager(150),
        state=lambda machine: machine.state_of(_TASK),
        events=[
            recovery.Kept(_TASK, (_VALUE,), (_OTHER,), 100, 2),
            recovery.Kept(_TASK, (_VALUE,), (), 100, 0, 1),
            recovery.Kept(_TASK, (), (), 100, 2),
            recovery.Lost(_VALUE),
            recovery.Needed(_VALUE),
            recovery.Broke(_TASK),
            recovery.Dropped(_VALUE),
            recovery.Kept(_OTHER_TASK, (_OTHER,), (_VALUE,), 100, 2),
            recovery.Lost(_OTHER),
            recovery.Needed(_OTHER),
        ],
        first=RecoveryState.UNKNOWN,
        is_about=lambda event: (
            getattr(event, "task_id", b"") == _TASK
            or getattr(event, "object_id", b"") == _VALUE
        ),
        depth=6,
    ),
    "pull": Tabled(
        table=pulls.TABLE,
        fresh=lambda: pulls.Pulls(max_active_bytes=100),
        state=lambda machine: machine.state(b"x"),
        events=[
            pev.PullAsked(b"x", "a", pev.Making("n/x", 100), _SOURCES),
            pev.PullAsked(b"x", "a", pev.Making("n/z", 100), _SOURCES),
            pev.RoomGiven(b"x"),
            pev.RoomRefused(b"x", "full"),
            pev.RangeArrived(b"x", 1),
            pev.RangeBroken(b"x", 1, 0, "gone", is_gone=True),
            pev.WriteFailed(b"x", 1, "no space"),
            pev.Withdrawn(b"x", "a"),
            pev.CopyFreed(b"x"),
            pev.AskerGone("a"),
            pev.NodeLost("n", "died"),
            pev.PullAsked(b"y", "a", pev.Making("n/y", 100), _SOURCES),
            pev.CopyFreed(b"y"),
            pev.RoomRefused(b"y", "full"),
        ],
        first=PullState.ABSENT,
        is_about=lambda event: getattr(event, "object_id", b"") == b"x",
        outside=[pev.AskerGone, pev.NodeLost],
        depth=6,
    ),
    "wait": Tabled(
        table=waits._TABLE,
        fresh=waits.WaitDetector,
        state=lambda machine: machine.phase,
        events=[
            waits.WaitsTold("a", _SAID),
            waits.WaitsTold("a", Process("f")),
            waits.WaitsAnswered("a", 1, _SAID, {}),
            waits.WaitsAnswered("b", 1, Process("g"), {}),
            waits.NodeAnswered(1, {}, {}, {}),
            waits.ProcessGone("a"),
            waits.ProcessGone("b"),
            waits.TimePassed(),
        ],
        first=Phase.IDLE,
        seconds={waits.TimePassed: 3.0},
        depth=6,
    ),
    "memory": Tabled(
        table=memory._TABLE,
        fresh=lambda: memory.MemoryPolicy(0.9),
        state=lambda machine: machine.state,
        events=[
            memory.MemoryMeasured(50, 100, _EXECUTORS),
            memory.MemoryMeasured(95, 100, _EXECUTORS),
            memory.ExecutorGone(b"w"),
        ],
        first=memory.Pressure.CALM,
        depth=4,
    ),
}
