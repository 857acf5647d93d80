"""A Flight server of some folder in a process of its own, and a node that pulls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rayshim.adapters.raylet.pull_service import PullService
from rayshim.adapters.raylet.store_files import StoreFull
from rayshim.adapters.wire import node_messages as nodes
from rayshim.adapters.wire.messages import Segment
from rayshim.lineage.store_policy import Copies

TOKEN = bytes(range(32))
NODE = "0a" * 28
PAGE = 4096
PROGRAM = Path(__file__).with_name("flight_sender.py")


class Sender:
    """A node that only sends."""

    def __init__(self, folder: Path, number: int, block_after: int = -1) -> None:
        """Starts it.

        Args:
            folder: holds the values.
            number: makes its node id.
            block_after: values that it opens before it hangs; -1: no limit.
        """
        self.node_id = f"{number:02x}" * 28
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), TOKEN.hex(), str(folder), str(block_after)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()

    def kill(self) -> None:
        """Ends it by SIGKILL."""
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def info(self, *, alive: bool = True, death: str = "") -> nodes.NodeInfo:
        """What the head says of it."""
        return nodes.NodeInfo(
            self.node_id, "tcp:x", self.address, "127.0.0.1", alive, 0.0, death
        )


@contextlib.contextmanager
def sender(folder: Path, number: int = 1, block_after: int = -1) -> Iterator[Sender]:
    """A sender that is gone afterwards."""
    made = Sender(folder, number, block_after)
    try:
        yield made
    finally:
        made.kill()


def write_value(folder: Path, name: str, size_bytes: int) -> bytes:
    """A file of a store with bytes that differ everywhere."""
    block = os.urandom(1 << 16)
    data = b"".join(
        number.to_bytes(8, "little") + block
        for number in range(size_bytes // (len(block) + 8) + 1)
    )[:size_bytes]
    (folder / name).write_bytes(data)
    return data


def segment_of(source: Sender, name: str, size_bytes: int) -> Segment:
    """The description of such a file, one part long."""
    capacity = -(-size_bytes // PAGE) * PAGE
    return Segment(name, capacity, source.node_id, "unix:x", [0, size_bytes])


class Store:
    """Gives room up to a limit and keeps copies, like the real one."""

    def __init__(self, folder: Path, limit_bytes: int = 1 << 40) -> None:
        self._folder = folder
        self.free_bytes = limit_bytes
        self.copies = Copies()

    async def reserve(self, size_bytes: int) -> str:
        """Room for a file."""
        await asyncio.sleep(0)
        if size_bytes > self.free_bytes:
            raise StoreFull(f"{size_bytes} wanted, {self.free_bytes} free")
        self.free_bytes -= size_bytes
        return str(self._folder)

    def unreserve(self, size_bytes: int) -> None:
        """The end of a reservation."""
        self.free_bytes += size_bytes

    def copy_made(
        self, object_id: bytes, name: str, size_bytes: int, *, pinned_by: str = ""
    ) -> None:
        """A finished copy."""
        self.copies.add(object_id, name, size_bytes, pinned_by, 0.0)

    def pin_copy(self, object_id: bytes, peer: str) -> str | None:
        """A pin."""
        return self.copies.pin(object_id, peer, 0.0)

    def unpin(self, object_ids: Iterable[bytes], peer: str) -> None:
        """The end of pins."""
        self._remove(self.copies.unpin(object_ids, peer))

    def free_copies(self, object_ids: Iterable[bytes]) -> None:
        """The end of objects."""
        self._remove(self.copies.free(object_ids))

    def open_for_sending(self, name: str) -> int:
        """A descriptor."""
        return os.open(self._folder / name, os.O_RDONLY)

    def _remove(self, names: list[str]) -> None:
        for name in names:
            (self._folder / name).unlink()


class PullingNode:
    """What the service needs of its node; keeps what it sends."""

    def __init__(self, folder: Path, limit_bytes: int = 1 << 40) -> None:
        self.folder = folder
        self.config = SimpleNamespace(
            credentials=lambda: None,
            store_dir=str(folder),
            node_id=NODE,
            resources={},
            token=lambda: TOKEN,
        )
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self.flight_address = ""
        self.sent: list[tuple[str, Any]] = []
        self._news = asyncio.Event()
        self.handlers: dict[type, Any] = {}
        self.store = Store(folder, limit_bytes)
        self.service = PullService(self, self.store)  # type: ignore[arg-type]

    def send(self, address: str, message: Any) -> bool:
        """Keeps it."""
        self.sent.append((address, message))
        self._news.set()
        return True

    def add_handlers(self, handlers: dict[type, Any]) -> None:
        """As the real one."""
        self.handlers.update(handlers)

    def set_flight_address(self, address: str) -> None:
        """Keeps it."""
        self.flight_address = address

    def take(self, asker: str, message: Any) -> None:
        """A message from a process of this node."""
        peer = SimpleNamespace(address=asker)
        self.handlers[type(message)](self, peer, message)

    def table(self, *infos: nodes.NodeInfo) -> None:
        """A table of nodes from the head."""
        self.service.nodes_changed(nodes.NodeTable(list(infos)))

    async def answers(self, count: int) -> list[tuple[str, nodes.ObjectPulled]]:
        """Waits until that many answers were sent."""
        async with asyncio.timeout(50):
            while len(self.sent) < count:
                self._news.clear()
                await self._news.wait()
        return self.sent

    def read(self, segment: Segment) -> bytes:
        """The one part of a finished copy."""
        offset, size_bytes = segment.layout
        data = (self.folder / segment.name).read_bytes()
        assert len(data) == segment.capacity
        return data[offset : offset + size_bytes]


@contextlib.asynccontextmanager
async def pulling(folder: Path, **options: Any) -> Any:
    """A node that pulls, and is gone afterwards with all its unfinished files."""
    node = PullingNode(folder, **options)
    node.service.begin("127.0.0.1", "127.0.0.1")
    try:
        yield node
    finally:
        await node.service.stop(10.0)
        assert not list(folder.glob("*.w"))
