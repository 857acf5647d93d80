"""A world of up to three reference tables, for the explorer.

Channels are ordered and reliable until their end: the end of a process is the last
message on each channel from it, so everybody hears all that it said and then that it
is gone, each at its own time. What is sent to a dead process vanishes. On top of that
messages of the kinds in ``doubled`` may come twice, the second time behind all that was
on its way then.

What the table needs from its channels: everything comes once and in order, as TCP and
unix sockets give it, and a broken connection counts as a death. Of late copies it
tolerates only those of registrations and of their answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rayshim.lineage.explore import Step
from rayshim.lineage.references import ReferenceTable
from twins import twin_of

#: Objects of the owner, the first process.
X, Y = b"x", b"y"


class References:
    """Processes that hand references around; the first owns all objects.

    Args:
        names: one letter for each process.
        objects: how many objects there are, 1 or 2; the second holds the first.
        hand_overs: how often a reference may be handed over, in all.
        pins: how many calls of the owner may keep the first object as lineage.
        deaths: how many processes may die.
        doubled: kinds of messages that may come twice.
        doubles: how many messages may come twice, in all.
        by_call: references also travel as arguments of calls.
        by_value: references also travel inside values.
        on_the_way: the judge counts references in messages too, not only in hands.
        table: the class to explore.
    """

    def __init__(
        self,
        names: str = "OAB",
        *,
        objects: int = 1,
        hand_overs: int = 2,
        pins: int = 0,
        deaths: int = 0,
        doubled: tuple[str, ...] = (),
        doubles: int = 0,
        by_call: bool = True,
        by_value: bool = True,
        on_the_way: bool = True,
        table: Any = ReferenceTable,
    ) -> None:
        self.options = {
            "objects": objects,
            "hand_overs": hand_overs,
            "pins": pins,
            "deaths": deaths,
            "doubled": doubled,
            "doubles": doubles,
            "by_call": by_call,
            "by_value": by_value,
            "on_the_way": on_the_way,
        }
        self._table = table
        self.names = names
        self.owner = names[0]
        self.hand_overs = hand_overs
        self.pins = pins
        self.deaths = deaths
        self.doubles = doubles
        self.tables: dict[str, Any] = {name: table(name) for name in names}
        self.channels: dict[tuple[str, str], list[Step]] = {
            (a, b): [] for a in names for b in names if a != b
        }
        #: (process, object) -> references in user code there.
        self.uses: dict[tuple[str, bytes], int] = {}
        #: Process -> calls that it accepted or runs: (number, caller, object, lend).
        self.accepted: dict[str, list[Step]] = {name: [] for name in names}
        self.running: dict[str, list[Step]] = {name: [] for name in names}
        #: Number -> (caller, callee, object, lend) of calls without an answer.
        self.calls: dict[int, tuple[str, str, bytes, int]] = {}
        self.numbers = 0
        self.dead: list[str] = []
        #: (process, dead one) pairs whose notice has arrived.
        self.buried: set[tuple[str, str]] = set()
        self.freed: list[bytes] = []
        #: (process, object, whom it got it from) while the owner does not know it.
        self.origins: set[tuple[str, bytes, str]] = set()
        self.fetching: set[str] = set()
        self.made = 0

    def __repr__(self) -> str:
        default = References.__init__.__kwdefaults__
        parts = [repr(self.names)]
        parts += [
            f"{name}={value!r}"
            for name, value in self.options.items()
            if value != default[name]
        ]
        if self._table is not ReferenceTable:
            parts.append(f"table={self._table.__name__}")
        return f"References({', '.join(parts)})"

    # -- the world as the explorer sees it ---------------------------------------

    def clone(self) -> References:
        """A copy that shares nothing that can change."""
        return twin_of(self)

    def key(self) -> Any:
        """All that matters, in one order."""
        tables = []
        for name, table in self.tables.items():
            if name in self.dead:
                continue
            tables.append(
                [
                    (
                        entry.object_id,
                        entry.local,
                        _sorted(entry.lends),
                        entry.next_lend,
                        _sorted(entry.held),
                        entry.registered,
                        entry.contains,
                        entry.lineage,
                        entry.lost,
                    )
                    for _, entry in sorted(table.entries.items())
                ]
            )
        return (
            tables,
            [queue for queue in self.channels.values()],
            _sorted(self.uses),
            self.accepted,
            self.running,
            _sorted(self.calls),
            self.made,
            self.pins,
            self.hand_overs,
            self.deaths,
            self.doubles,
            self.dead,
            sorted(self.buried),
            sorted(self.origins),
            sorted(self.fetching),
            self.freed,
        )

    def steps(self) -> Iterator[Step]:
        """Everything that can happen."""
        if self.made < self.options["objects"] and self.owner not in self.dead:
            if not self.made or (self.uses[self.owner, X] and X not in self.freed):
                yield ("create",)
        for pair, queue in self.channels.items():
            if queue and pair[1] not in self.dead:
                yield ("deliver", *pair)
                if self.doubles and queue[0][0] in self.options["doubled"]:
                    yield ("deliver_twice", *pair)
        for name in self.names:
            if name in self.dead:
                continue
            for call in self.accepted[name]:
                yield "start", name, call[0]
                yield "give_back", name, call[0]
            for call in self.running[name]:
                yield "finish", name, call[0]
        for (name, object_id), count in sorted(self.uses.items()):
            if not count or name in self.dead:
                continue
            yield "drop", name, object_id
            entry = self.tables[name].entries.get(object_id)
            if object_id == Y and entry is not None:
                if entry.contains:
                    if not self.uses.get((name, X)):
                        yield "read", name
                elif name != self.owner and name not in self.fetching:
                    yield "fetch", name
            if not self.hand_overs:
                continue
            for other in self.names:
                if other == name or (name, other) in self.buried:
                    continue
                if self.options["by_value"]:
                    yield "lend", name, other, object_id
                if self.options["by_call"]:
                    yield "call", name, other, object_id
        if self.owner not in self.dead:
            if self.pins and self.uses.get((self.owner, X)):
                yield ("pin",)
            entry = self.tables[self.owner].entries.get(X)
            if entry is not None and entry.lineage:
                yield ("unpin",)
        if self.deaths:
            for name in self.names:
                if name not in self.dead:
                    yield "die", name

    def check(self) -> None:
        """Nothing is freed too early, nothing is left, and the tables are sound."""
        for name, table in self.tables.items():
            if name not in self.dead:
                table.validate()
        for object_id in self.freed:
            reach = self._reach(object_id)
            assert not reach, f"{object_id!r} was freed too early: {'; '.join(reach)}"
        if not self._is_quiet():
            return
        left = [
            f"{name} keeps {entry}"
            for name, table in self.tables.items()
            if name not in self.dead
            for entry in table.entries.values()
        ]
        assert not left, f"nobody needs these, and they stay: {'; '.join(left)}"
        for name, table in self.tables.items():
            if name not in self.dead:
                assert not any(table._lent.values()), f"{name} counts lends of nothing"

    def _is_quiet(self) -> bool:
        live = [name for name in self.names if name not in self.dead]
        return not (
            any(queue for pair, queue in self.channels.items() if pair[1] in live)
            or any(self.accepted[name] or self.running[name] for name in live)
            or any(n for (name, _), n in self.uses.items() if name in live)
            or any(one.lineage for one in self.tables[self.owner].entries.values())
        )

    def _reach(self, object_id: bytes) -> list[str]:
        """Who has the freed object and a right to it."""
        if self.owner in self.dead:
            return []
        found = []
        for (name, one), count in sorted(self.uses.items()):
            if one == object_id and count and self._is_entitled(name, object_id):
                found.append(f"{name} has a reference")
        for (source, target), queue in self.channels.items():
            if target in self.dead or source in self.dead:
                continue
            if not self.options["on_the_way"]:
                continue
            if not self._is_entitled(source, object_id):
                continue
            for message in queue:
                if message[0] in ("reference", "call") and object_id in message:
                    found.append(f"a {message[0]} is on its way to {target}")
        for name in self.names:
            for call in self.accepted[name] + self.running[name]:
                live = name not in self.dead and self._is_entitled(call[1], object_id)
                if live and call[2] == object_id and name != self.owner:
                    found.append(f"a call in {name} has it")
        if object_id == X and self.made > 1 and Y not in self.freed:
            found.append("y holds it")
        return found

    def _is_entitled(self, name: str, object_id: bytes) -> bool:
        """A borrower may lose what a process gave it that died before the owner knew
        of the borrower: nobody was left who could tell the owner in time."""
        if name in self.dead:
            return False
        return not any(
            self.origins & {(name, object_id, lender)} for lender in self.dead
        )

    # -- what user code does -----------------------------------------------------

    def create(self) -> None:
        """Make the next object; the second holds the first."""
        object_id = (X, Y)[self.made]
        self.made += 1
        table = self.tables[self.owner]
        entry = table.own(object_id)
        entry.value = "value"
        if object_id == Y:
            table.contain(entry, [X])
        self.uses[self.owner, object_id] = 1

    def lend(self, name: str, to: str, object_id: bytes) -> None:
        """Send a value with the reference inside."""
        self.hand_overs -= 1
        table = self.tables[name]
        is_home = to == self.owner
        lend = table.lend_home(object_id) if is_home else table.lend(object_id, to)
        self._send(name, to, ("reference", object_id, lend))

    def call(self, name: str, to: str, object_id: bytes) -> None:
        """Push a call with the reference in its arguments."""
        self.hand_overs -= 1
        table = self.tables[name]
        table.hold(object_id)
        lend = table.promise(object_id) if to != self.owner else 0
        self.numbers += 1
        self.calls[self.numbers] = (name, to, object_id, lend)
        self._send(name, to, ("call", self.numbers, object_id, lend))

    def drop(self, name: str, object_id: bytes) -> None:
        """Forget one reference."""
        self.uses[name, object_id] -= 1
        self.tables[name].drop(object_id)
        self._settle(name)

    def pin(self) -> None:
        """A call that may run again had the first object as an argument."""
        self.pins -= 1
        self.tables[self.owner].pin_lineage(X)

    def unpin(self) -> None:
        """That call is forgotten."""
        self.tables[self.owner].unpin_lineage(X)
        self._settle(self.owner)

    def fetch(self, name: str) -> None:
        """Ask for the value of the object that holds another one."""
        self.fetching.add(name)
        self._send(name, self.owner, ("fetch",))

    def read(self, name: str) -> None:
        """Take the inner reference out of a value that is here."""
        self.tables[name].hold(X)
        self._use(name, X)

    # -- what executors do -------------------------------------------------------

    def start(self, name: str, number: int) -> None:
        """Begin a call: its argument is unpickled."""
        call = _take(self.accepted[name], number)
        self.running[name].append(call)
        _, caller, object_id, lend = call
        table = self.tables[name]
        entry = table.receive(object_id, self.owner, caller, lend, register=False)
        entry.local += 2  # the call's own count, and user code's
        self._use(name, object_id, caller)
        self._settle(name)

    def finish(self, name: str, number: int) -> None:
        """End a call; user code may still have the reference."""
        call = _take(self.running[name], number)
        _, caller, object_id, lend = call
        table = self.tables[name]
        table.unpin(object_id)
        kept = table.keep(object_id, caller, lend)
        self._settle(name)
        self._send(name, caller, ("result", number, kept))

    def give_back(self, name: str, number: int) -> None:
        """Return a call that has not started."""
        call = _take(self.accepted[name], number)
        self._send(name, call[1], ("stolen", number))

    # -- what the network does ---------------------------------------------------

    def deliver(self, source: str, target: str) -> None:
        """Hand over the oldest message of a channel."""
        message = self.channels[source, target].pop(0)
        getattr(self, f"_on_{message[0]}")(source, target, *message[1:])
        self._settle(target)

    def deliver_twice(self, source: str, target: str) -> None:
        """Hand over the oldest message, and leave a copy at the end of the channel."""
        self.doubles -= 1
        queue = self.channels[source, target]
        has_ended = queue[-1][0] == "end"
        queue.insert(len(queue) - has_ended, queue[0])
        self.deliver(source, target)

    def die(self, name: str) -> None:
        """End a process between two messages."""
        self.deaths -= 1
        self.dead.append(name)
        for (source, target), queue in self.channels.items():
            if target == name:
                queue.clear()
            elif source == name and target not in self.dead:
                queue.append(("end",))
        self.accepted[name].clear()
        self.running[name].clear()
        for pair in [pair for pair in self.uses if pair[0] == name]:
            del self.uses[pair]
        self.fetching.discard(name)
        self.calls = {n: c for n, c in self.calls.items() if c[0] != name}

    # -- what processes do with messages -----------------------------------------

    def _on_reference(
        self, source: str, name: str, object_id: bytes, lend: int
    ) -> None:
        entry = self.tables[name].receive(object_id, self.owner, source, lend)
        entry.local += 1
        self._use(name, object_id, source)

    def _on_call(
        self, source: str, name: str, number: int, object_id: bytes, lend: int
    ) -> None:
        self.accepted[name].append((number, source, object_id, lend))

    def _on_result(self, source: str, name: str, number: int, kept: bool) -> None:
        _, _, object_id, lend = self.calls.pop(number)
        table = self.tables[name]
        if lend and kept:
            table.confirm(object_id, source, lend)
        elif lend:
            table.release(object_id, source, lend)
        table.drop(object_id)

    def _on_stolen(self, source: str, name: str, number: int) -> None:
        _, _, object_id, _ = self.calls.pop(number)
        self.tables[name].drop(object_id)

    def _on_fetch(self, source: str, name: str) -> None:
        table = self.tables[name]
        entry = table.entries.get(Y)
        lend = table.lend(X, source) if entry is not None else 0
        self._send(name, source, ("objects", lend))

    def _on_objects(self, source: str, name: str, lend: int) -> None:
        table = self.tables[name]
        self.fetching.discard(name)
        if not lend:
            return
        table.receive(X, self.owner, source, lend).local += 1
        entry = table.entries.get(Y)
        if entry is None or entry.contains:
            table.drop(X)
        else:
            entry.contains = (X,)

    def _on_release(self, source: str, name: str, object_id: bytes, lend: int) -> None:
        self.tables[name].release(object_id, source, lend)

    def _on_borrow(self, source: str, name: str, object_id: bytes, number: int) -> None:
        table = self.tables[name]
        lend = table.register_borrower(object_id, source)
        if lend and object_id in self.freed:
            # It had gone since only lineage needed it: it is made again.
            entry = table.entries[object_id]
            entry.value, entry.lost = "value", False
            self.freed.remove(object_id)
        self._send(name, source, ("acknowledged", object_id, lend, number))

    def _on_acknowledged(
        self, source: str, name: str, object_id: bytes, lend: int, number: int
    ) -> None:
        self.tables[name].acknowledge(object_id, lend, number, source)
        if lend:
            self._known(name, object_id)

    def _on_end(self, source: str, name: str) -> None:
        self.buried.add((name, source))
        table = self.tables[name]
        table.peer_died(source)
        self.fetching.discard(name if source == self.owner else "")
        for number, call in list(self.calls.items()):
            if call[:2] == (name, source):
                del self.calls[number]
                table.drop(call[2])

    # -- small things ------------------------------------------------------------

    def _use(self, name: str, object_id: bytes, lender: str = "") -> None:
        self.uses[name, object_id] = self.uses.get((name, object_id), 0) + 1
        if lender == self.owner and self._is_entitled(lender, object_id):
            self._known(name, object_id)
        elif lender == self.owner:
            # It is lost, as the owner itself got it back too late.
            self.origins.add((name, object_id, self.dead[0]))
        elif lender:
            entry = self.tables[name].entries[object_id]
            is_known = entry.registered and "" not in (entry.held or {})
            if object_id in self.freed if name == self.owner else not is_known:
                # What the lender may lose, the receiver may.
                chain = [
                    one[2] for one in self.origins if one[:2] == (lender, object_id)
                ]
                for one in (lender, *chain):
                    self.origins.add((name, object_id, one))

    def _known(self, name: str, object_id: bytes) -> None:
        self.origins = {one for one in self.origins if one[:2] != (name, object_id)}

    def _settle(self, name: str) -> None:
        table = self.tables[name]
        self.freed += [entry.object_id for entry in table.freed if name == self.owner]
        self.freed += [entry.object_id for entry, *_ in table.faded]
        table.freed = []
        table.faded = []
        releases, table.releases = table.releases, {}
        for peer, items in releases.items():
            for item in items:
                self._send(name, peer, ("release", *item))
        borrows, table.borrows = table.borrows, {}
        for owner, ids in borrows.items():
            for object_id in ids:
                if (name, owner) in self.buried:
                    table.peer_died(owner)
                else:
                    number = table.registration(object_id)
                    self._send(name, owner, ("borrow", object_id, number))

    def _send(self, source: str, target: str, message: Step) -> None:
        if target not in self.dead:
            self.channels[source, target].append(message)


def _take(calls: list[Step], number: int) -> Step:
    for call in calls:
        if call[0] == number:
            calls.remove(call)
            return call
    raise KeyError(number)


def _sorted(items: dict[Any, Any] | None) -> list[tuple[Any, Any]]:
    return sorted((items or {}).items())
