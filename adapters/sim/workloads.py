"""User code for simulated clusters, and what it must give whatever breaks.

A *must* value belongs to a call that may be repeated and whose arguments can be made
again or lie with the driver: no fault may turn it into an error. Everything else may
end with a typed error.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from rayshim.adapters.sim.values import Large, Ref, SimError

if TYPE_CHECKING:
    from rayshim.adapters.sim.executor import Executor
    from rayshim.adapters.sim.peer import Driver, Peer

Code = Generator[tuple[Any, ...], Any, Any]
ALWAYS = -1


# -- tasks -----------------------------------------------------------------------------


def add(peer: Peer, *terms: int) -> Code:
    """The sum, after a while."""
    yield "sleep", 0.002 * (1 + sum(terms) % 7)
    return sum(terms)


def slow(peer: Peer, value: int) -> Code:
    """The same value, after a longer while."""
    yield "sleep", 0.5
    return value


def grow(peer: Peer, before: tuple[int, ...]) -> Code:
    """A large value made of another one."""
    yield "sleep", 0.01
    return Large((*before, len(before)))


def tree(peer: Peer, depth: int) -> Code:
    """Counts the leaves below, each by a task of its own."""
    if depth == 0:
        yield "sleep", 0.003
        return 1
    refs = [peer.call("tree", depth - 1, retries=ALWAYS) for _ in range(2)]
    total = 0
    for ref in refs:
        total += yield "get", ref
    return total


def look(peer: Peer, box: tuple[Ref]) -> Code:
    """The value of a reference that came inside an argument."""
    value = yield "get", box[0]
    return value


def pass_on(peer: Peer, box: tuple[Ref], hops: int) -> Code:
    """Has another task look, some processes away."""
    if hops == 0:
        ref = peer.call("look", (box[0],), retries=ALWAYS)
    else:
        ref = peer.call("pass_on", (box[0],), hops - 1, retries=ALWAYS)
    del box
    value = yield "get", ref
    return value


def give_back(peer: Peer, box: tuple[Ref]) -> Code:
    """The reference itself, inside the value."""
    yield "sleep", 0.001
    return (box[0], 7)


def make(peer: Peer, number: int) -> Code:
    """A reference to a value that the executor itself owns."""
    yield "sleep", 0.001
    return (peer.put(Large((number,))), peer.put(number))


FUNCTIONS = {
    one.__name__: one for one in (add, slow, grow, tree, look, pass_on, give_back, make)
}


class Counter:
    """An actor that counts, and keeps references."""

    def __init__(self, peer: Executor, start: int) -> None:
        self.peer = peer
        self.count = start
        self.kept: list[Ref] = []

    def increase(self, by: int) -> Code:
        """The count after this call."""
        yield "sleep", 0.002
        self.count += by
        return self.count

    def keep(self, box: tuple[Ref]) -> Code:
        """Holds a reference until :meth:`let_go`."""
        yield "sleep", 0.001
        self.kept.append(box[0])
        return len(self.kept)

    def own(self, value: Any) -> Code:
        """Puts a value of its own and keeps it."""
        yield "sleep", 0.001
        self.kept.append(self.peer.put(value))
        return len(self.kept)

    def hand(self, box: tuple[Ref], times: int) -> Code:
        """Gives what was kept first to another actor, several times."""
        refs = [
            self.peer.method(box[0], "keep", (self.kept[0],))
            for _ in range(times)
            if self.kept
        ]
        del box
        for ref in refs:
            yield "get", ref
        return len(refs)

    def first(self) -> Code:
        """The value of what was kept first."""
        if not self.kept:
            yield "sleep", 0.001
            return None
        value = yield "get", self.kept[0]
        return value

    def give(self) -> Code:
        """What was kept first, as a reference."""
        yield "sleep", 0.001
        return tuple(self.kept[:1])

    def let_go(self) -> Code:
        """Forgets everything."""
        yield "sleep", 0.001
        self.kept.clear()
        return 0


CLASSES = {"Counter": Counter}


# -- programs --------------------------------------------------------------------------


class Program:
    """What the driver's programs share: they check what they get."""

    def __init__(self, driver: Driver, rng: random.Random, rounds: int) -> None:
        self.driver = driver
        self.rng = rng
        self.rounds = rounds

    def must(self, ref: Ref, wanted: Any, what: str) -> Code:
        """Get a value that no fault may take."""
        try:
            value = yield "get", ref
        except SimError as error:
            cluster = self.driver.cluster
            if (
                cluster.faults["channel"]
                and "OwnerDied" in f"{error.kind} {error.text}"
            ):
                cluster.count_error(error)  # a broken channel counts as a death
            else:
                self.driver.kernel.fail(f"{what} is {error.kind} {error.text}")
            return
        if value != wanted:
            self.driver.kernel.fail(f"{what} is {value!r}, not {wanted!r}")

    def may(self, ref: Ref) -> Code:
        """Get a value or a typed error."""
        try:
            value = yield "get", ref
        except SimError as error:
            self.driver.cluster.count_error(error)
            return error
        return value

    def sums(self) -> Code:
        """Many short calls, some of them at most once."""
        for _ in range(self.rounds):
            refs = [
                self.driver.call("add", n, 1, retries=ALWAYS)
                for n in range(self.rng.randrange(1, 30))
            ]
            once = [self.driver.call("add", n, 5, retries=0) for n in range(4)]
            for number, ref in enumerate(refs):
                yield from self.must(ref, number + 1, "a sum")
            for number, ref in enumerate(once):
                value = yield from self.may(ref)
                if not isinstance(value, SimError) and value != number + 5:
                    self.driver.kernel.fail(f"a single sum is {value!r}")
            del refs, once, ref
            yield "sleep", self.rng.random() * 0.3

    def trees(self) -> Code:
        """Tasks that call tasks."""
        for _ in range(self.rounds):
            depth = self.rng.randrange(1, 4)
            ref = self.driver.call("tree", depth, retries=ALWAYS)
            yield from self.must(ref, 2**depth, "a tree")
            del ref
            yield "sleep", self.rng.random() * 0.3

    def chains(self) -> Code:
        """Large values made of each other, some links forgotten, some kept."""
        for _ in range(self.rounds):
            ref = self.driver.put(Large(()))
            kept = []
            length = self.rng.randrange(2, 7)
            for link in range(length):
                ref = self.driver.call("grow", ref, retries=ALWAYS)
                if self.rng.random() < 0.4:
                    kept.append((ref, tuple(range(link + 1))))
            yield from self.must(ref, tuple(range(length)), "a chain")
            yield "sleep", self.rng.random()
            for link_ref, wanted in kept:
                yield from self.must(link_ref, wanted, "a link")
            yield from self.must(ref, tuple(range(length)), "a chain, again")
            kept.clear()
            link_ref = None  # type: ignore[assignment]
            del ref

    def borrowers(self) -> Code:
        """References that travel inside values and arguments."""
        for number in range(self.rounds):
            value: Any = Large((number,)) if self.rng.random() < 0.5 else number
            wanted = (number,) if isinstance(value, Large) else number
            mine = self.driver.put(value)
            hops = self.rng.randrange(3)
            out = self.driver.call("pass_on", (mine,), hops, retries=ALWAYS)
            back = self.driver.call("give_back", (mine,), retries=ALWAYS)
            del mine
            yield from self.must(out, wanted, "a value passed on")
            box = yield from self.may(back)
            del back
            if not isinstance(box, SimError):
                yield from self.must(box[0], wanted, "a reference given back")
            del box
            made = self.driver.call("make", number, retries=ALWAYS)
            box = yield from self.may(made)
            del made
            if not isinstance(box, SimError):
                yield "sleep", self.rng.random() * 0.2
                looked = self.driver.call("look", (box[0],), retries=ALWAYS)
                found = yield from self.may(looked)
                if not isinstance(found, SimError) and found != (number,):
                    self.driver.kernel.fail(f"a made value is {found!r}")
                found = yield from self.may(box[1])
                if not isinstance(found, SimError) and found != number:
                    self.driver.kernel.fail(f"a made value is {found!r}")
                del looked
            del box
            yield "sleep", self.rng.random() * 0.2

    def counters(self) -> Code:
        """Actors: in order, once, across restarts."""
        for _ in range(self.rounds):
            restarts = self.rng.choice((0, 1, ALWAYS))
            retries = self.rng.choice((0, 0, ALWAYS))
            handle = self.driver.actor("Counter", 10, restarts=restarts)
            mine = self.driver.put(Large((3,)))
            refs = []
            for _ in range(self.rng.randrange(1, 12)):
                refs.append(self.driver.method(handle, "increase", 1, retries=retries))
            kept = self.driver.method(handle, "keep", (mine,), retries=retries)
            del mine
            first = self.driver.method(handle, "first", retries=retries)
            given = self.driver.method(handle, "give", retries=retries)
            last = 10
            for ref in refs:
                value = yield from self.may(ref)
                if isinstance(value, SimError):
                    last = 10
                    continue
                if value <= last and not (value == 11 or retries):
                    self.driver.kernel.fail(f"a counter goes from {last} to {value}")
                last = value
            yield from self.may(kept)
            found = yield from self.may(first)
            if found not in ((3,), None) and not isinstance(found, SimError):
                self.driver.kernel.fail(f"a kept value is {found!r}")
            box = yield from self.may(given)
            if isinstance(box, tuple) and box:
                yield from self.must(box[0], (3,), "a kept reference")
            if self.rng.random() < 0.5:
                gone = self.driver.method(handle, "let_go", retries=retries)
                yield from self.may(gone)
                del gone
            del box, refs, ref, kept, first, given, handle
            yield "sleep", self.rng.random() * 0.3

    def lenders(self) -> Code:
        """One reference lent again and again, dropped again and again."""
        for number in range(self.rounds):
            owner = self.driver.actor("Counter", 0, restarts=0)
            other = self.driver.actor("Counter", 0, restarts=0)
            value: Any = Large((number,)) if self.rng.random() < 0.3 else number
            wanted = (number,) if isinstance(value, Large) else number
            calls = [self.driver.method(owner, "own", value)]
            held: list[Any] = []
            gives = [self.driver.method(owner, "give") for _ in range(8)]
            if self.rng.random() < 0.5:
                calls.append(self.driver.method(owner, "hand", (other,), 3))
            while gives:
                # Dropped while the next one is on its way: that is the point.
                give = gives.pop(0)
                box = yield from self.may(give)
                del give
                if isinstance(box, tuple) and (not gives or self.rng.random() < 0.1):
                    held.append(box)
                del box
            calls.append(self.driver.method(owner, "let_go"))
            if self.rng.random() < 0.5:
                calls.append(self.driver.method(other, "let_go"))
            del gives, owner
            for call in calls:
                yield from self.may(call)
            del calls, call
            last = self.driver.method(other, "first")
            for box in held:
                for one in box:
                    found = yield from self.may(one)
                    if not isinstance(found, SimError) and found != wanted:
                        self.driver.kernel.fail(f"a lent value is {found!r}")
            found = yield from self.may(last)
            if found not in (wanted, None) and not isinstance(found, SimError):
                self.driver.kernel.fail(f"a handed value is {found!r}")
            held.clear()
            box = one = None
            del last, other

    def waiters(self) -> Code:
        """Long calls, more than there are CPUs."""
        for _ in range(max(1, self.rounds // 2)):
            refs = [self.driver.call("slow", n, retries=ALWAYS) for n in range(6)]
            for number, ref in enumerate(refs):
                yield from self.must(ref, number, "a slow value")
            del refs, ref

    def all(self) -> list[Code]:
        """Every program."""
        return [
            self.sums(),
            self.trees(),
            self.chains(),
            self.borrowers(),
            self.counters(),
            self.lenders(),
            self.waiters(),
        ]
