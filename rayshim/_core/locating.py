"""Large values on their way out of the store: mapped, where they are at hand.

A value is read from the store of this node. What is not there is restored if it was
spilled, pulled if it lies on another node, and reported to its owner if it is gone.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rayshim._core.refs import dropped
from rayshim._core.serialization import deserialize
from rayshim.adapters.wire import messages as m
from rayshim.lineage.references import ObjectEntry

if TYPE_CHECKING:
    from rayshim._core.objects import ObjectPlane
    from rayshim._core.peer import Peer


class NotHere(Exception):
    """A value cannot be read now: it is on another node, or nowhere."""

    def __init__(self, object_id: bytes, segment: m.Segment, error: str) -> None:
        super().__init__(object_id, segment, error)
        self.object_id = object_id
        self.segment = segment
        #: Why it cannot be read; empty when it is on another node.
        self.error = error


class ArgumentsLost(Exception):
    """Arguments of a call cannot be read: it goes back to its owner."""

    def __init__(self, object_ids: list[bytes]) -> None:
        super().__init__(object_ids)
        self.object_ids = object_ids


def _ignore() -> None:
    """For a look at a segment that is not kept."""


class SegmentReader:
    """Reads values from segments."""

    def __init__(self, peer: Peer, objects: ObjectPlane) -> None:
        self._peer = peer
        self._node = peer.node_id
        self._objects = objects

    def read(self, object_id: bytes, payload: m.Payload) -> Any:
        """Map a large value; it stays in use while a view of it lives.

        Raises:
            NotHere: it is on another node, or the file is gone.
        """
        segment = payload.segment
        assert segment is not None
        if segment.node != self._node:
            entry = self._objects.entries.get(object_id)
            near: m.Segment | None = entry.near if entry is not None else None
            if near is None:
                raise NotHere(object_id, segment, "")
            segment = near
        if dropped:
            # Segments that go back now are written again while they are in the cache.
            self._objects.collect()
        with self._peer.lock:
            self._objects.table.hold(object_id)
        release = functools.partial(dropped.append, object_id)
        try:
            stream, buffers = self._view(segment, release)
        except FileNotFoundError:
            release()
            raise NotHere(
                object_id,
                segment,
                f"file {segment.name} is not in the store of node {self._node[:8]} "
                "any more",
            ) from None
        try:
            return deserialize(stream, buffers)
        finally:
            del stream, buffers

    def _view(
        self, segment: m.Segment, release: Callable[[], None]
    ) -> tuple[memoryview, list[memoryview]]:
        """View a segment of this node, restored from disk if it was spilled."""
        store = self._peer.store
        try:
            return store.read(segment, release)
        except FileNotFoundError:
            return self._peer.store_client.read_restored(segment, release)

    def missed(self, entry: ObjectEntry, missing: NotHere) -> None:
        """A known value could not be read (under the lock)."""
        if missing.error:
            self.lose(entry, missing.segment, missing.error)

    def lose(self, entry: ObjectEntry, segment: m.Segment, why: str) -> None:
        """A copy is gone: the owner names another one or has it made again."""
        objects = self._objects
        value = entry.value
        if value is None or value.segment is None:
            return
        near = entry.near
        if near is not None and near.name == segment.name:
            # The copy of this node: what it was made from may still be there.
            assert entry.copies is not None
            entry.copies.near = None
            entry.copies.nodes.pop(self._node, None)
            return
        if not entry.owner:
            objects.recovering.lose(entry, segment, why)
        elif value.segment.name == segment.name:
            objects.table.lose(entry)
            lost = m.ObjectsLost([entry.object_id], [segment.name])
            if not objects.send_if_alive(entry.owner, lost):
                objects.lending.owner_died(entry.owner)
        objects.settle()

    # -- arguments -------------------------------------------------------------------

    def bring_arguments(self, spec: m.TaskSpec) -> None:
        """Have the large arguments of a call brought here, and wait for them.

        Raises:
            ArgumentsLost: some cannot be read anywhere.
        """
        waiting, lost = self.start_arguments(spec, lambda: None)
        for dependency in spec.dependencies:
            segment = dependency.value.segment
            if segment is not None and segment.node == self._node:
                try:
                    self._view(segment, _ignore)
                except FileNotFoundError:
                    lost.append(dependency.object_id)
        self._peer.reactor.wait(lambda: not waiting or self._peer.ended)
        if lost:
            raise ArgumentsLost(lost)

    def renew_arguments(self, spec: m.TaskSpec, lost: list[bytes]) -> None:
        """Have lost arguments made again, and wait: the call cannot go back."""
        objects = self._objects
        renewed = [d for d in spec.dependencies if d.object_id in lost]
        entries = [objects.entries[d.object_id] for d in renewed]
        with self._peer.lock:
            for dependency, entry in zip(renewed, entries, strict=True):
                value = dependency.value
                if entry.value is None and value.segment is not None:
                    entry.value = value
                    self.lose(entry, value.segment, "an actor's executor misses it")
                objects.pulling.want(entry)
        is_here = objects.pulling.is_here
        self._peer.reactor.wait(lambda: all(map(is_here, entries)) or self._peer.ended)
        for dependency, entry in zip(renewed, entries, strict=True):
            dependency.value = entry.value

    def start_arguments(
        self, spec: m.TaskSpec, ready: Callable[[], None]
    ) -> tuple[set[bytes], list[bytes]]:
        """Ask for the large arguments of a call that are not here.

        Args:
            spec: the call; its arguments were received.
            ready: called when the last one is here or lost (under the lock).

        Returns:
            Ids that are on their way, and ids that are lost; both change until
            ``ready`` was called.
        """
        waiting: set[bytes] = set()
        lost: list[bytes] = []
        with self._peer.lock:
            for dependency in spec.dependencies:
                segment, object_id = dependency.value.segment, dependency.object_id
                if segment is None or object_id in waiting:
                    continue
                if segment.node == self._node:
                    continue
                entry = self._objects.entries[object_id]
                if entry.near is not None:
                    continue
                waiting.add(object_id)

                def pulled(
                    found: m.Segment | None, error: str, object_id: bytes = object_id
                ) -> None:
                    waiting.discard(object_id)
                    if found is None:
                        lost.append(object_id)
                    if not waiting:
                        ready()

                self._objects.pulling.pull(object_id, segment, pulled)
        return waiting, lost

    def is_far(self, spec: m.TaskSpec) -> bool:
        """True if an argument lies on another node."""
        node = self._node
        for dependency in spec.dependencies:
            segment = dependency.value.segment
            if segment is not None and segment.node != node:
                return True
        return False

    async def bring(self, spec: m.TaskSpec) -> None:
        """Wait for the arguments of other nodes without keeping the loop.

        Raises:
            ArgumentsLost: some cannot be read anywhere.
        """
        peer, loop = self._peer, asyncio.get_running_loop()
        there: asyncio.Future[None] = loop.create_future()

        def done() -> None:
            if not there.done():
                there.set_result(None)

        with peer.lock:
            waiting, lost = self.start_arguments(
                spec, lambda: peer.loops.call_soon(loop, done)
            )
            peer.reactor.eager += 1
        try:
            if waiting:
                await there
        finally:
            peer.reactor.eager -= 1
        if lost:
            raise ArgumentsLost(lost)
