"""What the state machines share: their story, its replay, and how they refuse.

A machine is a function of its events, so its story is also its event log:
:func:`replay` gives the events to a fresh machine, and :func:`picture` tells whether
two machines are in the same state. Machines that are driven by method calls, since an
object for each event would cost too much on the hot path, are recorded through a
:class:`Recorder`, which costs nothing where it is not used.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from types import FunctionType, MethodType
from typing import Any, Protocol, TypeVar

#: Events that a machine remembers.
STORY_EVENTS = 2048
_SUBJECTS = (
    "lease_id",
    "worker_id",
    "actor_id",
    "group",
    "node_id",
    "object_id",
    "address",
)


class InvalidTransition(Exception):
    """An event that its subject's state does not allow."""

    def __init__(
        self, subject: bytes, state: Enum | None, event: object, story: list[str]
    ) -> None:
        name = state.name if state else "unknown"
        lines = "\n".join(story)
        super().__init__(f"{subject.hex()} is {name} and cannot take {event}\n{lines}")


class Story:
    """The last events of a machine."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, Any]] = deque(maxlen=STORY_EVENTS)
        #: Events ever added.
        self._added = 0

    def add(self, event: Any, now: float) -> None:
        """Remembers one event."""
        self._events.append((now, event))
        self._added += 1

    def keep_all(self) -> None:
        """Forget nothing from now on: for tests, simulations and diagnosis."""
        self._events = deque(self._events)

    def log(self) -> list[tuple[Any, float]]:
        """All events since the start, in order, with their times.

        Raises:
            ValueError: the first ones are forgotten.
        """
        forgotten = self._added - len(self._events)
        if forgotten:
            raise ValueError(
                f"the first {forgotten} of {self._added} events are forgotten, so that "
                "the log cannot be replayed; call keep_all() at the start"
            )
        return [(event, now) for now, event in self._events]

    def of(self, subject: bytes | str) -> list[str]:
        """The remembered events that name ``subject``, one line each."""
        return [
            f"{now:.6f} {event}"
            for now, event in self._events
            if any(getattr(event, name, None) == subject for name in _SUBJECTS)
        ]

    def of_prefix(self, task_id: bytes) -> list[str]:
        """The remembered events of a call and of the objects that it makes."""
        return [
            f"{now:.6f} {event}"
            for now, event in self._events
            if getattr(event, "task_id", b"") == task_id
            or getattr(event, "object_id", b"")[: len(task_id)] == task_id
        ]


class Machine(Protocol):
    """A machine that takes events."""

    def handle(self, event: Any, now: float) -> Any:
        """Takes one event at time ``now``."""


M = TypeVar("M", bound=Machine)
T = TypeVar("T")


def replay(fresh: M, log: Iterable[tuple[Any, float]]) -> M:
    """Give the events of a log to a fresh machine, and return it.

    What the first machine refused, this one refuses too.
    """
    for event, now in log:
        try:
            fresh.handle(event, now)
        except InvalidTransition:
            continue
    return fresh


class Recorder:
    """Stands for a machine that is driven by method calls, and writes them down.

    Args:
        machine: the machine, which does all the work.
        name: gives a name to an argument that belongs to the machine (an entry, a
            slot), or returns the argument; :func:`repeat` gets the inverse.
    """

    def __init__(
        self, machine: Any, name: Callable[[Any], Any] = lambda argument: argument
    ) -> None:
        self._machine = machine
        self._name = name
        #: (method, arguments, keyword arguments), in order.
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._machine, method)
        if not isinstance(found, MethodType):
            return found

        def call(*arguments: Any, **keywords: Any) -> Any:
            names = tuple(copy.deepcopy(self._name(one)) for one in arguments)
            self.calls.append((method, names, copy.deepcopy(keywords)))
            return found(*arguments, **keywords)

        return call


def repeat(
    fresh: T,
    recorder: Recorder,
    find: Callable[[T, Any], Any] = lambda machine, argument: argument,
) -> T:
    """Make the recorded calls on a fresh machine, and return it.

    Args:
        fresh: the machine.
        recorder: of the first machine.
        find: what a name that the recorder gave means in the fresh machine.
    """
    for method, arguments, keywords in recorder.calls:
        given = [find(fresh, one) for one in copy.deepcopy(arguments)]
        try:
            getattr(fresh, method)(*given, **keywords)
        except InvalidTransition:
            continue
    return fresh


def picture(machine: Any) -> Any:
    """The state of a machine as plain values: equal for machines that behave alike.

    Functions and stories are left out. What is reached in two ways is named by the
    place where it was met first. Sets are sorted; all other orders count.
    """
    return _picture(machine, {}, {})


def _picture(thing: Any, met: dict[int, int], alive: dict[int, Any]) -> Any:
    if thing is None or isinstance(thing, (int, float, str, bytes, type)):
        return thing
    if isinstance(thing, Enum):
        return str(thing)
    if isinstance(thing, (FunctionType, MethodType, Story)):
        return type(thing).__name__
    if id(thing) in met:
        return ("met", met[id(thing)])
    met[id(thing)] = len(met)
    alive[id(thing)] = thing  # an id that is free could be given again
    if isinstance(thing, (dict, OrderedDict)):
        return [
            (_picture(key, met, alive), _picture(value, met, alive))
            for key, value in thing.items()
        ]
    if isinstance(thing, (set, frozenset)):
        return sorted((_picture(one, met, alive) for one in thing), key=repr)
    if isinstance(thing, (list, tuple, deque)):
        return [_picture(one, met, alive) for one in thing]
    names = list(getattr(thing, "__dict__", ()))
    for kind in type(thing).__mro__:
        names += getattr(kind, "__slots__", ())
    return (
        type(thing).__name__,
        [(name, _picture(getattr(thing, name, None), met, alive)) for name in names],
    )
