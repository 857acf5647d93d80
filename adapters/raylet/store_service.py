"""The limits of a node's store: room for writers, spilling, restoring.

Who has a file is decided by renames (:mod:`rayshim.adapters.shm.give`): a value that is
to be spilled is taken over from its creator first, who can recycle it no more from
then on. Readers find it under both names, or ask for it (``RestoreSegments``).
Removing a file that somebody reads is safe: the memory lives as long as its views.

Moves of memory happen one after the other, copies of files in threads, so that leases
go on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from rayshim.adapters.raylet import spill_target, store_files
from rayshim.adapters.raylet.holdings import HoldingsSurvey
from rayshim.adapters.raylet.spill_target import SpillFull
from rayshim.adapters.shm import give, viewtable
from rayshim.adapters.shm.layout import NAME
from rayshim.adapters.wire import node_messages as n
from rayshim.lineage import store_policy
from rayshim.lineage.store_policy import Copies, Holder

if TYPE_CHECKING:
    from rayshim.adapters.raylet.channels import Peer
    from rayshim.adapters.raylet.server import NodeServer

logger = logging.getLogger(__name__)

#: Share of the store above which values are spilled before anybody has to wait.
BACKGROUND_SHARE = 0.8
#: How often the store is looked at; nothing is read while its folder did not change.
LOOK_S = 1.0
#: A restored value stays at least so long: whoever asked has to map it.
RESTORED_S = 1.0
#: What other processes drop when they are asked comes back within this time.
SETTLE_S = 0.1
#: Files are looked through again after so many spilled bytes.
BATCH_BYTES = 64 << 20


class StoreService:
    """Keeps a store within its limit; one instance for each node.

    What other services use (on the loop unless said otherwise)::

        folder = await store.reserve(size_bytes)  # for a file about to be written
        ... write FOLDER/o-HEX.w, rename it to o-HEX ...
        store.copy_made(object_id, "o-HEX", size_bytes, pinned_by=peer_address)
        store.unreserve(size_bytes)               # if the folder is the store's
    """

    def __init__(self, server: NodeServer) -> None:
        config = server.config
        self._server = server
        self._folder = config.store_dir
        asked = int(config.settings.get("object_store_limit_bytes") or 0)
        asked = asked or int(config.resources.get("object_store_memory") or 0)
        self.limit_bytes = asked
        #: As the setting: 0: what leaves 5 % of the disk free; -1: no spilling.
        self._spill_limit_bytes = int(config.settings.get("spill_limit_bytes") or 0)
        self._label = f"rayshim-{config.session}-{config.node_id[:8]}"
        self._target: spill_target.SpillTarget | None = None
        self.copies = Copies()
        #: Names with a twin in the spill folder -> its size, bytes.
        self.spilled: dict[str, int] = {}
        #: The same names -> mark of the owner.
        self.spilled_owners: dict[str, bytes] = {}
        #: Name -> when somebody last asked for it, seconds since the epoch.
        self._asked_s: dict[str, float] = {}
        #: Restored just now: name -> until when it stays in any case.
        self._fresh: dict[str, float] = {}
        #: Being copied to the spill folder -> discarded meanwhile.
        self._copying: dict[str, bool] = {}
        #: Being restored -> where it is then ("" in memory, else a file), or None.
        self._restoring: dict[str, asyncio.Task[str | None]] = {}
        self._reserved_bytes = 0
        self._moving = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._survey = HoldingsSurvey(server.loop)
        self._looked_ns = 0
        #: Of the last look, for reports to others.
        self.used_bytes = 0
        #: Values that are no copies of other nodes' ones; no other need have them.
        self.primary_bytes = 0
        self._tick: asyncio.TimerHandle | None = None
        server.add_handlers(
            {
                n.MakeRoom: lambda _, peer, message: self._on_make_room(peer, message),
                n.RestoreSegments: lambda _, peer, message: self._on_restore(
                    peer, message
                ),
                n.DiscardSegments: lambda _, peer, message: self._on_discard(
                    peer, message
                ),
                n.Holdings: lambda _, peer, message: self._survey.answered(
                    peer, message
                ),
            }
        )
        if self._folder:
            self._look()

    # --- what other services use ------------------------------------------------

    async def reserve(self, size_bytes: int) -> str:
        """Make room, and keep it for a file that is about to be written.

        Returns:
            The folder to write it to: the store's, where it has to be unreserved
            later; or one on disk, if all that the store holds is in use.

        Raises:
            store_files.StoreFull: there is none to be made.
        """
        async with self._moving:
            error = await self._make_room(size_bytes)
            if not error:
                self._reserved_bytes += size_bytes
                return self._folder
            if self._has_disk_room(size_bytes):
                return self._make_outside()
            raise store_files.StoreFull(self._report(size_bytes, error, ()))

    def _has_disk_room(self, size_bytes: int) -> bool:
        if self._spill_limit_bytes < 0:
            return False
        used, limit = self._disk()
        return used + size_bytes <= limit

    def unreserve(self, size_bytes: int) -> None:
        """Give up what :meth:`reserve` kept: the file counts itself, or failed."""
        self._reserved_bytes = max(0, self._reserved_bytes - size_bytes)

    def copy_made(
        self, object_id: bytes, name: str, size_bytes: int, *, pinned_by: str = ""
    ) -> None:
        """A pulled copy is complete."""
        self.copies.add(object_id, name, size_bytes, pinned_by, time.time())

    def pin_copy(self, object_id: bytes, peer: str) -> str | None:
        """Pin a copy that is here already: its name, or None if it is not."""
        return self.copies.pin(object_id, peer, time.time())

    def unpin(self, object_ids: Iterable[bytes], peer: str) -> None:
        """``peer`` reads these copies no more."""
        self._remove_files(self.copies.unpin(object_ids, peer))

    def free_copies(self, object_ids: Iterable[bytes]) -> None:
        """The owner freed these objects; what is still pinned goes at its unpin."""
        self._remove_files(self.copies.free(object_ids))

    def open_for_sending(self, name: str) -> int:
        """A descriptor for the content of a value, in memory or spilled.

        From any thread; it stays readable if the value is spilled or freed meanwhile.

        Raises:
            FileNotFoundError: the node has no such value.
        """
        if not NAME.fullmatch(name):
            raise FileNotFoundError(name)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        # Twice: it may be taken over, or restored, between two looks.
        for _ in range(2):
            for path in (
                f"{self._folder}/{name}",
                f"{self._folder}/{name}{give.KEPT}",
                f"{self.outside_folder}/{name}",
            ):
                try:
                    return os.open(path, flags)
                except FileNotFoundError:
                    continue
        if name not in self.spilled:
            raise FileNotFoundError(name)
        return self._open_remote(name)

    def _open_remote(self, name: str) -> int:
        """Fetch a value that was spilled to a URL into a file without a name."""
        path = f"{self._make_outside()}/{name}.sent-{time.monotonic_ns()}"
        try:
            self._get_target().read(name, path)
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            spill_target.remove_file(path)

    async def count_lent(self) -> int:
        """Objects of this node's processes that other processes hold."""
        return await self._survey.count_lent(self._local_peers())

    def peer_gone(self, address: str) -> None:
        """A process ended, and its pins with it."""
        self._remove_files(self.copies.peer_gone(address))
        self._survey.peer_gone(address)

    def close(self) -> None:
        """The node ends: what is spilled elsewhere goes (may take a moment)."""
        if self._tick is not None:
            self._tick.cancel()
        if self._target is not None:
            self._target.close()

    @property
    def spilled_bytes(self) -> int:
        """Size of all spilled values."""
        return sum(self.spilled.values())

    # --- places -------------------------------------------------------------------

    def _get_target(self) -> spill_target.SpillTarget:
        if self._target is None:
            config = self._server.config
            wanted = str(config.settings.get("spill_dir") or "")
            self._target = spill_target.open_target(
                wanted, config.session_dir, self._label
            )
        return self._target

    @property
    def outside_folder(self) -> str:
        """Folder on a disk of this node whose files peers may map."""
        if isinstance(self._target, spill_target.FolderTarget):
            return self._target.folder
        return os.path.join(self._server.config.session_dir, "spill")

    def _make_outside(self) -> str:
        self._get_target()
        os.makedirs(self.outside_folder, mode=0o700, exist_ok=True)
        return self.outside_folder

    def _disk(self) -> tuple[int, int]:
        """What the local folder holds, and what it may hold."""
        used = store_files.folder_bytes(self.outside_folder)
        if self._spill_limit_bytes < 0:
            return used, 0
        try:
            about = os.statvfs(self._make_outside())
        except OSError:
            return used, 0
        total, free = about.f_blocks * about.f_frsize, about.f_bavail * about.f_frsize
        limit = store_policy.spill_limit(self._spill_limit_bytes, total, free, used)
        return used, min(limit, used + free)

    def _spill_room(self) -> int | None:
        """Bytes that the spill target still takes; None: without limit."""
        if isinstance(self._get_target(), spill_target.FolderTarget):
            used, limit = self._disk()
            return max(0, limit - used)
        if self._spill_limit_bytes:
            return max(0, self._spill_limit_bytes - self.spilled_bytes)
        return None

    # --- room -----------------------------------------------------------------------

    def _inventory(self) -> store_files.Inventory:
        now = time.time()
        for name, until in list(self._fresh.items()):
            if now > until:
                del self._fresh[name]
        found = store_files.look(
            self._folder,
            spilled=self.spilled,
            copies=self.copies.sizes,
            pinned=[*self.copies.pinned_names(), *self._fresh, *self._copying],
            asked_s=self._asked_s,
        )
        self.used_bytes = found.used_bytes
        return found

    def _missing(self, found: store_files.Inventory, size_bytes: int) -> int:
        """What has to be freed before ``size_bytes`` fit."""
        about = os.statvfs(self._folder)
        available = about.f_bavail * about.f_frsize
        if self.limit_bytes:
            available = min(available, self.limit_bytes - found.used_bytes)
        return size_bytes + self._reserved_bytes - available

    async def _make_room(self, size_bytes: int) -> str:
        """Free memory until a value fits (under the lock); "", "full" or "disk"."""
        error = "full"
        if self.limit_bytes and size_bytes > self.limit_bytes:
            return error
        for attempt in range(3):
            found = self._inventory()
            missing = self._missing(found, size_bytes)
            if missing <= 0:
                return ""
            for orphan in found.orphans:
                spill_target.remove_file(f"{self._folder}/{orphan}")
            if give.claim(self._folder, missing):
                found = self._inventory()
                missing = self._missing(found, size_bytes)
                if missing <= 0:
                    return ""
            # A little more, so that not every writer has to ask.
            extra = min(self.limit_bytes // 20, BATCH_BYTES)
            error = await self._free(found, missing + extra) or "full"
            found = self._inventory()
            if self._missing(found, size_bytes) <= 0:
                return ""
            if attempt == 0:
                # Everybody looks for what it has dropped, before it answers.
                await self._survey.ask(self._local_peers())
            await asyncio.sleep(SETTLE_S / 2)
        return error

    async def _free(self, found: store_files.Inventory, wanted_bytes: int) -> str:
        """Drop and spill; "disk" if the disk could not take all that was to go."""
        chosen = store_policy.plan(found.values, wanted_bytes, self._spill_room())
        if chosen.drop:
            for name in chosen.drop:
                store_files.remove(self._folder, name)
                if name not in self.spilled:  # else it is a copy on disk still
                    self.copies.forget(name)
            self._announce(chosen.drop)
        error = ""
        if chosen.refused_bytes and self._spill_limit_bytes >= 0:
            error = "disk"
        batch: list[str] = []
        batch_bytes = 0
        sizes = {held.name: held.size_bytes for held in found.values}
        for name in chosen.spill:
            batch.append(name)
            batch_bytes += sizes[name]
            if batch_bytes >= BATCH_BYTES:
                error = await self._spill(batch, found.kept) or error
                batch, batch_bytes = [], 0
        if batch:
            error = await self._spill(batch, found.kept) or error
        return error

    async def _spill(self, names: list[str], kept: set[str]) -> str:
        """Write values to the spill folder and remove them; "disk" if it is full."""
        target = self._get_target()
        error = ""
        written = []
        for name in names:
            if name not in kept and not store_files.take_over(self._folder, name):
                continue  # its creator has recycled it: all the better
            self._copying[name] = False
            path = f"{self._folder}/{name}{give.KEPT}"
            try:
                mark = store_files.mark_of(path)
                size = await asyncio.to_thread(target.write, path, name)
            except SpillFull as full:
                logger.warning("the spill folder is full: %s", full)
                error = "disk"
            except FileNotFoundError:
                pass  # discarded meanwhile
            except OSError:
                logger.exception("%s could not be spilled to %s", name, target.name)
                error = "disk"
            else:
                self.spilled[name] = size
                self.spilled_owners[name] = mark
                written.append(name)
            if self._copying.pop(name):
                await self._discard_now([name])
            if error:
                break
        views = viewtable.look(self._folder)
        gone = [
            name for name in written if not views.has(name) and name not in self._fresh
        ]
        for name in gone:
            store_files.remove(self._folder, name)
        self._announce(gone)
        return error

    def _announce(self, names: list[str]) -> None:
        if not names:
            return
        message = n.SegmentsSpilled(names)
        for peer in self._local_peers():
            peer.connection.send(message)

    def _local_peers(self) -> list[Peer]:
        peers = self._server.peers.values()
        return [peer for peer in peers if peer.role in ("driver", "executor")]

    def _look(self) -> None:
        """Spill in the background when the store has become nearly full."""
        self._tick = self._server.loop.call_later(LOOK_S, self._look)
        try:
            changed_ns = os.stat(self._folder).st_mtime_ns
        except FileNotFoundError:
            return
        if changed_ns == self._looked_ns or self._moving.locked():
            return
        self._looked_ns = changed_ns
        self.used_bytes, values_bytes = store_files.usage(self._folder)
        self.primary_bytes = values_bytes + self.spilled_bytes
        if self.used_bytes > BACKGROUND_SHARE * self.limit_bytes > 0:
            self._start(self._spill_in_background())

    async def _spill_in_background(self) -> None:
        async with self._moving:
            found = self._inventory()
            used = found.used_bytes - found.free_bytes
            excess = used - int(BACKGROUND_SHARE * self.limit_bytes)
            if excess > 0:
                await self._free(found, excess)

    def _start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = self._server.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("the store service failed", exc_info=task.exception())

    # --- messages -------------------------------------------------------------------

    def _on_make_room(self, peer: Peer, message: n.MakeRoom) -> None:
        self._start(self._answer_room(peer, message))

    async def _answer_room(self, peer: Peer, message: n.MakeRoom) -> None:
        size = message.size_bytes
        answer = n.RoomMade(message.request_id, 0)
        try:
            async with self._moving:
                before = self.used_bytes
                error = await self._make_room(size)
                answer.freed_bytes = max(0, before - self.used_bytes)
                if error and self._has_disk_room(size):
                    answer.outside, error = self._make_outside(), ""
                elif error and self._spill_limit_bytes >= 0:
                    error = "disk"
                if error:
                    holders = await self._survey.ask(self._local_peers())
                    answer.error = error
                    answer.report = self._report(size, error, holders)
        except OSError as failure:
            answer.error, answer.report = "disk", f"{failure}. "
            logger.exception("no room could be made")
        peer.connection.send(answer)

    def _on_restore(self, peer: Peer, message: n.RestoreSegments) -> None:
        self._start(self._answer_restore(peer, message))

    async def _answer_restore(self, peer: Peer, message: n.RestoreSegments) -> None:
        answer = n.SegmentsRestored(message.request_id, [], outside=self.outside_folder)
        errors = []
        for name in message.names:
            try:
                place = await self.restore(name)
            except (OSError, SpillFull) as failure:
                errors.append(f"{name}: {failure}")
                continue
            if place is None:
                errors.append(f"{name} is neither in the store nor spilled")
                continue
            answer.names.append(name)
            if place:
                answer.outside_names.append(name)
        answer.error = "; ".join(errors)
        peer.connection.send(answer)

    async def restore(self, name: str) -> str | None:
        """Bring a value back into memory; everybody who asks shares the work.

        Returns:
            "" if it is in memory, the path of a file on disk if memory has no room
            for it, None if the node has no such value.
        """
        if not NAME.fullmatch(name):
            return None
        task = self._restoring.get(name)
        if task is None:
            task = self._server.loop.create_task(self._restore(name))
            self._restoring[name] = task
            task.add_done_callback(lambda _: self._restoring.pop(name, None))
        return await asyncio.shield(task)

    async def _restore(self, name: str) -> str | None:
        now = time.time()
        self._asked_s[name] = now
        if store_files.find(self._folder, name) is not None:
            self._fresh[name] = now + RESTORED_S
            return ""
        outside = f"{self.outside_folder}/{name}"
        size = self.spilled.get(name)
        if size is None:
            try:  # too large for memory when it was written
                about = os.stat(outside)
            except FileNotFoundError:
                return None
            size = about.st_size
            self.spilled[name] = size
            self.spilled_owners[name] = store_files.mark_of(outside)
        async with self._moving:
            error = await self._make_room_for_reader(size)
            if not error:
                self._reserved_bytes += size
        if error:
            if not os.path.exists(outside):
                self._make_outside()
                await self._fetch(name, outside)
            return outside
        try:
            await self._fetch(name, f"{self._folder}/{name}{give.KEPT}")
        finally:
            self._reserved_bytes -= size
        self._fresh[name] = time.time() + RESTORED_S
        return ""

    async def _make_room_for_reader(self, size_bytes: int) -> str:
        """As for a writer, without waiting for others: a file on disk will do."""
        found = self._inventory()
        missing = self._missing(found, size_bytes)
        if missing > 0 and size_bytes <= self.limit_bytes:
            if give.claim(self._folder, missing):
                found = self._inventory()
                missing = self._missing(found, size_bytes)
            if missing > 0:
                await self._free(found, missing)
                missing = self._missing(self._inventory(), size_bytes)
        return "full" if missing > 0 else ""

    async def _fetch(self, name: str, path: str) -> None:
        """Copy a spilled value to a file of that name."""
        written = path + give.WRITTEN
        try:
            await asyncio.to_thread(self._get_target().read, name, written)
            if name not in self.spilled:
                raise FileNotFoundError(f"{name} was freed")
            os.rename(written, path)
        except BaseException:
            spill_target.remove_file(written)
            raise

    def _on_discard(self, peer: Peer, message: n.DiscardSegments) -> None:
        self.discard(message.names)

    def discard(self, wanted: Iterable[str]) -> None:
        """Nobody needs these values any more."""
        names = [name for name in wanted if NAME.fullmatch(name)]
        for name in names:
            if name in self._copying:
                self._copying[name] = True
        self._start(self._discard_now(names))

    async def _discard_now(self, names: list[str]) -> None:
        twins = []
        for name in names:
            store_files.remove(self._folder, name)
            self._asked_s.pop(name, None)
            self._fresh.pop(name, None)
            spill_target.remove_file(f"{self.outside_folder}/{name}")
            self.spilled_owners.pop(name, None)
            if self.spilled.pop(name, None) is not None:
                twins.append(name)
        if twins and not isinstance(self._target, spill_target.FolderTarget):
            await asyncio.to_thread(self._get_target().remove, twins)

    def _remove_files(self, names: Iterable[str]) -> None:
        for name in names:
            store_files.remove(self._folder, name)
            self.spilled_owners.pop(name, None)
            self.spilled.pop(name, None)
            spill_target.remove_file(f"{self.outside_folder}/{name}")

    # --- who holds what ---------------------------------------------------------------

    def _report(self, size_bytes: int, error: str, holders: Iterable[Holder]) -> str:
        found = self._inventory()
        used, limit = self._disk()
        target = self._get_target()
        if not isinstance(target, spill_target.FolderTarget):
            used = self.spilled_bytes
            limit = self._spill_limit_bytes or limit
        return store_policy.report(
            wanted_bytes=size_bytes,
            limit_bytes=self.limit_bytes,
            used_bytes=found.used_bytes,
            viewed_bytes=found.viewed_bytes,
            spilled_bytes=used,
            spill_limit_bytes=limit,
            spill_target=target.name,
            holders=list(holders),
            error=error,
        )
