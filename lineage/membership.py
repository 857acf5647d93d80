"""Which nodes belong to the cluster, and which of them live.

    JOINING -> ALIVE <-> SUSPECT,  ALIVE or SUSPECT -> LEAVING,  any of them -> DEAD

JOINING was known to an earlier life of the head and is given time to come back; SUSPECT
has been silent for half of the time limit and gets no new work; LEAVING said that it
goes. DEAD is for ever: an id names one life of one node. Rules that always hold:

1. A node that is not DEAD has been heard of within the time limit.
2. A node is declared dead at most once, and what is announced of it then stays.
3. A node that was declared dead and speaks again is told to leave, and nothing else
   comes of what it says, even if the head was restarted meanwhile.

A channel that ends is a death, unless the node joined anew on another channel before
that was noticed: channels are numbered by their order. Time in which the machine
itself did not run (a stopped process, a suspended host) counts for no node.

Everything may come twice: joining again renews what is known of a node.

Source: the failure detector is the simple one by time limits (Chandra and Toueg 1996,
section 3); suspicion that is taken back keeps a slow node from losing its work.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from rayshim.lineage.transitions import InvalidTransition, Story

#: Seconds of silence after which a node is dead.
TIMEOUT_S = 5.0
#: Dead nodes that are remembered.
REMEMBERED = 1000
#: How the death of a node begins that went as it was asked to.
LEFT = "it left the cluster"


class NodeState(Enum):
    """States of a node."""

    UNKNOWN = 0
    JOINING = 1
    ALIVE = 2
    SUSPECT = 3
    LEAVING = 4
    DEAD = 5


class Expected(NamedTuple):
    """An earlier life of the head knew this node."""

    node_id: str


class Mourned(NamedTuple):
    """An earlier life of the head declared this node dead."""

    node_id: str
    death: str


class Joined(NamedTuple):
    """A node said who it is, on its ``channel`` (later ones have higher numbers)."""

    node_id: str
    channel: int


class Spoke(NamedTuple):
    """A node told its load."""

    node_id: str


class Leaving(NamedTuple):
    """A node will go."""

    node_id: str
    reason: str


class ChannelEnded(NamedTuple):
    """The connection of a node is at its end."""

    node_id: str
    channel: int


class TimePassed(NamedTuple):
    """Looks at limits of time; comes several times in a time limit."""


class AdmitNode(NamedTuple):
    """Take the node into use, or renew what is known of it."""

    node_id: str


class DismissNode(NamedTuple):
    """Tell a node that was declared dead to leave."""

    node_id: str
    reason: str


class MournNode(NamedTuple):
    """The node is dead: give up all that it held, and tell everybody."""

    node_id: str
    death: str


class AnnounceNode(NamedTuple):
    """A node may get work again, or no more."""

    node_id: str


Event = Expected | Mourned | Joined | Spoke | Leaving | ChannelEnded | TimePassed
Command = AdmitNode | DismissNode | MournNode | AnnounceNode


class Member:
    """One life of a node."""

    __slots__ = ("channel", "death", "heard_s", "leaving", "node_id", "state")

    def __init__(self, node_id: str, state: NodeState, now: float) -> None:
        self.node_id = node_id
        self.state = state
        #: Number of its channel; 0 in JOINING.
        self.channel = 0
        #: When it spoke last; for a DEAD one, when it was declared dead.
        self.heard_s = now
        #: Why it goes, in LEAVING.
        self.leaving = ""
        #: Why it died; not empty exactly in DEAD.
        self.death = ""


class Membership:
    """The machine. See the module's text for its rules.

    Args:
        timeout_s: Seconds of silence after which a node is dead.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        #: Node id -> node; of the DEAD at most REMEMBERED, oldest first.
        self.members: dict[str, Member] = {}
        #: When time passed last.
        self._looked_s: float | None = None
        self._story = Story()

    def handle(self, event: Event, now: float) -> list[Command]:
        """Takes one event at time ``now`` (seconds, monotonic).

        Raises:
            InvalidTransition: the event does not fit the node's state.
        """
        self._story.add(event, now)
        if isinstance(event, TimePassed):
            return self._look(now)
        member = self.members.get(event.node_id)
        state = member.state if member else NodeState.UNKNOWN
        method = _TABLE.get((state, type(event)))
        if method is None:
            story = self.story(event.node_id)
            raise InvalidTransition(event.node_id.encode(), state, event, story)
        if member is None:
            member = Member(event.node_id, state, now)
        return method(self, member, event, now)

    def story(self, node_id: str) -> list[str]:
        """The remembered events that name a node."""
        return self._story.of(node_id)

    def is_usable(self, node_id: str) -> bool:
        """Whether a node may get work."""
        member = self.members.get(node_id)
        return member is not None and member.state is NodeState.ALIVE

    def is_dead(self, node_id: str) -> bool:
        """Whether a node was declared dead."""
        member = self.members.get(node_id)
        return member is not None and member.state is NodeState.DEAD

    def validate(self) -> None:
        """Checks the invariants.

        Raises:
            AssertionError: one does not hold.
        """
        dead = 0
        for node_id, member in self.members.items():
            assert member.node_id == node_id
            assert member.state is not NodeState.UNKNOWN
            is_dead = member.state is NodeState.DEAD
            dead += is_dead
            assert is_dead == bool(member.death)
            assert (member.state is NodeState.LEAVING) == bool(member.leaving)
            if self._looked_s is not None and not is_dead:
                assert self._looked_s - member.heard_s < self.timeout_s
        assert dead <= REMEMBERED

    def _expect(self, member: Member, event: Expected, now: float) -> list[Command]:
        member.state = NodeState.JOINING
        self.members[member.node_id] = member
        return []

    def _mourned(self, member: Member, event: Mourned, now: float) -> list[Command]:
        self._die(member, event.death, now)
        return []

    def _join(self, member: Member, event: Joined, now: float) -> list[Command]:
        self.members[member.node_id] = member
        member.state = NodeState.ALIVE
        member.leaving = ""
        member.channel = event.channel
        member.heard_s = now
        return [AdmitNode(member.node_id)]

    def _refuse(self, member: Member, event: Any, now: float) -> list[Command]:
        return [DismissNode(member.node_id, member.death)]

    def _ignore(self, member: Member, event: Any, now: float) -> list[Command]:
        return []

    def _hear(self, member: Member, event: Any, now: float) -> list[Command]:
        member.heard_s = now
        return []

    def _trust(self, member: Member, event: Spoke, now: float) -> list[Command]:
        member.heard_s = now
        member.state = NodeState.ALIVE
        return [AnnounceNode(member.node_id)]

    def _leave(self, member: Member, event: Leaving, now: float) -> list[Command]:
        member.state = NodeState.LEAVING
        member.leaving = event.reason or "it left"
        member.heard_s = now
        return [AnnounceNode(member.node_id)]

    def _end(self, member: Member, event: ChannelEnded, now: float) -> list[Command]:
        if event.channel != member.channel:
            return []
        if member.state is NodeState.LEAVING:
            return self._die(member, f"{LEFT}: {member.leaving}", now)
        death = "its connection ended: its process died, or the network did"
        return self._die(member, death, now)

    def _look(self, now: float) -> list[Command]:
        looked_s, self._looked_s = self._looked_s, now
        pause = now - looked_s if looked_s is not None else 0.0
        if pause > self.timeout_s / 2:
            for member in self.members.values():
                if member.state is not NodeState.DEAD:
                    # Not past now: some may have spoken since.
                    member.heard_s = min(now, member.heard_s + pause)
        commands: list[Command] = []
        for member in list(self.members.values()):
            silent = now - member.heard_s
            if member.state is NodeState.DEAD:
                continue
            if silent >= self.timeout_s:
                if member.state is NodeState.JOINING:
                    death = (
                        f"it did not come back within {self.timeout_s:g} s of the "
                        "head's restart"
                    )
                else:
                    death = (
                        f"nothing was heard of it for {silent:.1f} s (limit "
                        f"{self.timeout_s:g} s): its process or host is stopped, "
                        "overloaded or cut off"
                    )
                commands += self._die(member, death, now)
            elif member.state is NodeState.ALIVE and silent >= self.timeout_s / 2:
                member.state = NodeState.SUSPECT
                commands.append(AnnounceNode(member.node_id))
        return commands

    def _die(self, member: Member, death: str, now: float) -> list[Command]:
        member.state = NodeState.DEAD
        member.death = death
        member.leaving = ""
        member.heard_s = now
        # To the end: the dead are kept in the order of their deaths.
        self.members.pop(member.node_id, None)
        self.members[member.node_id] = member
        dead = [one for one in self.members.values() if one.state is NodeState.DEAD]
        if len(dead) > REMEMBERED:
            del self.members[dead[0].node_id]
        return [MournNode(member.node_id, death)]


_S, _M = NodeState, Membership
_Method = Callable[[Membership, Member, Any, float], list[Command]]
_TABLE: dict[tuple[NodeState, type], _Method] = {
    (_S.UNKNOWN, Expected): _M._expect,
    (_S.JOINING, Expected): _M._ignore,
    (_S.ALIVE, Expected): _M._ignore,
    (_S.SUSPECT, Expected): _M._ignore,
    (_S.LEAVING, Expected): _M._ignore,
    (_S.DEAD, Expected): _M._ignore,
    (_S.UNKNOWN, Mourned): _M._mourned,
    (_S.JOINING, Mourned): _M._ignore,
    (_S.ALIVE, Mourned): _M._ignore,
    (_S.SUSPECT, Mourned): _M._ignore,
    (_S.LEAVING, Mourned): _M._ignore,
    (_S.DEAD, Mourned): _M._ignore,
    (_S.UNKNOWN, Joined): _M._join,
    (_S.JOINING, Joined): _M._join,
    (_S.ALIVE, Joined): _M._join,
    (_S.SUSPECT, Joined): _M._join,
    (_S.LEAVING, Joined): _M._join,
    (_S.DEAD, Joined): _M._refuse,
    (_S.UNKNOWN, Spoke): _M._ignore,
    (_S.JOINING, Spoke): _M._ignore,
    (_S.ALIVE, Spoke): _M._hear,
    (_S.SUSPECT, Spoke): _M._trust,
    (_S.LEAVING, Spoke): _M._hear,
    (_S.DEAD, Spoke): _M._refuse,
    (_S.UNKNOWN, Leaving): _M._ignore,
    (_S.JOINING, Leaving): _M._leave,
    (_S.ALIVE, Leaving): _M._leave,
    (_S.SUSPECT, Leaving): _M._leave,
    (_S.LEAVING, Leaving): _M._hear,
    (_S.DEAD, Leaving): _M._ignore,
    (_S.UNKNOWN, ChannelEnded): _M._ignore,
    (_S.JOINING, ChannelEnded): _M._ignore,
    (_S.ALIVE, ChannelEnded): _M._end,
    (_S.SUSPECT, ChannelEnded): _M._end,
    (_S.LEAVING, ChannelEnded): _M._end,
    (_S.DEAD, ChannelEnded): _M._ignore,
}
