"""Every order in which a small world can go, shortest first.

A *world* is a few state machines and the messages between them. In each state it
offers *steps*: deliver this message, lose that one, let this process die. The explorer
tries them all, breadth first, and never enters one state twice. So the first rule that
breaks is broken in as few steps as possible, and :meth:`Counterexample.as_test` prints
these steps as a test.

A step is the name of a method of the world and its arguments. It breaks a rule by
raising: the world's own judge (:meth:`World.check`), ``validate`` of a machine, or a
machine that refuses an event. States are told apart by a hash of 128 bits of what
:meth:`World.key` returns, as in hash compaction (Wolper and Leroy, CAV 1993): a million
states meet by accident with a chance of about 1e-27.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

#: Name of a method of the world, and its arguments.
Step = tuple[Any, ...]


class World(Protocol):
    """What can be explored. ``repr`` gives the expression that makes a fresh one."""

    def steps(self) -> Iterable[Step]:
        """All that can happen now, in a fixed order."""

    def check(self) -> None:
        """Look for a broken rule.

        Raises:
            AssertionError: which rule, and by what.
        """

    def key(self) -> Any:
        """What tells this state from others; its ``repr`` must be the same for all
        states that behave alike."""

    def clone(self) -> World:
        """A copy that shares nothing that can change."""


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A shortest way to break a rule."""

    #: Expression that makes the world.
    start: str
    steps: tuple[Step, ...]
    #: Text of the error.
    broken: str

    def as_test(self, name: str) -> str:
        """A test that fails as long as the rule is broken, ready to paste."""
        lines = [f"def test_{name}() -> None:"]
        lines += [f"    # {line}" for line in self.broken.splitlines()]
        lines.append(f"    world = {self.start}")
        for method, *arguments in self.steps:
            lines.append(f"    world.{method}({', '.join(map(repr, arguments))})")
        lines.append("    world.check()")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Exploration:
    """What was seen."""

    #: Different states.
    states: int
    #: Steps tried.
    steps: int
    #: Steps from the start to the last state that was seen.
    depth: int
    #: Every state that can be reached was seen.
    is_complete: bool
    counterexample: Counterexample | None

    def describe(self) -> str:
        """One line for people."""
        extent = "all" if self.is_complete else "the first"
        end = "a rule is broken" if self.counterexample else "no rule is broken"
        return (
            f"{extent} {self.states:,} states, {self.steps:,} steps, up to "
            f"{self.depth} steps deep: {end}"
        )


def explore(start: World, *, max_states: int) -> Exploration:
    """Try every order of steps from ``start``, until a rule breaks.

    Args:
        start: a fresh world; it is not changed.
        max_states: states after which to stop, > 0.
    """
    #: For each state: number of the state before it, the step that led here.
    origins: list[tuple[int, Step]] = [(-1, ())]
    seen = {_digest(start)}
    line = deque([(0, 0, start.clone())])
    tried = depth = 0

    def broken(number: int, last: Step, error: Exception) -> Exploration:
        path = [last] if last else []
        while number > 0:
            number, step = origins[number]
            path.append(step)
        text = f"{type(error).__name__}: {error}"
        found = Counterexample(repr(start), tuple(reversed(path)), text)
        return Exploration(len(seen), tried, depth, False, found)

    try:
        start.clone().check()
    except Exception as error:
        return broken(0, (), error)
    while line:
        number, steps_so_far, world = line.popleft()
        for step in world.steps():
            tried += 1
            after = world.clone()
            try:
                getattr(after, step[0])(*step[1:])
                digest = _digest(after)
                if digest in seen:
                    continue
                after.check()
            except Exception as error:
                depth = max(depth, steps_so_far + 1)
                return broken(number, step, error)
            seen.add(digest)
            depth = max(depth, steps_so_far + 1)
            line.append((len(origins), steps_so_far + 1, after))
            origins.append((number, step))
            if len(seen) >= max_states:
                return Exploration(len(seen), tried, depth, False, None)
    return Exploration(len(seen), tried, depth, True, None)


def replay(world: World, steps: Iterable[Step]) -> World:
    """Take steps in a world and look for a broken rule after each."""
    for step in steps:
        getattr(world, step[0])(*step[1:])
        world.check()
    return world


def _digest(world: World) -> bytes:
    text = repr(world.key())
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
