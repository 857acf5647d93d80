"""The references that calls bring to their executor, and who counts them until when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rayshim._core.arguments import brings_references
from rayshim.adapters.wire import messages as m

if TYPE_CHECKING:
    from rayshim._core.peer import Peer


class BroughtReferences:
    """Counts what calls brought, from their arrival or start to their end.

    All methods are called under the peer's lock.

    Args:
        peer: The executor's.
    """

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        #: Task id -> ids of objects of this process that came home as arguments and
        #: that the call, which has not ended, counts once each. Their sender counts
        #: for them too, but it may die before the call starts.
        self._home: dict[bytes, list[bytes]] = {}
        #: Task id -> ids that its arguments brought, each counted once, until it ends.
        self._taken: dict[bytes, list[bytes]] = {}

    def arrived(self, specs: list[m.TaskSpec]) -> None:
        """Count what calls bring back to its owner, before they start."""
        entries = self._peer.objects.table.entries
        for spec in specs:
            if not (spec.nested or spec.dependencies):
                continue
            for item in _items(spec):
                entry = entries.get(item.object_id)
                if entry is not None and not entry.owner:
                    entry.local += 1
                    self._home.setdefault(spec.task_id, []).append(item.object_id)

    def receive(self, spec: m.TaskSpec, lender: str) -> None:
        """Take in what a call brings, which starts."""
        table = self._peer.objects.table
        creation = spec.method == "__init__"
        taken = self._taken[spec.task_id] = []
        for item in _items(spec):
            entry = table.receive(
                item.object_id, item.owner, lender, item.lend, register=creation
            )
            # The end of an older view must not take the entry away meanwhile.
            entry.local += 1
            taken.append(item.object_id)

    def has(self, spec: m.TaskSpec) -> bool:
        """Whether :meth:`receive` was called for a call."""
        return spec.task_id in self._taken

    def given_back(self, task_id: bytes) -> None:
        """A call will not start here."""
        if task_id in self._home:
            self._uncount(task_id)
            self._peer.objects.settle()

    def ended(self, spec: m.TaskSpec, caller: str) -> tuple[bytes, ...]:
        """Count no more for a call; ids from its arguments that are still in use."""
        task_id = spec.task_id
        if not brings_references(spec) and task_id not in self._taken:
            return ()
        objects = self._peer.objects
        objects.collect()
        self._uncount(task_id)
        out = []
        seen: set[bytes] = set()
        for item in _items(spec):
            if item.object_id not in seen:
                seen.add(item.object_id)
                if objects.table.keep(item.object_id, caller, item.lend):
                    out.append(item.object_id)
        objects.settle()
        if out:
            self._peer.arm_sweep()
        return tuple(out)

    def _uncount(self, task_id: bytes) -> None:
        table = self._peer.objects.table
        for ids in (self._home, self._taken):
            for object_id in ids.pop(task_id, ()):
                table.unpin(object_id)


def _items(spec: m.TaskSpec) -> Iterator[m.Nested]:
    """Every reference that came with a call."""
    yield from spec.nested
    for dependency in spec.dependencies:
        yield from dependency.value.nested
        if dependency.value.segment is not None:
            yield m.Nested(dependency.object_id, dependency.owner, dependency.lend)
