"""The sending side: serves ranges of a node's values as record batches.

A range is mapped and handed to Arrow as the buffer of a column of bytes; gRPC sends it
from there, so that no byte is copied in this process's memory. Batches are streamed by
Arrow's threads without the interpreter lock: Python runs only when a call begins.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from rayshim.adapters.flight import tickets
from rayshim.adapters.flight.proofs import ServerProof

if TYPE_CHECKING:
    from rayshim.adapters.wire.tls import Credentials

logger = logging.getLogger(__name__)

#: Bytes of a record batch. From 1 MiB to 16 MiB the speed differs by less than the
#: noise; the receiver holds up to three batches for each stream.
CHUNK_BYTES = 4 << 20
#: One column without nulls: the bytes of the range, in order.
BYTES_SCHEMA = pa.schema([pa.field("bytes", pa.uint8(), nullable=False)])
#: ``extra_info`` of the error for a value that this node does not have.
GONE = b"gone"


class _Service(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types.
    """What Flight calls; every method that is not here answers "unimplemented"."""

    def __init__(
        self,
        location: str,
        token: bytes,
        open_value: Callable[[str], int],
        **options: Any,
    ) -> None:
        super().__init__(location, middleware={"proof": ServerProof(token)}, **options)
        self._key = tickets.derive_key(token, b"ticket")
        self._open_value = open_value

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Streams the range that a ticket names."""
        try:
            wanted = tickets.verify(self._key, ticket.ticket, time.time())
        except tickets.TicketError as error:
            raise flight.FlightUnauthorizedError(str(error)) from None
        reader = pa.RecordBatchReader.from_batches(BYTES_SCHEMA, self._batches(wanted))
        return flight.RecordBatchStream(reader)

    def _batches(self, wanted: tickets.Ticket) -> list[Any]:
        buffer = self._map(wanted)
        batches = []
        for start in range(0, wanted.size_bytes, CHUNK_BYTES):
            size_bytes = min(CHUNK_BYTES, wanted.size_bytes - start)
            part = buffer.slice(start, size_bytes)
            column = pa.Array.from_buffers(pa.uint8(), size_bytes, [None, part])
            batches.append(pa.record_batch([column], schema=BYTES_SCHEMA))
        return batches

    def _map(self, wanted: tickets.Ticket) -> Any:
        """The range as an Arrow buffer, which keeps the mapping."""
        end = wanted.offset + wanted.size_bytes
        first = wanted.offset & -mmap.ALLOCATIONGRANULARITY
        fd = self._open(wanted.name, end)
        try:
            mapped = mmap.mmap(
                fd,
                end - first,
                flags=mmap.MAP_SHARED,
                prot=mmap.PROT_READ,
                offset=first,
            )
        finally:
            os.close(fd)
        return pa.py_buffer(mapped).slice(wanted.offset - first, wanted.size_bytes)

    def _open(self, name: str, end: int) -> int:
        """A descriptor of a value with at least ``end`` bytes.

        No file of a value is ever shortened, so a mapping of it is safe to read.
        """
        try:
            fd = self._open_value(name)
        except FileNotFoundError:
            raise flight.FlightServerError(
                f"the node has no value {name}", extra_info=GONE
            ) from None
        held = os.fstat(fd).st_size
        if held < end:
            os.close(fd)
            raise flight.FlightServerError(
                f"value {name} holds {held} bytes, {end} were asked for",
                extra_info=GONE,
            )
        return fd


class FlightSender:
    """The Flight server of one node.

    Args:
        token: The cluster's token.
        open_value: Gives a descriptor for the content of a value by its file name;
            called from threads of the server. FileNotFoundError: there is none.
        ip: Address of this host to listen on.
        port: TCP port; 0: any that is free.
        credentials: For TLS; receivers must show a certificate too.
    """

    def __init__(
        self,
        token: bytes,
        open_value: Callable[[str], int],
        ip: str = "127.0.0.1",
        port: int = 0,
        credentials: Credentials | None = None,
    ) -> None:
        shown = f"[{ip}]" if ":" in ip else ip
        scheme, options = "grpc+tcp", {}
        if credentials is not None:
            scheme = "grpc+tls"
            pair = [
                Path(one).read_bytes() for one in (credentials.cert, credentials.key)
            ]
            options = {
                "tls_certificates": [tuple(pair)],
                "verify_client": True,
                "root_certificates": Path(credentials.ca).read_bytes(),
            }
        self._service = _Service(
            f"{scheme}://{shown}:{port}", token, open_value, **options
        )
        self.port: int = self._service.port
        #: ``HOST:PORT``, if ``ip`` is one that others reach.
        self.address = f"{shown}:{self.port}"

    def close(self, timeout_s: float = 1.0) -> None:
        """Takes no more calls; those in hand are given ``timeout_s`` to end."""
        # It has no limit of its own, and a stalled reader could hold it up for ever.
        ending = threading.Thread(target=self._service.shutdown, daemon=True)
        ending.start()
        ending.join(timeout_s)
