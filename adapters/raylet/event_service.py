"""A process's part for events: keeps the newest, and has all of them written.

Made at the first event. Batches stay the bytes as which they came; whoever asks decodes
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim.adapters.events import history
from rayshim.adapters.events.writer import EventWriter
from rayshim.adapters.raylet.questions import PROCESSES_SHARE
from rayshim.adapters.wire.ask_messages import Ask
from rayshim.adapters.wire.event_messages import CallsTold, without_values

if TYPE_CHECKING:
    from rayshim.adapters.raylet.config import NodeConfig
    from rayshim.adapters.wire.event_messages import TaskEvents

#: Calls that are kept without the setting ``task_events_kept``.
KEPT = 100_000
#: Bytes of what is kept: errors have long texts.
KEPT_BYTES = 128 << 20
#: Bytes of all event files of a process without the setting ``event_log_bytes``.
LOG_BYTES = 256 << 20
#: Bytes of a spool that becomes Arrow files.
FILE_BYTES = 4 << 20


class EventService:
    """The events of a node or head process.

    Args:
        config: Of the process.
    """

    def __init__(self, config: NodeConfig) -> None:
        settings = config.settings
        self._folder = Path(config.session_dir)
        self._keep = int(settings.get("history_sessions", 0))
        limit_bytes = int(settings.get("event_log_bytes", LOG_BYTES))
        if limit_bytes > 0:
            history.begin(
                self._folder,
                secret=config.token(),
                head=config.head_address or config.address,
                is_head=not config.head_address,
                keep=self._keep,
                keep_bytes=int(settings.get("history_bytes", 1 << 30)),
            )
        self._kept = int(settings.get("task_events_kept", KEPT))
        #: (calls, the batch), the oldest first.
        self._batches: deque[tuple[int, bytes]] = deque()
        self._count = 0
        self._kept_bytes = 0
        #: Calls that were let go of.
        self.dropped = 0
        self._writer = EventWriter(
            self._folder / "events",
            limit_bytes=limit_bytes,
            file_bytes=int(settings.get("event_file_bytes", FILE_BYTES)),
        )

    def take(self, message: TaskEvents) -> None:
        """Takes in what a process tells."""
        self._batches.append((message.count, message.batch))
        self._count += message.count
        self._kept_bytes += len(message.batch)
        while self._is_too_much() and len(self._batches) > 1:
            count, oldest = self._batches.popleft()
            self._count -= count
            self._kept_bytes -= len(oldest)
            self.dropped += count
        batch = message.batch
        if message.has_values:
            batch = without_values(batch)  # files outlive the session
        self._writer.add("calls", batch)

    def _is_too_much(self) -> bool:
        return self._count > self._kept or self._kept_bytes > KEPT_BYTES

    def add_cluster_events(self, events: Sequence[Any]) -> None:
        """Takes in changes of nodes, jobs, actors and placement groups."""
        self._writer.add("cluster", msgspec.msgpack.encode(events))

    def keep(self) -> None:
        """Moves the files, and the logs, to where they outlive the session."""
        if self._keep > 0:
            history.archive(self._folder)

    @property
    def ended(self) -> int:
        """Calls that were told of, since this node began."""
        return self._count + self.dropped

    def batches(self) -> list[bytes]:
        """The batches that are kept, the oldest first."""
        return [batch for _, batch in self._batches]

    @property
    def told_count(self) -> int:
        """Calls that were told of so far."""
        return self.dropped + self._count

    def newest_first(self) -> Iterator[tuple[int, bytes]]:
        """The batches that are kept, with the number of calls in each."""
        return reversed(self._batches)

    def newest(self, count: int) -> list[bytes]:
        """Batches with the newest calls, so many or a few more, the oldest first."""
        found: list[bytes] = []
        for held, batch in reversed(self._batches):
            if count <= 0:
                break
            found.append(batch)
            count -= held
        return found[::-1]

    def close(self) -> None:
        """Writes what is left."""
        self._writer.close()


async def calls(server: Any, payload: bytes) -> bytes:
    """Answers the question ``calls``: what ended, and what the processes here do.

    Processes send what they have not told yet before they answer, on one channel, so
    that it is here when they have answered.
    """
    limit_s = msgspec.msgpack.decode(payload, type=float)
    return await _told(server, limit_s, lambda service: service.batches())


async def newest_calls(server: Any, payload: bytes) -> bytes:
    """Answers the question ``newest_calls``: as ``calls``, with the newest ends alone.

    Its payload is the seconds that processes may take, and the number of ends.
    """
    limit_s, count = msgspec.msgpack.decode(payload, type=tuple[float, int])
    return await _told(server, limit_s, lambda service: service.newest(count))


async def _told(
    server: Any, limit_s: float, choose: Callable[[EventService], list[bytes]]
) -> bytes:
    question = Ask(0, "calls", b"", "processes", limit_s=limit_s * PROCESSES_SHARE)
    processes = await server.questions.ask_processes(question)
    service = server._event_files
    kept = choose(service) if service is not None else []
    dropped = service.dropped if service is not None else 0
    return msgspec.msgpack.encode(CallsTold(dropped, kept, processes))
