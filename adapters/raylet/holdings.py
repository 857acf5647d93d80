"""Asks the processes of a node what they hold in its store, for errors that say so."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rayshim.adapters.wire import node_messages as n
from rayshim.lineage.store_policy import Holder

if TYPE_CHECKING:
    from rayshim.adapters.raylet.channels import Peer

#: Processes that do not say what they hold within this time are left out.
HOLDINGS_LIMIT_S = 1.0


class HoldingsSurvey:
    """Questions to all processes of a node, and their answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._numbers = itertools.count(1)
        #: Number of a question that waits -> its answers.
        self._questions: dict[int, _Question] = {}

    async def ask(self, peers: Iterable[Peer]) -> list[Holder]:
        """The largest objects of these processes."""
        return (await self._ask(peers)).holders

    async def count_lent(self, peers: Iterable[Peer]) -> int:
        """How many objects of these processes others hold."""
        return (await self._ask(peers)).lent

    async def _ask(self, peers: Iterable[Peer]) -> _Question:
        asked = list(peers)
        number = next(self._numbers)
        question = _Question({peer.address for peer in asked}, self._loop)
        self._questions[number] = question
        for peer in asked:
            peer.connection.send(n.AskHoldings(number))
        try:
            async with asyncio.timeout(HOLDINGS_LIMIT_S):
                await question.done
        except TimeoutError:
            pass  # a process that is busy or stopped is left out
        finally:
            del self._questions[number]
        return question

    def answered(self, peer: Peer, message: n.Holdings) -> None:
        """A process says what it holds."""
        question = self._questions.get(message.request_id)
        if question is None:
            return
        owner = f"{peer.role} {peer.pid}"
        question.holders += [
            Holder(one.name, one.size_bytes, one.call_site, owner)
            for one in message.holdings
        ]
        question.lent += message.lent
        question.answered(peer.address)

    def peer_gone(self, address: str) -> None:
        """A process ended and will not answer."""
        for question in self._questions.values():
            question.answered(address)


class _Question:
    """Waits for the answers of several processes."""

    def __init__(self, waiting: set[str], loop: asyncio.AbstractEventLoop) -> None:
        self._waiting = waiting
        self.done: asyncio.Future[None] = loop.create_future()
        self.holders: list[Holder] = []
        self.lent = 0
        self.answered("")

    def answered(self, address: str) -> None:
        """That process has answered, or is gone."""
        self._waiting.discard(address)
        if not self._waiting and not self.done.done():
            self.done.set_result(None)
