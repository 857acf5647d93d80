"""Brings values of other nodes to this one, and sends this node's values to others.

The machine of :mod:`rayshim.lineage.pulls` decides; this shell opens files, runs
fetches in threads and answers askers. Flight is imported in a thread when a node of a
cluster starts, never in a session of one node.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rayshim.adapters.shm.layout import is_within
from rayshim.adapters.wire import node_messages as nodes
from rayshim.adapters.wire.messages import Segment
from rayshim.lineage import pull_events as ev
from rayshim.lineage.pulls import Pulls

if TYPE_CHECKING:
    from rayshim.adapters.flight.client import FlightReceiver, Stopper
    from rayshim.adapters.flight.server import FlightSender
    from rayshim.adapters.raylet.store_service import StoreService

logger = logging.getLogger(__name__)

#: Ranges of one object that are fetched at once, and of all objects.
STREAMS = 2
MAX_STREAMS = 6
#: Bytes on their way at once: a share of the store, but at least this much.
ACTIVE_SHARE = 0.25
MIN_ACTIVE_BYTES = 256 << 20
#: Seconds for which a pull waits for a node that has not said yet where its Flight
#: server is.
JOIN_S = 10.0
#: Descriptions of copies that are kept before those of evicted ones are looked for.
MAX_DESCRIBED = 4096


class _Peer(Protocol):
    @property
    def address(self) -> str: ...


class _Server(Protocol):
    """What this service needs of its node."""

    config: Any
    loop: asyncio.AbstractEventLoop
    now: Callable[[], float]

    def send(self, address: str, message: Any) -> bool: ...

    def add_handlers(self, handlers: dict[type, Any]) -> None: ...

    def set_flight_address(self, address: str) -> None: ...


@dataclass(slots=True)
class _File:
    """The unfinished copy of one object."""

    segment: Segment
    size_bytes: int
    #: The store's, or one on disk.
    folder: str
    fd: int

    @property
    def unfinished(self) -> str:
        """Its path while it is written."""
        return f"{self.folder}/{self.segment.name}.w"


class PullService:
    """One instance for each node of a cluster.

    Args:
        server: The node.
        store: Its store, which gives room and keeps finished copies.
    """

    def __init__(self, server: _Server, store: StoreService) -> None:
        self._server = server
        self._store = store
        self._folder: str = server.config.store_dir
        self._node_id: str = server.config.node_id
        limit = float(server.config.resources.get("object_store_memory") or 0)
        active = max(MIN_ACTIVE_BYTES, int(limit * ACTIVE_SHARE))
        self.pulls = Pulls(max_active_bytes=active, streams=STREAMS)
        self._pending: deque[Any] = deque()
        self._is_feeding = False
        self._threads = ThreadPoolExecutor(MAX_STREAMS, "rayshim-fetch")
        self._tasks: set[asyncio.Task[None]] = set()
        #: Object id -> the file that its pull has room for.
        self._files: dict[bytes, _File] = {}
        #: Object id -> its finished copy; may outlive the copy for a while.
        self._copies: dict[bytes, Segment] = {}
        #: Fetch number -> what ends it.
        self._stoppers: dict[int, Stopper] = {}
        #: Hex id -> node, as last heard.
        self._nodes: dict[str, nodes.NodeInfo] = {}
        #: (object id, asker) -> until when its sources may still say where they are.
        self._unready: dict[
            tuple[bytes, str], tuple[float, _Peer, nodes.PullObject]
        ] = {}
        self._sender: FlightSender | None = None
        self._receiver: FlightReceiver | None = None
        self._started: asyncio.Task[int] | None = None
        self._is_ended = False
        #: Held while what a thread starts is taken over, or nothing is any more.
        self._starting = threading.Lock()
        server.add_handlers(_handlers(self))

    # Start and end.

    def begin(self, listen_ip: str, node_ip: str, port: int = 0) -> None:
        """Starts Flight in a thread; tells the node its address when it listens.

        Args:
            listen_ip: Address of this host to listen on.
            node_ip: Where the other nodes reach it.
            port: TCP port to listen at; 0: any that is free.
        """
        loop = self._server.loop
        start = asyncio.to_thread(self._start, listen_ip, port)
        self._started = loop.create_task(start)
        self._started.add_done_callback(lambda done: self._has_begun(done, node_ip))

    def _start(self, ip: str, port: int) -> int:
        # Half a second of imports, and threads: hence here and now.
        from rayshim.adapters.flight.client import FlightReceiver
        from rayshim.adapters.flight.server import FlightSender

        token = self._server.config.token()
        credentials = self._server.config.credentials()
        receiver = FlightReceiver(token, credentials)
        sender = FlightSender(
            token, self._store.open_for_sending, ip, port, credentials
        )
        with self._starting:
            if not self._is_ended:
                self._receiver, self._sender = receiver, sender
                return sender.port
        # The node ended meanwhile, and nobody else knows of these.
        sender.close()
        receiver.close()
        return sender.port

    def _has_begun(self, done: asyncio.Task[int], node_ip: str) -> None:
        if done.cancelled() or self._is_ended:
            return
        error = done.exception()
        if error is not None:
            # The node can still work for itself; who wants its values is told.
            logger.error("no Flight server on this node", exc_info=error)
            return
        shown = f"[{node_ip}]" if ":" in node_ip else node_ip
        self._server.set_flight_address(f"{shown}:{done.result()}")

    async def _wait_started(self) -> None:
        """Waits until this node can fetch.

        Raises:
            OSError: It never will; the text says why.
        """
        assert self._started is not None, "a pull before begin()"
        try:
            await asyncio.shield(self._started)
        except Exception as error:
            if self._receiver is None:
                raise OSError(f"Flight could not be loaded here: {error}") from error

    async def stop(self, timeout_s: float = 1.0) -> None:
        """Ends all fetches, removes unfinished copies and sends nothing any more."""
        with self._starting:
            self._is_ended = True
        for task in self._tasks:
            task.cancel()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.to_thread(self._stop)
        except TimeoutError:
            return  # Something may still write to the files: they stay as they are.
        for file in self._files.values():
            self._remove(file)
        self._files.clear()

    def _stop(self) -> None:
        for stopper in list(self._stoppers.values()):
            stopper.stop()
        self._threads.shutdown(cancel_futures=True)
        if self._sender is not None:
            self._sender.close()
        if self._receiver is not None:
            self._receiver.close()

    # What the node hears.

    def nodes_changed(self, table: nodes.NodeTable) -> None:
        """Takes the cluster's nodes in; pulls from dead ones go elsewhere."""
        before, self._nodes = self._nodes, {one.node_id: one for one in table.nodes}
        for info in table.nodes:
            known = before.get(info.node_id)
            if info.alive or (known is not None and not known.alive):
                continue
            if self._receiver is not None and info.flight_address:
                self._receiver.forget(info.flight_address)
            self.feed(ev.NodeLost(info.node_id, _death(info)))
        self._look_again()

    def peer_gone(self, address: str) -> None:
        """A process ended: it waits for nothing and reads nothing any more."""
        for key in [key for key in self._unready if key[1] == address]:
            del self._unready[key]
        self.feed(ev.AskerGone(address))

    def pull(self, peer: _Peer, message: nodes.PullObject) -> None:
        """Answers with ObjectPulled, now or later."""
        object_id, segment = message.object_id, message.segment
        if segment.node == self._node_id:
            # Nothing to do: it was here all the time.
            self._server.send(peer.address, nodes.ObjectPulled(object_id, segment))
            return
        copy = self._copies.get(object_id)
        if copy is not None:
            if self._store.pin_copy(object_id, peer.address) is not None:
                self._server.send(peer.address, nodes.ObjectPulled(object_id, copy))
                return
            del self._copies[object_id]
        size_bytes = _end(segment)
        if not is_within(segment.layout, segment.capacity) or size_bytes <= 0:
            reason = f"its description is wrong: {segment!r}"
            self._refuse(ev.Refuse(object_id, peer.address, reason, False))
            return
        sources, unusable = self._sources(message)
        if not sources:
            self._no_source(peer, message, unusable)
            return
        self._unready.pop((object_id, peer.address), None)
        making = ev.Making(
            f"{segment.node}/{segment.name}",
            size_bytes,
            segment.capacity,
            tuple(segment.layout),
        )
        self.feed(ev.PullAsked(object_id, peer.address, making, sources))

    def _no_source(
        self, peer: _Peer, message: nodes.PullObject, unusable: dict[str, str]
    ) -> None:
        """Refuses, or waits for nodes that have just joined to say where they are."""
        object_id, asker = message.object_id, peer.address
        is_gone = all(self._is_dead(node) for node in unusable)
        now = self._server.now()
        key = (object_id, asker)
        deadline = self._unready[key][0] if key in self._unready else now + JOIN_S
        if is_gone or now >= deadline:
            self._unready.pop(key, None)
            reason = "; ".join(unusable.values()) or "no other node is said to have it"
            self._refuse(ev.Refuse(object_id, asker, reason, is_gone))
            return
        if key not in self._unready:
            self._server.loop.call_later(JOIN_S, self._look_again)
        self._unready[key] = (deadline, peer, message)

    def _look_again(self) -> None:
        if not self._is_ended:
            for _, peer, message in list(self._unready.values()):
                self.pull(peer, message)

    def unpin(self, peer: _Peer, message: nodes.UnpinCopies) -> None:
        """An asker reads copies no more, or waits for them no more."""
        self._store.unpin(message.object_ids, peer.address)
        for object_id in message.object_ids:
            self._unready.pop((object_id, peer.address), None)
            self.feed(ev.Withdrawn(object_id, peer.address))

    def free(self, message: nodes.FreeCopies) -> None:
        """The owner freed objects."""
        for object_id in message.object_ids:
            self.feed(ev.CopyFreed(object_id))
            self._copies.pop(object_id, None)
        self._store.free_copies(message.object_ids)

    def _sources(
        self, message: nodes.PullObject
    ) -> tuple[tuple[ev.Source, ...], dict[str, str]]:
        """Where the object may be fetched from, and why not from the others."""
        copy = f"o-{message.object_id.hex()}"
        named = [(message.segment.node, message.segment.name)]
        named += [(node, copy) for node in message.copies]
        sources: list[ev.Source] = []
        unusable: dict[str, str] = {}
        for node, name in named:
            info = self._nodes.get(node)
            if node == self._node_id:
                continue
            if info is None:
                unusable[node] = f"node {node[:8]} is not known here"
            elif not info.alive:
                unusable[node] = f"node {node[:8]}: {_death(info)}"
            elif not info.flight_address:
                unusable[node] = f"node {node[:8]} has no Flight server"
            else:
                sources.append(ev.Source(node, name))
        return tuple(dict.fromkeys(sources)), unusable

    def _is_dead(self, node: str) -> bool:
        info = self._nodes.get(node)
        return info is not None and not info.alive

    # The machine.

    def feed(self, event: Any) -> None:
        """Gives the machine an event and carries its commands out.

        Events that a command causes wait until all commands before are carried out.
        """
        self._pending.append(event)
        if self._is_feeding:
            return
        self._is_feeding = True
        try:
            while self._pending:
                now = self._server.now()
                for command in self.pulls.handle(self._pending.popleft(), now):
                    _COMMANDS[type(command)](self, command)
        finally:
            self._is_feeding = False

    def _reserve(self, command: ev.ReserveRoom) -> None:
        task = self._server.loop.create_task(self._make_room(command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _make_room(self, command: ev.ReserveRoom) -> None:
        from rayshim.adapters.raylet.store_files import StoreFull

        object_id, making = command.object_id, command.making
        try:
            await self._wait_started()
            folder = await self._store.reserve(making.size_bytes)
        except StoreFull as error:
            self.feed(ev.RoomRefused(object_id, f"the store here is full: {error}"))
            return
        except Exception as error:
            if not isinstance(error, OSError):
                logger.exception("no room could be made for %s", object_id.hex())
            # Whatever it was, the askers must hear of it.
            reason = str(error) or type(error).__name__
            self.feed(ev.RoomRefused(object_id, reason))
            return
        name = f"o-{object_id.hex()}"
        layout = list(making.layout)
        segment = Segment(name, making.capacity, self._node_id, "", layout)
        file = _File(segment, making.size_bytes, folder, -1)
        try:
            file.fd = _create(file.unfinished, segment.capacity)
        except OSError as error:
            self._unreserve(file)
            reason = f"no file for its copy can be made here: {error}"
            self.feed(ev.RoomRefused(object_id, reason))
            return
        self._files[object_id] = file
        self.feed(ev.RoomGiven(object_id))

    def _unreserve(self, file: _File) -> None:
        if file.folder == self._folder:
            self._store.unreserve(file.size_bytes)

    def _fetch(self, command: ev.FetchRange) -> None:
        from rayshim.adapters.flight.client import Stopper

        info = self._nodes.get(command.source.node)
        address = info.flight_address if info else ""
        stopper = self._stoppers[command.fetch] = Stopper()
        fd = self._files[command.object_id].fd
        self._threads.submit(self._run, command, address, fd, stopper)

    def _run(
        self, command: ev.FetchRange, address: str, fd: int, stopper: Stopper
    ) -> None:
        """Fetches in a thread and reports to the loop."""
        outcome = self._try(command, address, fd, stopper)
        try:
            self._server.loop.call_soon_threadsafe(self._ended, command.fetch, outcome)
        except RuntimeError:  # The loop is closed: the node leaves.
            pass

    def _try(
        self, command: ev.FetchRange, address: str, fd: int, stopper: Stopper
    ) -> ev.RangeArrived | ev.RangeBroken | ev.WriteFailed:
        from rayshim.adapters.flight.client import SourceBroken, WriteError

        object_id, fetch = command.object_id, command.fetch
        span = (command.offset, command.size_bytes)
        receiver = self._receiver
        assert receiver is not None, "a pull before the start"
        try:
            receiver.fetch(address, command.source.name, object_id, span, fd, stopper)
        except SourceBroken as error:
            got, reason = error.received_bytes, error.reason
            return ev.RangeBroken(object_id, fetch, got, reason, error.is_gone)
        except WriteError as error:
            return ev.WriteFailed(object_id, fetch, str(error))
        except Exception as error:
            # Whatever it was, the pull must hear of its end.
            logger.exception("a fetch of %s failed", object_id.hex())
            reason = f"{type(error).__name__}: {error}"
            return ev.RangeBroken(object_id, fetch, 0, reason)
        return ev.RangeArrived(object_id, fetch)

    def _ended(
        self,
        fetch: int,
        outcome: ev.RangeArrived | ev.RangeBroken | ev.WriteFailed,
    ) -> None:
        self._stoppers.pop(fetch, None)
        if not self._is_ended:
            self.feed(outcome)

    def _stop_fetches(self, command: ev.StopFetches) -> None:
        for fetch in command.fetches:
            stopper = self._stoppers.get(fetch)
            if stopper is not None:
                stopper.stop()

    def _seal(self, command: ev.SealCopy) -> None:
        object_id = command.object_id
        file = self._files.pop(object_id)
        os.close(file.fd)
        try:
            os.rename(file.unfinished, f"{file.folder}/{file.segment.name}")
        except OSError as error:
            self._unreserve(file)
            reason = f"its copy here cannot be named: {error}"
            for asker in command.askers:
                self._refuse(ev.Refuse(object_id, asker, reason, False))
            return
        name = file.segment.name
        first = command.askers[0] if command.askers else ""
        self._store.copy_made(object_id, name, file.size_bytes, pinned_by=first)
        self._unreserve(file)
        self._describe(object_id, file.segment)
        for asker in command.askers:
            self._store.pin_copy(object_id, asker)
            answer = nodes.ObjectPulled(object_id, file.segment)
            if not self._server.send(asker, answer):
                self._store.unpin([object_id], asker)

    def _describe(self, object_id: bytes, segment: Segment) -> None:
        self._copies[object_id] = segment
        if len(self._copies) > MAX_DESCRIBED:
            held = self._store.copies.names
            kept = {one: copy for one, copy in self._copies.items() if one in held}
            self._copies = kept

    def _drop(self, command: ev.DropRoom) -> None:
        self._remove(self._files.pop(command.object_id))

    def _remove(self, file: _File) -> None:
        os.close(file.fd)
        try:
            os.unlink(file.unfinished)
        except FileNotFoundError:
            pass
        self._unreserve(file)

    def _refuse(self, command: ev.Refuse) -> None:
        answer = nodes.ObjectPulled(
            command.object_id, None, command.reason, command.is_gone
        )
        self._server.send(command.asker, answer)


def _handlers(service: PullService) -> dict[type, Any]:
    return {
        nodes.PullObject: lambda server, peer, message: service.pull(peer, message),
        nodes.UnpinCopies: lambda server, peer, message: service.unpin(peer, message),
        nodes.FreeCopies: lambda server, peer, message: service.free(message),
    }


def _create(path: str, size_bytes: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    try:
        os.ftruncate(fd, size_bytes)  # A hole: takes no memory.
    except BaseException:
        os.close(fd)
        os.unlink(path)
        raise
    return fd


def _end(segment: Segment) -> int:
    """Bytes from the start of a segment to the end of its last part."""
    pairs = zip(segment.layout[::2], segment.layout[1::2], strict=False)
    return max((offset + size_bytes for offset, size_bytes in pairs), default=0)


def _death(info: nodes.NodeInfo) -> str:
    return info.death or "it died"


_COMMANDS: dict[type, Callable[[PullService, Any], None]] = {
    ev.ReserveRoom: PullService._reserve,
    ev.FetchRange: PullService._fetch,
    ev.StopFetches: PullService._stop_fetches,
    ev.SealCopy: PullService._seal,
    ev.DropRoom: PullService._drop,
    ev.Refuse: PullService._refuse,
}
