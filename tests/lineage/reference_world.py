"""Several reference tables that talk as docs/design.md says, and a naive judge.

Processes are letters; each pair has one ordered channel per direction, and any two
channels run at any speed against each other. ``Release`` may be delivered twice. The
judge knows every reference in every process and in every message, so it can tell
when a freed object was still within somebody's reach, and what is left at the end.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rayshim.lineage.references import ReferenceTable

#: Objects of one run: few, so that they meet in many ways.
MOST_OBJECTS = 5

Lent = tuple[bytes, str, int]


@dataclass(eq=False)
class Call:
    """One call whose arguments hold one reference."""

    caller: str
    callee: str
    object_id: bytes
    owner: str
    lend: int
    kept: bool = False
    answer: list[Lent] = field(default_factory=list)


@dataclass
class Process:
    """One process: its table and the calls that it accepted and started."""

    table: ReferenceTable
    accepted: list[Call] = field(default_factory=list)
    running: list[Call] = field(default_factory=list)
    fetching: set[bytes] = field(default_factory=set)


class World:
    """The processes, the channels between them, and the judge."""

    def __init__(self, names: str = "ABC", table: Any = ReferenceTable) -> None:
        self.processes = {name: Process(table(name)) for name in names}
        #: (from, to) -> messages on their way: (kind, content).
        self.channels: dict[tuple[str, str], deque[tuple[str, Any]]] = {
            (a, b): deque() for a in names for b in names if a != b
        }
        self.owners: dict[bytes, str] = {}
        #: Object -> the object inside its value.
        self.inside: dict[bytes, bytes] = {}
        #: (process, object) -> references that user code holds there.
        self.uses: Counter[tuple[str, bytes]] = Counter()
        self.freed: set[bytes] = set()
        self.deliver_releases_twice = False

    # What user code does.

    def create(self, name: str, inner: bytes | None = None) -> bytes:
        """A new object, with a reference inside its value or without."""
        object_id = b"%s%d" % (name.encode(), len(self.owners))
        entry = self.processes[name].table.own(object_id)
        if inner is not None:
            self.processes[name].table.contain(entry, [inner])
            self.inside[object_id] = inner
        self.owners[object_id] = name
        self.uses[name, object_id] += 1
        self.settle(name)
        return object_id

    def copy(self, name: str, object_id: bytes) -> None:
        """User code makes one more reference."""
        self.processes[name].table.hold(object_id)
        self.uses[name, object_id] += 1

    def drop(self, name: str, object_id: bytes) -> None:
        """User code lets go of one reference."""
        self.uses[name, object_id] -= 1
        self.processes[name].table.drop(object_id)
        self.settle(name)

    def call(self, caller: str, callee: str, object_id: bytes) -> Call:
        """Push a call; the caller pins the argument until the answer."""
        table = self.processes[caller].table
        table.hold(object_id)
        owner = self.owners[object_id]
        lend = table.promise(object_id) if callee != owner else 0
        call = Call(caller, callee, object_id, owner, lend)
        self._send(caller, callee, "call", call)
        return call

    def start(self, call: Call) -> None:
        """Begin an accepted call: its reference is unpickled."""
        process = self.processes[call.callee]
        process.accepted.remove(call)
        process.running.append(call)
        entry = process.table.receive(
            call.object_id, call.owner, call.caller, call.lend, register=False
        )
        entry.local += 1
        self.uses[call.callee, call.object_id] += 1

    def finish(self, call: Call, *, keeps: bool, returns: bool = False) -> None:
        """End a call; it may keep its reference and return it inside a value."""
        name = call.callee
        process = self.processes[name]
        process.running.remove(call)
        object_id = call.object_id
        if returns and self.uses[name, object_id] > 0:
            call.answer.append(self._lend(name, call.caller, object_id))
        if not keeps and self.uses[name, object_id] > 0:
            self.uses[name, object_id] -= 1
            process.table.drop(object_id)
        call.kept = process.table.keep(object_id, call.caller, call.lend)
        self.settle(name)
        self._send(name, call.caller, "result", call)

    def give_back(self, call: Call) -> None:
        """The callee returns an unstarted call, as StealTasks asks."""
        self.processes[call.callee].accepted.remove(call)
        self._send(call.callee, call.caller, "stolen", call)

    def fetch(self, name: str, object_id: bytes) -> None:
        """Ask the owner for a value that this process borrows."""
        process = self.processes[name]
        if object_id not in process.fetching:
            process.fetching.add(object_id)
            self._send(name, self.owners[object_id], "fetch", object_id)

    def read(self, name: str, object_id: bytes) -> bytes | None:
        """Take the reference out of a value that is here."""
        entry = self.processes[name].table.entries[object_id]
        for inner in entry.contains:
            self.copy(name, inner)
            return inner
        return None

    # What the transport and the shells do.

    def deliver(self, source: str, target: str) -> None:
        """Hand over the oldest message of one channel."""
        kind, content = self.channels[source, target].popleft()
        getattr(self, f"_on_{kind}")(source, target, content)
        if kind == "release" and self.deliver_releases_twice:
            self._on_release(source, target, content)
        self.settle(target)

    def deliver_all(self) -> None:
        """Run the transport until nothing is on its way."""
        while waiting := [pair for pair, queue in self.channels.items() if queue]:
            for pair in waiting:
                self.deliver(*pair)

    def settle(self, name: str) -> None:
        """Empty the outboxes of a table and judge what it freed."""
        table = self.processes[name].table
        freed, table.freed = table.freed, []
        releases, table.releases = table.releases, {}
        borrows, table.borrows = table.borrows, {}
        for entry in freed:
            self.freed.add(entry.object_id)
        for peer, items in releases.items():
            self._send(name, peer, "release", items)
        for owner, ids in borrows.items():
            self._send(name, owner, "borrow", ids)
        for entry in freed:
            reach = self.who_reaches(entry.object_id)
            assert not reach, f"{entry.object_id!r} was freed, but {reach} has it"
        table.validate()

    def _send(self, source: str, target: str, kind: str, content: Any) -> None:
        self.channels[source, target].append((kind, content))

    def _lend(self, name: str, to: str, object_id: bytes) -> Lent:
        owner = self.owners[object_id]
        table = self.processes[name].table
        lend = table.lend(object_id, to) if to != owner else 0
        return object_id, owner, lend

    def _on_call(self, source: str, target: str, call: Call) -> None:
        self.processes[target].accepted.append(call)

    def _on_result(self, source: str, target: str, call: Call) -> None:
        table = self.processes[target].table
        for object_id, owner, lend in call.answer:
            table.receive(object_id, owner, source, lend).local += 1
            self.uses[target, object_id] += 1
        self._end_call(call, kept=call.kept)

    def _on_stolen(self, source: str, target: str, call: Call) -> None:
        self._end_call(call, kept=None)

    def _end_call(self, call: Call, *, kept: bool | None) -> None:
        table = self.processes[call.caller].table
        if call.lend and kept:
            table.confirm(call.object_id, call.callee, call.lend)
        elif call.lend and kept is False:
            table.release(call.object_id, call.callee, call.lend)
        table.drop(call.object_id)

    def _on_fetch(self, source: str, target: str, object_id: bytes) -> None:
        entry = self.processes[target].table.entries.get(object_id)
        inner = entry.contains if entry is not None else ()
        lent = [self._lend(target, source, one) for one in inner]
        self._send(target, source, "objects", (object_id, lent))

    def _on_objects(self, source: str, target: str, content: Any) -> None:
        object_id, lent = content
        process = self.processes[target]
        process.fetching.discard(object_id)
        for inner, owner, lend in lent:
            process.table.receive(inner, owner, source, lend).local += 1
        entry = process.table.entries.get(object_id)
        if entry is None or entry.contains:
            for inner, _, _ in lent:
                process.table.drop(inner)
        else:
            entry.contains = tuple(inner for inner, _, _ in lent)

    def _on_release(self, source: str, target: str, items: Any) -> None:
        for object_id, lend in items:
            self.processes[target].table.release(object_id, source, lend)

    def _on_borrow(self, source: str, target: str, ids: list[bytes]) -> None:
        table = self.processes[target].table
        lends = [(one, table.register_borrower(one, source)) for one in ids]
        self._send(target, source, "borrow_ack", lends)

    def _on_borrow_ack(self, source: str, target: str, lends: Any) -> None:
        for object_id, lend in lends:
            self.processes[target].table.acknowledge(object_id, lend)

    # The judge.

    def who_reaches(self, object_id: bytes) -> list[str]:
        """Everybody who could still come to the object."""
        reach = [
            f"a reference in {name}"
            for (name, one), count in self.uses.items()
            if one == object_id and count > 0
        ]
        for (source, target), queue in self.channels.items():
            for kind, content in queue:
                if kind in ("call", "result", "stolen"):
                    ids = [content.object_id]
                elif kind == "objects":
                    ids = [inner for inner, _, _ in content[1]]
                else:
                    continue
                if object_id in ids:
                    reach.append(f"a {kind} from {source} to {target}")
        for name, process in self.processes.items():
            for call in process.accepted + process.running:
                if call.object_id == object_id:
                    reach.append(f"a call in {name}")
        for outer, inner in self.inside.items():
            if inner == object_id and outer not in self.freed:
                reach.append(f"the value of {outer!r}")
        return reach

    def calls(self, choose: Callable[[Process], list[Call]]) -> list[Call]:
        """All accepted or running calls, in a fixed order."""
        return [call for one in self.processes.values() for call in choose(one)]

    def end(self) -> None:
        """Let every process finish and forget; then nothing may be left."""
        self.deliver_all()
        while calls := self.calls(lambda one: one.accepted):
            for call in calls:
                self.start(call)
        while calls := self.calls(lambda one: one.running):
            for call in calls:
                self.finish(call, keeps=False)
        self.deliver_all()
        for (name, object_id), count in sorted(self.uses.items()):
            for _ in range(count):
                self.drop(name, object_id)
        self.deliver_all()
        left = [
            (name, entry)
            for name, process in self.processes.items()
            for entry in process.table.entries.values()
        ]
        assert not left, f"nobody needs these, and they are kept: {left}"
        for name, process in self.processes.items():
            process.table.validate()
            assert not any(process.table._lent.values()), name
        assert self.freed == set(self.owners)

    def one_step(self, draw: Callable[[int], int]) -> None:
        """Any one thing that can happen now; ``draw(n)`` gives one of 0 to n - 1."""
        held = sorted(pair for pair, count in self.uses.items() if count > 0)
        steps: list[Callable[[], Any]] = []
        if len(self.owners) < MOST_OBJECTS:
            for name in self.processes:
                steps.append(lambda name=name: self.create(name))
        for name, one in held:
            steps.append(lambda name=name, one=one: self.copy(name, one))
            steps.append(lambda name=name, one=one: self.drop(name, one))
            if len(self.owners) < MOST_OBJECTS:
                steps.append(lambda name=name, one=one: self.create(name, one))
            for callee in self.processes:
                if callee != name:
                    steps.append(
                        lambda name=name, callee=callee, one=one: self.call(
                            name, callee, one
                        )
                    )
            if one in self.inside:
                steps.append(lambda name=name, one=one: self.read(name, one))
                if self.owners[one] != name:
                    steps.append(lambda name=name, one=one: self.fetch(name, one))
        progress: list[Callable[[], Any]] = []
        for pair, queue in self.channels.items():
            if queue:
                progress.append(lambda pair=pair: self.deliver(*pair))
        for process in self.processes.values():
            for call in process.accepted:
                progress.append(lambda call=call: self.start(call))
                progress.append(lambda call=call: self.give_back(call))
            for call in process.running:
                for keeps, returns in ((False, False), (True, False), (False, True)):
                    progress.append(
                        lambda call=call, keeps=keeps, returns=returns: self.finish(
                            call, keeps=keeps, returns=returns
                        )
                    )
        # Half of the steps let something go on, or the channels would only fill.
        chosen = progress if progress and draw(2) else steps or progress
        if chosen:
            chosen[draw(len(chosen))]()
