"""Asks nodes and processes, for tools: each in its time, and says who kept silent.

One :class:`Questions` lives in each node and head process, from its first question on.
The control service asks nodes; a node answers what is in :data:`ANSWERS`, and asks its
processes, whose table is in :mod:`rayshim._core.answers`. A question has a number that
its answer repeats; an answer that comes twice, or too late, is dropped.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import itertools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim.adapters.raylet.groups import Deferred
from rayshim.adapters.wire import ask_messages as asked
from rayshim.adapters.wire import messages as wire

if TYPE_CHECKING:
    from rayshim.adapters.raylet.channels import ChannelServer, Peer
    from rayshim.adapters.raylet.control import ControlService
    from rayshim.adapters.raylet.server import NodeServer

logger = logging.getLogger(__name__)

#: Question to a node -> "module:function", called as ``function(server, payload)``;
#: it returns bytes, or something to await that gives them.
ANSWERS: dict[str, str] = {
    "calls": "rayshim.adapters.raylet.event_service:calls",
    "newest_calls": "rayshim.adapters.raylet.event_service:newest_calls",
    "runtime_envs": "rayshim.adapters.raylet.environment_rows:rows",
    "workers": "rayshim.adapters.raylet.worker_lives:rows",
    "list_logs": "rayshim.adapters.raylet.log_reading:list_logs",
    "metrics": "rayshim.adapters.raylet.metric_service:answer",
    "read_log": "rayshim.adapters.raylet.log_reading:read_log",
    "node_figures": "rayshim.adapters.raylet.node_figures:answer",
}
#: Share of the time that a node leaves its processes, to answer in time itself.
PROCESSES_SHARE = 0.8
#: Seconds that a question may take at most.
MAX_LIMIT_S = 600.0
#: What is said of those who do not answer in time.
NO_ANSWER = "no answer"
_ROLES = {
    "processes": ("driver", "executor"),
    "drivers": ("driver",),
    "executors": ("executor",),
}


class Questions:
    """The open questions of a process.

    Args:
        server: The node or head process.
    """

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        self._ids = itertools.count(1)
        #: Question -> its answer.
        self._open: dict[int, asyncio.Future[asked.Told]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # For those who ask.

    async def ask(
        self, send: Callable[[asked.Ask], Any], question: asked.Ask, limit_s: float
    ) -> asked.Told:
        """What somebody answers; with the error :data:`NO_ANSWER` if too late.

        Args:
            send: passes the question on.
            question: its number is chosen here.
            limit_s: seconds to wait.
        """
        number = question.request_id = next(self._ids)
        answer: asyncio.Future[asked.Told] = self._server.loop.create_future()
        self._open[number] = answer
        try:
            send(question)
            async with asyncio.timeout(min(limit_s, MAX_LIMIT_S)):
                return await answer
        except TimeoutError:
            return asked.Told(number, NO_ANSWER, b"")
        finally:
            self._open.pop(number, None)

    def told(self, message: asked.Told) -> None:
        """A process or node answered."""
        answer = self._open.pop(message.request_id, None)
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def ask_processes(self, question: asked.Ask) -> list[asked.ProcessTold]:
        """What the processes of this node answer."""
        roles = _ROLES[question.to]
        peers = [
            peer
            for peer in self._server.peers.values()
            if peer.role in roles
            and (not question.workers or peer.worker_id in question.workers)
        ]
        told = await asyncio.gather(
            *(
                self.ask(
                    peer.connection.send,
                    asked.Ask(0, question.method, question.payload),
                    question.limit_s,
                )
                for peer in peers
            )
        )
        return [
            asked.ProcessTold(
                peer.worker_id,
                peer.pid,
                peer.role,
                peer.address,
                peer.job_id,
                answer.error,
                answer.payload,
            )
            for peer, answer in zip(peers, told, strict=True)
        ]

    # The control service's part.

    def request(
        self, control: ControlService, peer: Peer, message: wire.Request
    ) -> None:
        """Takes the request ``ask``, which is answered later.

        Raises:
            ValueError: nobody is called so.
            Deferred: always, else.
        """
        wanted = msgspec.msgpack.decode(message.payload, type=asked.AskAll)
        if wanted.to != "nodes" and wanted.to not in _ROLES:
            raise ValueError(f"ask: 'to' is one of nodes, {', '.join(_ROLES)}")
        self._begin(self._serve(control, peer, message.request_id, wanted))
        raise Deferred

    async def _serve(
        self, control: ControlService, peer: Peer, request_id: int, wanted: asked.AskAll
    ) -> None:
        nodes = [
            node
            for node in control.nodes.alive()
            if not wanted.node_ids or node.node_id in wanted.node_ids
        ]
        to = "" if wanted.to == "nodes" else wanted.to
        told = await asyncio.gather(
            *(
                self.ask(
                    node.link.send,
                    asked.Ask(
                        0,
                        wanted.method,
                        wanted.payload,
                        to,
                        wanted.workers,
                        wanted.limit_s * PROCESSES_SHARE,
                    ),
                    wanted.limit_s,
                )
                for node in nodes
            )
        )
        answers = [
            asked.NodeTold(node.node_id, answer.error, answer.payload)
            for node, answer in zip(nodes, told, strict=True)
        ]
        control.respond(peer, request_id, value=answers)

    # A node's part.

    def answer(self, server: NodeServer, question: asked.Ask) -> None:
        """Answers a question of the control service."""
        self._begin(self._answer(server, question))

    async def _answer(self, server: NodeServer, question: asked.Ask) -> None:
        error, payload = "", b""
        try:
            if question.to:
                found = await self.ask_processes(question)
                payload = msgspec.msgpack.encode(found)
            else:
                value = handler_of(ANSWERS, question.method)(server, question.payload)
                payload = await value if inspect.isawaitable(value) else value
        except Exception as failure:
            logger.warning("question %s failed", question.method, exc_info=True)
            error = f"{type(failure).__name__}: {failure}"
        server.head.send(asked.Told(question.request_id, error, payload))

    def _begin(self, work: Any) -> None:
        task = self._server.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def handler_of(table: dict[str, str], method: str) -> Callable[..., Any]:
    """What answers a question, imported at its first use.

    Raises:
        ValueError: there is no such question.
    """
    place = table.get(method)
    if place is None:
        raise ValueError(f"nobody here answers the question {method!r}")
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
