"""The wait-for graph against a naive model: a world in which calls really go on."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from rayshim.lineage.wait_graph import (
    GROUP_PREFIX,
    Holder,
    Maker,
    Process,
    Source,
    Wait,
    WaitGraph,
    WaitingLease,
)

JOB = b"\x01\x00\x00\x00"


def object_id(number: int) -> bytes:
    """The value of call ``number``."""
    return bytes([number]) * 8 + b"\xff" * 12 + JOB + b"\x01\x00\x00\x00"


@dataclass
class Call:
    """A call: what it needs before it starts, and what it waits for then."""

    number: int
    #: Process that it runs in; several calls may share one.
    place: int
    needs: list[int]
    awaits: list[int]
    is_certain: bool = True


@dataclass
class World:
    """Calls, and processes that run so many of them at once."""

    calls: list[Call]
    slots: list[int]
    done: set[int] = field(default_factory=set)
    running: set[int] = field(default_factory=set)

    def start(self) -> None:
        """Start, in order, what may start."""
        for call in self.calls:
            busy = sum(self.calls[n].place == call.place for n in self.running)
            if (
                call.number not in self.running | self.done
                and busy < self.slots[call.place]
                and self.done.issuperset(call.needs)
            ):
                self.running.add(call.number)

    def step(self) -> bool:
        """End every call that can end; False if none can."""
        ends = {
            number
            for number in self.running
            if not self.calls[number].is_certain
            or self.done.issuperset(self.calls[number].awaits)
        }
        self.running -= ends
        self.done |= ends
        self.start()
        return bool(ends)

    def left(self) -> set[int]:
        """Run to the end: the calls that never end."""
        self.start()
        while self.step():
            pass
        return {call.number for call in self.calls} - self.done

    def graph(self) -> WaitGraph:
        """What everybody says at this moment; one driver owns all objects."""
        graph = WaitGraph()
        for place, limit in enumerate(self.slots):
            here = [call for call in self.calls if call.place == place]
            waits = tuple(
                Wait(
                    call.number,
                    bytes([call.number]),
                    "",
                    tuple((object_id(n), "driver") for n in missing),
                    call.is_certain,
                    f"call {call.number}",
                )
                for call in here
                if call.number in self.running
                and (missing := [n for n in call.awaits if n not in self.done])
            )
            accepted = {
                bytes([call.number]): ""
                for call in here
                if call.number not in self.done and self.done.issuperset(call.needs)
            }
            process = Process(f"process {place}", waits, {"": limit}, accepted)
            graph.add(str(place), process)
        for call in self.calls:
            if call.number in self.done:
                continue
            missing = [n for n in call.needs if n not in self.done]
            graph.makers[object_id(call.number)] = Maker(
                bytes([call.number]),
                "arguments" if missing else "actor",
                f"call {call.number}",
                "" if missing else str(call.place),
                objects=tuple((object_id(n), "driver") for n in missing),
            )
        return graph


@st.composite
def worlds(draw: st.DrawFn) -> World:
    count = draw(st.integers(1, 7))
    places = draw(st.integers(1, 4))
    number = st.integers(0, count - 1)
    few = st.lists(number, max_size=2, unique=True)
    calls = [
        Call(
            n,
            draw(st.integers(0, places - 1)),
            # A reference exists before the call that takes it.
            [other for other in draw(few) if other < n],
            draw(few),
            draw(st.integers(0, 9)) > 0,
        )
        for n in range(count)
    ]
    slots = [draw(st.integers(1, 2)) for _ in range(places)]
    return World(calls, slots)


@given(worlds(), st.integers(0, 8))
@settings(max_examples=300, deadline=None)
def test_what_is_stuck_at_any_moment_never_ends(world: World, steps: int) -> None:
    world.start()
    for _ in range(steps):
        world.step()
    stuck = {number for kind, _, number in world.graph().stuck() if kind == "wait"}
    assert stuck <= world.left()


@given(worlds())
@settings(max_examples=300, deadline=None)
def test_in_the_end_every_call_that_is_left_is_stuck_and_a_cycle_is_found(
    world: World,
) -> None:
    left = world.left()
    graph = world.graph()
    stuck = {number for kind, _, number in graph.stuck() if kind == "wait"}
    assert stuck == left & world.running
    found = graph.deadlocks()
    assert bool(found) == bool(left)
    for one in found:
        for (_, number), cycle in one.cycles.items():
            assert number in left
            assert cycle[0].startswith(f"call {number} ")


def waits_for(*numbers: int, number: int = 1, call: bytes = b"c") -> Wait:
    objects = tuple((object_id(n), "driver") for n in numbers)
    return Wait(number, call, "", objects, True, "f")


def test_process_that_has_not_spoken_moves() -> None:
    graph = WaitGraph()
    graph.add("a", Process("a", (waits_for(1),), {"": 1}))
    graph.makers[object_id(1)] = Maker(b"t", "executor", "g", "b")
    assert graph.stuck() == {}


def test_second_word_that_differs_is_not_believed() -> None:
    graph = WaitGraph()
    graph.makers[object_id(1)] = Maker(b"c", "executor", "f", "a")
    graph.add("a", Process("a", (waits_for(1),), {"": 1}))
    assert len(graph.deadlocks()) == 1
    graph.add("a", Process("a", (waits_for(1, number=2),), {"": 1}))
    assert graph.deadlocks() == []


def test_resources_of_stuck_holders_do_not_come_back() -> None:
    graph = WaitGraph()
    graph.add("a", Process("a", (waits_for(1),), {"": 1}))
    graph.makers[object_id(1)] = Maker(b"g", "lease", "g", lease_ids=(b"l",))
    held = Holder("a", {"GPU": 10000})
    graph.leases[b"l"] = WaitingLease(
        "g", {"GPU": 10000}, (Source({"GPU": 10000}, (held,)),)
    )
    assert len(graph.deadlocks()) == 1
    graph.leases[b"l"] = WaitingLease(
        "g", {"GPU": 10000}, (Source({"GPU": 20000}, (held, Holder("b", {}))),)
    )
    assert graph.deadlocks() == []


def test_lease_of_the_class_that_becomes_free_would_do() -> None:
    graph = WaitGraph()
    graph.add("a", Process("a", (waits_for(1),), {"": 1}))
    held = Holder("a", {"GPU": 10000})
    graph.leases[b"l"] = WaitingLease(
        "g", {"GPU": 10000}, (Source({"GPU": 10000}, (held,)),)
    )
    graph.makers[object_id(1)] = Maker(
        b"g", "lease", "g", lease_ids=(b"l",), slots=(("b", b"other"),)
    )
    assert graph.deadlocks() == []


def test_infeasible_request_is_no_deadlock() -> None:
    graph = WaitGraph()
    graph.add("a", Process("a", (waits_for(1),), {"": 1}))
    graph.makers[object_id(1)] = Maker(b"g", "lease", "g", lease_ids=(b"l",))
    held = Holder("a", {"GPU": 10000})
    graph.leases[b"l"] = WaitingLease(
        "g", {"GPU": 30000}, (Source({"GPU": 10000}, (held,)),)
    )
    assert graph.stuck() == {}


def test_program_that_runs_may_end_the_circle() -> None:
    graph = WaitGraph()
    graph.makers[object_id(1)] = Maker(b"c", "executor", "f", "a")
    graph.add("a", Process("a", (waits_for(1),), {"": 1}))
    graph.drivers[JOB] = "driver"
    assert graph.deadlocks() == []
    assert graph.suspect_drivers() == ["driver"]
    graph.add("driver", Process("driver", is_waiting=False))
    assert graph.deadlocks() == []
    graph.processes["driver"] = Process("driver", is_waiting=True)
    assert len(graph.deadlocks()) == 1


def group_waits(total: int) -> WaitGraph:
    """Call "c" at "a", in a group that holds one slot, waits for a task of another."""
    graph = WaitGraph()
    graph.add("a", Process("a", (waits_for(1),), {"": 1}))
    outside = Wait(9, b"", "", ((object_id(2), "driver"),), True, "program")
    graph.add("driver", Process("driver", (outside,)))
    graph.makers[object_id(2)] = Maker(b"c", "executor", "f", "a")
    graph.makers[object_id(1)] = Maker(b"t", "lease", "g", lease_ids=(b"l",))
    pending = GROUP_PREFIX + b"B"
    graph.leases[b"l"] = WaitingLease("g", {"x": 1}, (), pending)
    graph.leases[pending] = WaitingLease(
        "group B",
        {"x": 1},
        (Source({"x": total}, (Holder("driver", {"x": 1}, "group"),)),),
    )
    return graph


def test_task_of_a_group_that_waits_for_what_another_group_holds() -> None:
    (found,) = group_waits(1).deadlocks()
    (line,) = found.cycles["a", 1][:1]
    assert "in placement group" in line and "which is pending" in line


def test_group_that_still_fits_beside_the_others_moves() -> None:
    assert group_waits(2).deadlocks() == []


def test_group_of_a_program_that_may_remove_it_moves() -> None:
    graph = group_waits(1)
    graph.processes["driver"] = Process("driver")
    assert graph.stuck() == {}


def test_request_behind_a_group_that_nobody_knows_moves() -> None:
    graph = group_waits(1)
    del graph.leases[GROUP_PREFIX + b"B"]
    assert graph.stuck() == {}
