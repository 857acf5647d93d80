"""Three reference tables against one global dictionary of who holds what.

The naive model sees everything at once: it counts, for each object, the references in
every process, on every channel and in every call. An object must be freed exactly when
that count is nothing: never before, and once all messages have arrived not later.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from rayshim.lineage.explore import explore
from reference_steps import References, X, Y
from test_explored_references import BorrowerSet

_OFTEN = ("deliver", "start", "finish")


class Holders(RuleBasedStateMachine):
    """Any order of steps of a world without bounds."""

    @initialize(names=st.sampled_from(["OA", "OAB"]), objects=st.integers(1, 2))
    def begin(self, names: str, objects: int) -> None:
        self.world = References(names, objects=objects, hand_overs=1 << 30)
        #: (object, who) -> references; the whole of the model.
        self.held: Counter[tuple[bytes, Any]] = Counter()

    @rule(data=st.data(), onward=st.booleans())
    def step(self, data: st.DataObject, onward: bool) -> None:
        steps = list(self.world.steps())
        if onward:
            steps = [one for one in steps if one[0] in _OFTEN] or steps
        if not steps:
            return  # everything was made, dropped and told
        name, *arguments = data.draw(st.sampled_from(steps))
        self.count(name, *arguments)
        getattr(self.world, name)(*arguments)

    def count(self, step: str, *arguments: Any) -> None:
        """What the step does to the model."""
        held, world = self.held, self.world
        if step == "create":
            object_id = (X, Y)[world.made]
            held[object_id, "O"] += 1
            if object_id == Y:
                held[X, "in y"] += 1
        elif step == "drop":
            name, object_id = arguments
            held[object_id, name] -= 1
        elif step == "lend":
            held[arguments[2], "on its way"] += 1
        elif step == "call":
            held[arguments[2], ("call", world.numbers + 1)] += 1
        elif step == "start":
            name, number = arguments
            held[world.calls[number][2], name] += 1
        elif step == "read":
            held[X, arguments[0]] += 1
        elif step == "deliver":
            self.count_message(*arguments)

    def count_message(self, source: str, target: str) -> None:
        message = self.world.channels[source, target][0]
        if message[0] == "reference":
            self.held[message[1], "on its way"] -= 1
            self.held[message[1], target] += 1
        elif message[0] in ("result", "stolen"):
            del self.held[self.world.calls[message[1]][2], ("call", message[1])]

    def is_held(self, object_id: bytes) -> bool:
        if object_id == X and self.held[X, "in y"] and not self.is_held(Y):
            self.held[X, "in y"] = 0
        return any(n for (one, _), n in self.held.items() if one == object_id)

    @invariant()
    def nothing_is_freed_while_it_is_held(self) -> None:
        for object_id in self.world.freed:
            assert not self.is_held(object_id), (object_id, self.held)

    @invariant()
    def the_tables_are_sound(self) -> None:
        for table in self.world.tables.values():
            table.validate()

    def teardown(self) -> None:
        """Hear everything, then free exactly what nobody holds."""
        world = self.world
        while onward := [one for one in world.steps() if one[0] in _OFTEN]:
            self.count(*onward[0])
            getattr(world, onward[0][0])(*onward[0][1:])
        made = {X, Y} if world.made == 2 else {X} if world.made else set()
        for object_id in sorted(made, reverse=True):
            assert (object_id in world.freed) != self.is_held(object_id), object_id
        for (name, object_id), count in sorted(world.uses.items()):
            for _ in range(count):
                world.drop(name, object_id)
        while onward := [one for one in world.steps() if one[0] in _OFTEN]:
            getattr(world, onward[0][0])(*onward[0][1:])
        assert set(world.freed) == made
        world.check()


Holders.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)


class TestHolders(Holders.TestCase):  # type: ignore[misc]
    """A short look."""


@pytest.mark.slow
@pytest.mark.timeout(300)
class TestHoldersAtLength(Holders.TestCase):  # type: ignore[misc]
    """A long one."""

    settings = settings(max_examples=1000, stateful_step_count=60, deadline=None)


def test_the_model_sees_what_a_set_of_borrowers_gets_wrong() -> None:
    start = References("OA", by_call=False, table=BorrowerSet)
    found = explore(start, max_states=10_000).counterexample
    assert found is not None
    machine = Holders()
    machine.world, machine.held = start, Counter()
    for step, *arguments in found.steps:
        machine.nothing_is_freed_while_it_is_held()
        machine.count(step, *arguments)
        getattr(start, step)(*arguments)

    with pytest.raises(AssertionError):
        machine.nothing_is_freed_while_it_is_held()
