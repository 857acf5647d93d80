"""How a node leaves without losing anything.

It grants no lease any more and says so to the head, which tells everybody; holders give
their leases back after the calls in hand. Owners that see a draining node in the table
have other nodes pull what lies only there, and free it here
(:mod:`rayshim._core.evacuating`): so the node is done when its store holds nothing for
owners elsewhere. What processes of this node own ends with them, hence it waits until
others let go of it, too.

A drain that may be refused never ends running work: then a busy node, or one whose
values nobody takes within the limit, stays in the cluster and says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rayshim.adapters.raylet import store_files
from rayshim.adapters.raylet.head_link import HeadLink
from rayshim.adapters.shm.layout import node_of_mark
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire import node_messages as nodes
from rayshim.adapters.wire.address import node_of
from rayshim.lineage import lease_events as ev
from rayshim.lineage.leases import LeaseState

if TYPE_CHECKING:
    from rayshim.adapters.raylet.server import NodeServer

logger = logging.getLogger(__name__)

#: Seconds for which a node that leaves waits for its running work and its values.
LIMIT_S = 30.0
#: Seconds between two looks at what is left.
LOOK_S = 0.05


class Drain:
    """One drain of a node.

    Args:
        server: The node.
        order: What it was told.
    """

    def __init__(self, server: NodeServer, order: nodes.LeaveCluster) -> None:
        self._server = server
        self._order = order
        self._limit_s = order.limit_s
        if self._limit_s < 0:
            settings = server.config.settings
            self._limit_s = float(settings.get("drain_timeout_s", LIMIT_S))
        self._task: asyncio.Task[None] | None = None
        #: What owners said of values that they could not take elsewhere.
        self._refusal = ""
        #: The fewest values that were left so far: while they get fewer, it goes on.
        self._least: int | None = None
        self._deadline_s = 0.0
        #: It is done: the node ends for that, and for nothing else.
        self.is_done = False

    @property
    def reason(self) -> str:
        """Why the node leaves."""
        return self._order.reason

    def start(self) -> bool:
        """Begins; False if it is refused at once."""
        server = self._server
        if self._order.is_refusable:
            busy = next(self._pinned_by(), "") or next(self._work(), "")
            if busy:
                self._refuse(busy)
                return False
        # First, or it would send back what is left to it.
        self.tell_head()
        server.feed(ev.Draining())
        for lease_id, lease in list(server.raylet.leases.items()):
            if lease.state is LeaseState.GRANTED and not lease.request.fixed:
                server.send(lease.request.holder, wire.ReclaimLease(lease_id))
        self._task = server.loop.create_task(self._run())
        return True

    def stop(self) -> None:
        """The node ends for another reason."""
        if self._task is not None:
            self._task.cancel()

    def tell_head(self) -> None:
        """The node gets nothing more, and owners take their values elsewhere."""
        if isinstance(self._server.head, HeadLink):
            self._server.head.send(nodes.LeaveCluster(self.reason, True))

    def refused(self, message: nodes.MoveRefused) -> None:
        """An owner found no other place for some of its values."""
        self._refusal = message.reason

    async def _run(self) -> None:
        try:
            left = await self._wait()
        except Exception as error:
            logger.exception("the drain failed")
            left = f"the drain failed: {error}"
        if left and self._order.is_refusable:
            self._stay(left)
            return
        if left:
            logger.warning("the node leaves although %s", left)
        self.is_done = True
        self._server.end(self.reason)

    async def _wait(self) -> str:
        """Waits until nothing is left; else what there is at the limit."""
        loop = self._server.loop
        self._deadline_s = loop.time() + self._limit_s
        while True:
            left = await self._left()
            if not left or loop.time() > self._deadline_s:
                return left
            self._note(left)
            await asyncio.sleep(LOOK_S)

    async def _left(self) -> str:
        """What keeps the node from leaving, in words; empty: nothing."""
        if self._order.waits_work:
            busy = next(self._work(), "")
            if busy:
                return busy
        stored = await asyncio.to_thread(self._stored)
        count = stored + self._pinned_copies()
        if self._least is None or count < self._least:
            self._least = count
            self._deadline_s = self._server.loop.time() + self._limit_s
        if count:
            text = (
                f"{count} values of processes on other nodes are only here, and other "
                "nodes have not taken them"
            )
            return f"{text}: {self._refusal}" if self._refusal else text
        if self._order.waits_work:
            lent = await self._server.store.count_lent()
            if lent:
                return (
                    f"processes on other nodes hold {lent} objects whose owners are "
                    "executors of this node and would end with it"
                )
        # Another lease may have come to its end meanwhile, and left a value.
        return ""

    def _pinned_by(self) -> Iterator[str]:
        for peer in self._server.drivers.values():
            yield f"driver {peer.pid} is attached to it"

    def _work(self) -> Iterator[str]:
        """What runs here and has to end first."""
        for lease in self._server.raylet.leases.values():
            request = lease.request
            if lease.state is LeaseState.FORWARDED:
                continue
            if not request.fixed:
                yield f"{request.label} runs there"
            elif not request.retriable:
                yield f"{request.label} lives there and may not be restarted elsewhere"

    def _stored(self) -> int:
        """Values that are here for owners on other nodes (in a thread)."""
        store, config = self._server.store, self._server.config
        owners = store_files.owners(config.store_dir)
        owners.update(store_files.owners(store.outside_folder))
        owners.update(dict(store.spilled_owners))
        here = config.node_id[:8]
        return sum(
            not name.startswith("o-") and node_of_mark(mark) != here
            for name, mark in owners.items()
        )

    def _pinned_copies(self) -> int:
        """Copies that became primary ones: their owners elsewhere have them pinned."""
        here = self._server.config.node_id[:8]
        return sum(
            any(node_of(address) != here for address in holders)
            for holders in self._server.store.copies.pins.values()
        )

    def _note(self, text: str) -> None:
        if text != self._server.drain_note:
            self._server.drain_note = text
            self._server.head.load_changed()

    def _refuse(self, why: str) -> None:
        self._note(f"it is not drained: {why}")

    def _stay(self, why: str) -> None:
        """Gives the drain up: the node is one like any other again."""
        server = self._server
        server.drain = None
        server.feed(ev.DrainGivenUp())
        self._refuse(f"{why} after {self._limit_s:g} s")
        logger.warning("the node stays: %s", server.drain_note)
        if isinstance(server.head, HeadLink):
            server.head.announce()
