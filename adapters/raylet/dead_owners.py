"""Values whose owners are dead: nobody can free them any more, so the raylets do.

Each segment begins with the mark of its owner (:mod:`rayshim.adapters.shm.layout`).
The raylet of a process that dies removes what it owned from this node's store and has
the head tell the other nodes; what the processes of a dead node owned goes as well.
A process may be writing a value for an owner that is dead already, so the store
is looked through again a little later.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from rayshim.adapters.wire import node_messages as nodes

# What reads the store is imported with it, after the start of a session.
if TYPE_CHECKING:
    from rayshim.adapters.raylet.server import NodeServer

logger = logging.getLogger(__name__)

#: Seconds after a death at which the store is looked through.
LOOKS_S = (0.05, 1.0, 10.0)


class DeadOwners:
    """Removes values of dead owners from the store of this node.

    Args:
        server: The node.
    """

    def __init__(self, server: NodeServer) -> None:
        self._server = server
        #: Marks of owners, and first digits of nodes, that died a little while ago.
        self._marks: set[bytes] = set()
        self._nodes: set[str] = set()
        #: Nodes that were told of already.
        self._mourned: set[str] = set()
        #: Looks that are planned -> whether somebody died since, who needs another.
        self._planned: dict[float, bool] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def died(self, addresses: list[str]) -> None:
        """These processes are gone."""
        from rayshim.adapters.shm.layout import owner_mark

        for address in addresses:
            self._marks.add(owner_mark(address))
        self._look_soon()

    def left(self, address: str) -> None:
        """A process of this node is gone: clean up, and tell the other nodes."""
        self.died([address])
        if self._server.is_clustered:
            self._server.head.send(nodes.OwnersDied([address]))

    def table_came(self, table: nodes.NodeTable) -> None:
        """The head told which nodes there are."""
        for info in table.nodes:
            short = info.node_id[:8]
            if not info.alive and short not in self._mourned:
                self._mourned.add(short)
                self._nodes.add(short)
                self._look_soon()

    def _look_soon(self) -> None:
        for delay_s in LOOKS_S:
            if delay_s in self._planned:
                self._planned[delay_s] = True
            else:
                self._plan(delay_s)

    def _plan(self, delay_s: float) -> None:
        self._planned[delay_s] = False
        self._server.loop.call_later(delay_s, self._look, delay_s)

    def _look(self, delay_s: float) -> None:
        # However many die at once, at most one look of each kind is planned.
        if self._planned.pop(delay_s):
            self._plan(delay_s)
        task = self._server.loop.create_task(
            self._clean(set(self._marks), set(self._nodes))
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if not self._planned:  # this was the last one for all who died
            self._marks.clear()
            self._nodes.clear()

    async def _clean(self, marks: set[bytes], short: set[str]) -> None:
        from rayshim.adapters.raylet import store_files
        from rayshim.adapters.shm.layout import node_of_mark

        folder = self._server.config.store_dir
        try:
            owners = await asyncio.to_thread(store_files.owners, folder)
            outside = self._server.store.outside_folder
            owners.update(await asyncio.to_thread(store_files.owners, outside))
        except OSError:
            logger.exception("the store could not be looked through")
            return
        owners.update(self._server.store.spilled_owners)
        gone = [
            name
            for name, mark in owners.items()
            if mark in marks or node_of_mark(mark) in short
        ]
        if gone:
            self._server.store.discard(gone)
