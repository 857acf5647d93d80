"""Who waits for whom, at one instant, and which of the waits can never end.

A :class:`WaitGraph` is made of *facts*: what processes say of their waits and calls,
what owners say of the calls that make their objects, and what a node says of leases
and actors. It takes away all that may move, until nothing more can be taken away;
what is left is *stuck* (graph reduction: R. C. Holt, "Some deadlock properties of
computer systems", ACM Computing Surveys 4(3), 1972). Rules:

1. What is not known moves. Facts that are missing, late or of a process that died
   can therefore hide a deadlock, and never make one up.
2. A wait is stuck if it is certain (no timeout, no choice) and one of its objects is.
3. An object is stuck if the call that makes it is: it runs and its own thread is
   stuck; or it waits for arguments that are stuck, for an actor of which every slot
   is taken by stuck calls, or for resources that do not fit beside those that stuck
   holders have. A placement group that waits for its bundles is such a request, too.
4. A *deadlock* is a set of stuck things that are all waiting for one another: a
   strongly connected part of the graph, with a cycle.

Killing and cancelling can end any wait. So a deadlock does not count while the program
of its job runs code of its own: it may be about to do that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

#: A node of the graph: its kind and what it is about.
Node = tuple[str, str | bytes, str | bytes | int]
_Ask = Callable[[Node], bool]
#: Before a placement group's id: the id of its wait for bundles, as if of a lease.
GROUP_PREFIX = b"group"


class Wait(NamedTuple):
    """One wait of a process, see :class:`~..node_messages.Standing`."""

    number: int
    call: bytes
    group: str
    #: (object id, address of its owner).
    objects: tuple[tuple[bytes, str], ...]
    is_certain: bool
    label: str
    stops_all: bool = False


class Maker(NamedTuple):
    """The call that makes an object, as its owner knows it."""

    task_id: bytes
    #: "executor", "actor", "lease", "arguments" or "other".
    kind: str
    label: str
    address: str = ""
    actor_id: bytes = b""
    lease_ids: tuple[bytes, ...] = ()
    objects: tuple[tuple[bytes, str], ...] = ()
    slots: tuple[tuple[str, bytes], ...] = ()


class Process(NamedTuple):
    """What a process says of itself."""

    title: str
    waits: tuple[Wait, ...] = ()
    slots: Mapping[str, int] = {}
    accepted: Mapping[bytes, str] = {}
    constructing: bytes = b""
    is_waiting: bool = True


class Holder(NamedTuple):
    """Who has resources."""

    #: Executor that holds a lease; or the driver whose group it is.
    address: str
    units: Mapping[str, int]
    #: "task", "actor" or "group".
    kind: str = "task"


class Source(NamedTuple):
    """Resources that a lease could be given."""

    total: Mapping[str, int]
    holders: tuple[Holder, ...]


class WaitingLease(NamedTuple):
    """A request that waits for resources at its node, and can go nowhere else."""

    label: str
    need: Mapping[str, int]
    sources: tuple[Source, ...]
    #: Id of the group's wait, for a request in a group that has no bundles yet.
    behind: bytes = b""


class ActorFact(NamedTuple):
    """Where an actor is in its life."""

    #: "arguments", "placing", "creating" or "other".
    state: str
    lease_id: bytes = b""
    #: Process of its constructor.
    address: str = ""
    #: The object that counts its handles, and that object's owner.
    handle: tuple[bytes, str] = (b"", "")


class Found(NamedTuple):
    """One deadlock."""

    nodes: frozenset[Node]
    #: Its waits: (process, number) -> the cycle through it, one line for each wait.
    cycles: dict[tuple[str, int], list[str]]


class WaitGraph:
    """The facts of one look."""

    def __init__(self) -> None:
        #: Address -> what the process says; absent: it has not said anything.
        self.processes: dict[str, Process] = {}
        #: Object id -> its maker.
        self.makers: dict[bytes, Maker] = {}
        #: Lease id -> request that waits.
        self.leases: dict[bytes, WaitingLease] = {}
        #: Actor id -> where it is.
        self.actors: dict[bytes, ActorFact] = {}
        #: Job id -> address of its driver; absent: it has none (any more).
        self.drivers: dict[bytes, str] = {}

    def add(self, address: str, said: Process) -> None:
        """Take in what a process says; a second word only confirms the first."""
        first = self.processes.get(address)
        if first is not None:
            numbers = {wait.number for wait in said.waits}
            said = Process(
                said.title,
                tuple(wait for wait in first.waits if wait.number in numbers),
                said.slots,
                {**first.accepted, **said.accepted},
                said.constructing if said.constructing == first.constructing else b"",
                said.is_waiting and first.is_waiting,
            )
        self.processes[address] = said

    # Reduction.

    def stuck(self) -> dict[Node, list[Node]]:
        """Everything that is stuck -> the stuck things that it waits for."""
        start: list[Node] = [
            ("wait", address, wait.number)
            for address, process in self.processes.items()
            for wait in process.waits
        ]
        reads: dict[Node, list[Node]] = {}
        readers: dict[Node, list[Node]] = {}
        todo = deque(start)
        while todo:
            node = todo.popleft()
            if node in reads:
                continue
            found = reads[node] = []

            def note(other: Node, found: list[Node] = found) -> bool:
                found.append(other)
                return True

            self._is_stuck(node, note)
            for other in found:
                readers.setdefault(other, []).append(node)
                todo.append(other)
        standing = dict.fromkeys(reads)
        todo = deque(reads)
        while todo:
            node = todo.popleft()
            if node in standing and not self._is_stuck(node, standing.__contains__):
                del standing[node]
                todo.extend(readers.get(node, ()))
        return {
            node: [other for other in reads[node] if other in standing]
            for node in standing
        }

    def _is_stuck(self, node: Node, ask: _Ask) -> bool:
        """Whether a node is stuck if those are for which ``ask`` says so.

        Every node that matters is asked for, whatever the others say: the answers
        only ever change from stuck to moving, and so does the result.
        """
        kind, subject, detail = node
        return _RULES[kind](self, subject, detail, ask)

    def _wait_stuck(self, address: str, number: int, ask: _Ask) -> bool:
        for wait in self.processes[address].waits:
            if wait.number == number:
                # A choice moves by rule 2, but is a way to what it waits for.
                answers = [ask(("object", one, b"")) for one, _ in wait.objects]
                return wait.is_certain and any(answers)
        return False

    def _object_stuck(self, object_id: bytes, _: object, ask: _Ask) -> bool:
        maker = self.makers.get(object_id)
        if maker is None:
            return False
        if maker.kind == "executor":
            return ask(("call", maker.address, maker.task_id))
        if maker.kind == "arguments":
            return any([ask(("object", one, b"")) for one, _ in maker.objects])
        if maker.kind == "lease":
            answers = [ask(("call", where, call)) for where, call in maker.slots]
            answers += [ask(("lease", lease_id, b"")) for lease_id in maker.lease_ids]
            return bool(answers) and all(answers)
        if maker.kind == "actor" and maker.address:
            return self._sent_stuck(maker.address, maker.task_id, ask)
        if maker.kind == "actor":
            return self._unborn_stuck(maker.actor_id, ask)
        return False

    def _sent_stuck(self, address: str, task_id: bytes, ask: _Ask) -> bool:
        process = self.processes.get(address)
        if process is None or task_id not in process.accepted:
            return False
        runs = ask(("call", address, task_id))
        full = ask(("slots", address, process.accepted[task_id]))
        return runs or full

    def _unborn_stuck(self, actor_id: bytes, ask: _Ask) -> bool:
        actor = self.actors.get(actor_id)
        if actor is None:
            return False
        if actor.state == "placing":
            return ask(("lease", actor.lease_id, b""))
        if actor.state == "arguments":
            return ask(("object", actor.handle[0], b""))
        if actor.state == "creating":
            process = self.processes.get(actor.address)
            if process is not None and process.constructing:
                return ask(("call", actor.address, process.constructing))
        return False

    def _call_stuck(self, address: str, task_id: bytes, ask: _Ask) -> bool:
        process = self.processes.get(address)
        if process is None or not task_id:
            return False
        return any(
            [
                ask(("wait", address, wait.number))
                for wait in process.waits
                if wait.call == task_id
            ]
        )

    def _slots_stuck(self, address: str, group: str, ask: _Ask) -> bool:
        """Whether no call of a concurrency group can start any more."""
        process = self.processes.get(address)
        if process is None:
            return False
        taken: set[bytes] = set()
        is_stopped = False
        for wait in process.waits:
            is_constructor = wait.call == process.constructing
            stops = wait.stops_all or is_constructor
            if not wait.call or not (stops or wait.group == group):
                continue
            if ask(("wait", address, wait.number)):
                taken.add(wait.call)
                is_stopped = is_stopped or stops
        limit = process.slots.get(group, 0)
        return is_stopped or 0 < limit <= len(taken)

    def _lease_stuck(self, lease_id: bytes, _: object, ask: _Ask) -> bool:
        lease = self.leases.get(lease_id)
        if lease is not None and lease.behind:
            return ask(("lease", lease.behind, b""))
        if lease is None or not lease.sources:
            return False
        fits = False
        for source in lease.sources:
            free = dict(source.total)
            if not _covers(free, lease.need):
                # Nothing here would do; a node with more may join.
                return False
            for holder in source.holders:
                if self._holds_for_ever(holder, ask):
                    for name, units in holder.units.items():
                        free[name] = free.get(name, 0) - units
            fits = fits or _covers(free, lease.need)
        return not fits

    def _holds_for_ever(self, holder: Holder, ask: _Ask) -> bool:
        process = self.processes.get(holder.address)
        if process is None:
            return False
        if holder.kind == "actor":
            # With a slot free it might be told to exit.
            groups = [ask(("slots", holder.address, name)) for name in process.slots]
            return bool(groups) and all(groups)
        is_group = holder.kind == "group"
        return any(
            [
                ask(("wait", holder.address, wait.number))
                for wait in process.waits
                if bool(wait.call) != is_group
            ]
        )

    # Deadlocks.

    def deadlocks(self) -> list[Found]:
        """The deadlocks, but those whose program runs (or says nothing)."""
        edges = self.stuck()
        found = []
        for part in _components(edges):
            waits = [node for node in part if node[0] == "wait"]
            if waits and self.moving_drivers(part) == []:
                cycles = {
                    (str(node[1]), int(node[2])): self._lines(node, edges)
                    for node in sorted(waits, key=str)
                }
                found.append(Found(part, cycles))
        return found

    def suspect_drivers(self) -> list[str]:
        """Drivers whose word decides on a deadlock, and that have not spoken."""
        return [
            address
            for part in _components(self.stuck())
            for address in self.moving_drivers(part)
            if address not in self.processes
        ]

    def moving_drivers(self, part: Iterable[Node]) -> list[str]:
        """Drivers of the jobs of some nodes that are not known to be waiting."""
        jobs = {bytes(node[1])[20:24] for node in part if node[0] == "object"}  # type: ignore[arg-type]  # the subject of an object node is its id
        found = []
        for job in sorted(jobs):
            address = self.drivers.get(job)
            if address is not None:
                process = self.processes.get(address)
                if process is None or not process.is_waiting:
                    found.append(address)
        return found

    def _lines(self, start: Node, edges: Mapping[Node, list[Node]]) -> list[str]:
        """The shortest cycle through a wait, one line for each wait on it."""
        before: dict[Node, Node] = {}
        todo = deque([start])
        while todo and start not in before:
            node = todo.popleft()
            for other in edges[node]:
                if other not in before:
                    before[other] = node
                    todo.append(other)
        path = [start]
        node = before[start]
        while node != start:
            path.append(node)
            node = before[node]
        path.append(start)
        path.reverse()
        lines: list[str] = []
        parts: list[str] = []
        for node in path[:-1]:
            if node[0] == "wait" and parts:
                lines.append(" ".join(parts))
                parts = []
            parts.append(self._text(node))
        lines.append(" ".join(parts))
        return [line.replace(" ,", ",").rstrip() for line in lines]

    def _text(self, node: Node) -> str:
        kind, subject, detail = node
        if kind == "wait":
            process = self.processes[str(subject)]
            label = next(w.label for w in process.waits if w.number == detail)
            return f"{label or 'a thread'} ({process.title}) waits for"
        if kind == "object":
            assert isinstance(subject, bytes)
            maker = self.makers[subject]
            name = f"ObjectRef({subject.hex()[:16]}...) of {maker.label}"
            if maker.kind == "arguments":
                return f"{name}, which needs"
            if maker.kind == "lease":
                what = "is pending" if not maker.task_id else "waits to run"
                return f"{name}, which {what}"
            return name
        if kind == "call":
            return ", which runs and waits itself"
        if kind == "slots":
            return ", which cannot start: the calls that run there wait"
        lease = self.leases[bytes(subject)]  # type: ignore[arg-type]  # its id
        if lease.behind:
            return f"in placement group {lease.behind.hex()[10:22]}, which is pending"
        return f"(needs {_describe(lease.need)}, which those hold that wait)"


def _covers(free: Mapping[str, int], need: Mapping[str, int]) -> bool:
    return all(free.get(name, 0) >= units for name, units in need.items())


def _describe(need: Mapping[str, int]) -> str:
    from rayshim.lineage.resources import describe

    return describe(need)


def _components(edges: Mapping[Node, list[Node]]) -> list[frozenset[Node]]:
    """Strongly connected parts with a cycle (R. Tarjan, 1972, without recursion)."""
    order: dict[Node, int] = {}
    low: dict[Node, int] = {}
    open_nodes: dict[Node, None] = {}
    parts: list[frozenset[Node]] = []
    for root in edges:
        if root in order:
            continue
        stack = [(root, iter(edges[root]))]
        order[root] = low[root] = len(order)
        open_nodes[root] = None
        while stack:
            node, rest = stack[-1]
            for other in rest:
                if other not in order:
                    order[other] = low[other] = len(order)
                    open_nodes[other] = None
                    stack.append((other, iter(edges[other])))
                    break
                if other in open_nodes:
                    low[node] = min(low[node], order[other])
            else:
                stack.pop()
                if stack:
                    above = stack[-1][0]
                    low[above] = min(low[above], low[node])
                if low[node] == order[node]:
                    part = []
                    while True:
                        last, _ = open_nodes.popitem()
                        part.append(last)
                        if last == node:
                            break
                    if len(part) > 1 or node in edges[node]:
                        parts.append(frozenset(part))
    return parts


_G = WaitGraph
_RULES: dict[str, Callable[..., bool]] = {
    "wait": _G._wait_stuck,
    "object": _G._object_stuck,
    "call": _G._call_stuck,
    "slots": _G._slots_stuck,
    "lease": _G._lease_stuck,
}
