"""Loopback addresses of a cluster's pods: 127.x.y.z, one for each."""

from __future__ import annotations

import random
import socket

#: Port at the first address of a block; whoever holds it has the block.
_LOCK_PORT = 65099
_BLOCK = 254


class Addresses:
    """Addresses that no other cluster on this machine has.

    A block is 127.x.y.0/24; its first address is kept free of servers, so that what
    connects to it is refused.
    """

    def __init__(self) -> None:
        self._locks: list[socket.socket] = []
        self._free: list[str] = []
        #: Where nobody listens: a Service without endpoints.
        self.nowhere = ""
        self._take_block()

    def close(self) -> None:
        """Give the blocks back."""
        for lock in self._locks:
            lock.close()

    def take(self) -> str:
        """An address that was not used for as long as possible."""
        if not self._free:
            self._take_block()
        return self._free.pop(0)

    def give_back(self, address: str) -> None:
        """Whoever had it is gone."""
        self._free.append(address)

    def _take_block(self) -> None:
        for _ in range(1000):
            prefix = f"127.{random.randrange(16, 250)}.{random.randrange(1, 255)}"
            lock = socket.socket()
            try:
                lock.bind((f"{prefix}.1", _LOCK_PORT))
            except OSError:
                lock.close()
                continue
            self._locks.append(lock)
            self._free += [f"{prefix}.{last}" for last in range(2, _BLOCK + 1)]
            self.nowhere = self.nowhere or f"{prefix}.1"
            return
        raise RuntimeError(
            "no block of loopback addresses 127.x.y.0/24 is free: end other local "
            "clusters of this machine"
        )
