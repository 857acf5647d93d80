"""The receiving side: fetches ranges of values into files of this node's store.

gRPC receives into memory of its own, and Arrow joins the pieces of a batch in one
buffer, so that each byte is copied twice more than on a plain socket. What is left to
choose is how it gets from there to the file (``pwrite`` beats every kind of mapping of
a fresh file, see :mod:`rayshim.adapters.shm.store`), and that the memory in between is
used again: by default the C library gives it back to the kernel after each batch, and
clearing it anew costs a quarter of the receiver's time.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from rayshim.adapters.flight import tickets
from rayshim.adapters.flight.proofs import ClientProof
from rayshim.adapters.flight.server import BYTES_SCHEMA, GONE
from rayshim.adapters.flight.tickets import Ticket

if TYPE_CHECKING:
    from rayshim.adapters.wire.tls import Credentials

#: A range that is slower than this is given up (the sender hangs, the link is cut).
SLOWEST_BYTES_PER_S = 4 << 20
#: What a call may take beyond that.
PATIENCE_S = 10.0
#: Idle connections to one node that are kept.
MAX_IDLE = 4

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    # A connection of its own for each client: streams in parallel share none.
    ("grpc.use_local_subchannel_pool", 1),
    # A host that is gone without a word is noticed after 15 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
]


#: ``mallopt`` parameters of the GNU C library, and what they are set to: blocks below
#: the one are not mapped one by one; what is free at the end of the heap is given back
#: above the other. Both are a few batches.
_MMAP_THRESHOLD, _MMAP_BYTES = -3, 32 << 20
_TRIM_THRESHOLD, _TRIM_BYTES = -1, 64 << 20


def _keep_freed_memory() -> None:
    """Lets batches reuse each other's memory in this process."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)


class SourceBroken(Exception):
    """A range ended early."""

    def __init__(self, received_bytes: int, reason: str, *, is_gone: bool) -> None:
        super().__init__(reason)
        #: Bytes from its start that are in the file.
        self.received_bytes = received_bytes
        self.reason = reason
        #: The sender says that it has no such value.
        self.is_gone = is_gone


class WriteError(Exception):
    """The local file cannot be written."""


class Stopper:
    """Ends a fetch early, from any thread.

    A call that the sender has not begun to answer cannot be cancelled: it ends with
    its connection or its limit of time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reader: Any = None
        self.is_stopped = False

    def stop(self) -> None:
        """Ends it; harmless when it has ended."""
        with self._lock:
            self.is_stopped = True
            reader = self._reader
        if reader is not None:
            reader.cancel()

    def watch(self, reader: Any) -> None:
        """Names what to cancel; None when it is over."""
        with self._lock:
            self._reader = reader
            is_stopped = self.is_stopped
        if is_stopped and reader is not None:
            reader.cancel()


class _Line:
    """One connection, used by one thread at a time."""

    def __init__(
        self, address: str, token: bytes, credentials: Credentials | None
    ) -> None:
        self.proof = ClientProof(token)
        options: dict[str, Any] = {}
        if credentials is not None:
            options["tls_root_certs"] = Path(credentials.ca).read_bytes()
            options["cert_chain"] = Path(credentials.cert).read_bytes()
            options["private_key"] = Path(credentials.key).read_bytes()
            if credentials.name:
                options["override_hostname"] = credentials.name
        self.client = flight.FlightClient(
            f"grpc+{'tls' if options else 'tcp'}://{address}",
            middleware=[self.proof],
            generic_options=_OPTIONS,
            **options,
        )


class FlightReceiver:
    """Fetches from the Flight servers of other nodes. Thread-safe.

    Args:
        token: The cluster's token.
        credentials: For TLS.
    """

    def __init__(self, token: bytes, credentials: Credentials | None = None) -> None:
        _keep_freed_memory()
        self._credentials = credentials
        self._token = token
        self._key = tickets.derive_key(token, b"ticket")
        self._lock = threading.Lock()
        #: ``HOST:PORT`` -> connections that nobody uses.
        self._idle: dict[str, list[_Line]] = {}

    def fetch(
        self,
        address: str,
        name: str,
        object_id: bytes,
        span: tuple[int, int],
        fd: int,
        stopper: Stopper,
    ) -> None:
        """Copies a range of a remote value to the same place of a local file.

        Args:
            address: ``HOST:PORT`` of the node's Flight server.
            name: file name there.
            object_id: whose value it is.
            span: offset and size in bytes.
            fd: of the local file, open for writing.
            stopper: ends the fetch early.

        Raises:
            SourceBroken: not all bytes came; those that did are in the file.
            WriteError: the local file took no more.
        """
        offset, size_bytes = span
        sink = _Sink(fd, offset, size_bytes)
        line = self._take(address)
        ticket = Ticket(
            name, object_id, offset, size_bytes, time.time() + tickets.LIFE_S
        )
        limit_s = PATIENCE_S + size_bytes / SLOWEST_BYTES_PER_S
        try:
            reader = line.client.do_get(
                flight.Ticket(tickets.sign(self._key, ticket)),
                flight.FlightCallOptions(timeout=limit_s),
            )
            stopper.watch(reader)
            for chunk in reader:
                if not line.proof.is_proved:
                    raise SourceBroken(
                        0, "it does not know this cluster's token", is_gone=False
                    )
                sink.take(chunk.data)
        except (pa.ArrowException, OSError, ValueError, TypeError) as error:
            self._drop(line)
            if stopper.is_stopped:
                reason = "the transfer was stopped"
            elif isinstance(error, flight.FlightTimedOutError):
                reason = f"no {size_bytes} bytes within {limit_s:.0f} s"
            else:
                reason = _said(error)
            is_gone = getattr(error, "extra_info", b"") == GONE
            raise SourceBroken(sink.received, reason, is_gone=is_gone) from error
        except BaseException:
            self._drop(line)
            raise
        finally:
            stopper.watch(None)
        if sink.received != size_bytes:
            self._drop(line)
            raise SourceBroken(sink.received, "the stream ended early", is_gone=False)
        self._give_back(address, line)

    def forget(self, address: str) -> None:
        """Closes the idle connections to a node."""
        with self._lock:
            lines = self._idle.pop(address, [])
        for line in lines:
            line.client.close()

    def close(self) -> None:
        """Closes all idle connections."""
        for address in list(self._idle):
            self.forget(address)

    def _take(self, address: str) -> _Line:
        with self._lock:
            lines = self._idle.get(address)
            if lines:
                return lines.pop()
        return _Line(address, self._token, self._credentials)

    def _give_back(self, address: str, line: _Line) -> None:
        with self._lock:
            lines = self._idle.setdefault(address, [])
            if len(lines) < MAX_IDLE:
                lines.append(line)
                return
        self._drop(line)

    def _drop(self, line: _Line) -> None:
        line.client.close()


class _Sink:
    """Writes a stream of batches to its place in a file."""

    def __init__(self, fd: int, offset: int, size_bytes: int) -> None:
        self._fd = fd
        self._offset = offset
        self._size_bytes = size_bytes
        self.received = 0

    def take(self, batch: Any) -> None:
        """Writes the next batch.

        Raises:
            ValueError: it is not of the agreed form, or more than was asked for.
            WriteError: the file took no more.
        """
        if not batch.schema.equals(BYTES_SCHEMA):
            raise ValueError(f"the stream has another schema: {batch.schema}")
        column = batch.column(0)
        rows = len(column)
        if rows > self._size_bytes - self.received or column.null_count:
            raise ValueError("the stream holds more than was asked for")
        view = memoryview(column.buffers()[1])
        view = view[column.offset : column.offset + rows]
        done = 0
        try:
            while done < rows:
                place = self._offset + self.received
                written = os.pwrite(self._fd, view[done:], place)
                done += written
                self.received += written
        except OSError as error:
            raise WriteError(f"cannot write the copy: {error}") from error


def _said(error: BaseException) -> str:
    """The first line of what gRPC says, which repeats itself at length."""
    text = str(error).partition("\n")[0].partition(". Detail:")[0]
    text = text.partition("gRPC client debug context")[0].strip()
    return text or type(error).__name__
