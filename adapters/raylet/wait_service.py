"""The control service's part for waits: finds those that can never end.

Loaded by the first wait that lasts. In a cluster, requests that wait for resources
count as moving if a node that joins might help them (:mod:`.wait_facts`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim.adapters.raylet.wait_facts import LeaseFacts
from rayshim.adapters.wire import node_messages as wire
from rayshim.adapters.wire.why_payloads import Facts, Question
from rayshim.lineage import waits
from rayshim.lineage.actors import ActorState
from rayshim.lineage.wait_graph import (
    ActorFact,
    Maker,
    Process,
    Wait,
    WaitingLease,
)

if TYPE_CHECKING:
    from rayshim.adapters.raylet.channels import Peer
    from rayshim.adapters.raylet.head_server import HeadServer
    from rayshim.adapters.raylet.server import NodeServer

_STATES = {
    ActorState.REGISTERED: "arguments",
    ActorState.PLACING: "placing",
    ActorState.CREATING: "creating",
}


class WaitService:
    """Runs the wait machine.

    Args:
        server: The process of the control service.
    """

    def __init__(self, server: NodeServer | HeadServer) -> None:
        self._server = server
        assert server.control is not None
        self._control = server.control
        self.machine = waits.WaitDetector()
        self._facts = LeaseFacts(self._control, self._driver)
        self._timer: asyncio.TimerHandle | None = None
        self._looks: set[asyncio.Task[None]] = set()

    def report(self, peer: Peer, message: wire.WaitReport) -> None:
        """A process tells how it waits."""
        said = _process(message)
        if not message.round:
            self._feed(waits.WaitsTold(peer.address, said))
            return
        makers = {making.object_id: _maker(making) for making in message.makings}
        self._feed(waits.WaitsAnswered(peer.address, message.round, said, makers))

    def _feed(self, event: Any) -> None:
        pending = [event]
        while pending:
            now = self._server.now()
            for command in self.machine.handle(pending.pop(0), now):
                answer = self._carry_out(command)
                if answer is not None:
                    pending.append(answer)

    def _carry_out(self, command: waits.Command) -> Any:
        """Does what a command says; the event that follows at once, if any."""
        if isinstance(command, waits.AskProcess):
            question = wire.AskWaits(
                command.look, list(command.objects), list(command.tasks)
            )
            if not self._server.send(command.address, question):
                return waits.ProcessGone(command.address)
        elif isinstance(command, waits.AskNode):
            return self._look(command)
        elif isinstance(command, waits.TellDeadlock):
            verdict = wire.Deadlock(list(command.numbers), list(command.cycle))
            self._server.send(command.address, verdict)
        else:
            if self._timer is not None:
                self._timer.cancel()
            delay_s = max(0.0, command.due_s - self._server.now())
            self._timer = self._server.loop.call_later(delay_s, self._wake)
        return None

    def _wake(self) -> None:
        self._timer = None
        self._feed(waits.TimePassed())

    # Facts of the node.

    def _look(self, command: waits.AskNode) -> waits.NodeAnswered | None:
        raylet = getattr(self._server, "raylet", None)
        if command.lease_ids and self._server.config.listen_ip:
            task = self._server.loop.create_task(self._look_far(command))
            self._looks.add(task)
            task.add_done_callback(self._looks.discard)
            return None
        leases = {}
        if raylet is not None:
            for lease_id in command.lease_ids:
                fact = self._facts.local(raylet, lease_id)
                if fact is not None:
                    leases[lease_id] = fact
        return self._node_said(command, leases)

    async def _look_far(self, command: waits.AskNode) -> None:
        """Asks the nodes of the cluster first."""
        question = Question(facts_of=list(command.lease_ids))
        nodes = list(self._control.nodes.alive())
        answers = await asyncio.gather(
            *(self._control.why.ask(node.link.send, question) for node in nodes)
        )
        told = [msgspec.msgpack.decode(one, type=Facts) for one in answers if one]
        leases = self._facts.of_cluster(command.lease_ids, told)
        self._feed(self._node_said(command, leases))

    def _node_said(
        self, command: waits.AskNode, leases: dict[bytes, WaitingLease]
    ) -> waits.NodeAnswered:
        actors = {actor_id: self._actor(actor_id) for actor_id in command.actor_ids}
        drivers = {
            job_id: address
            for job_id in command.job_ids
            if (address := self._driver(job_id))
        }
        return waits.NodeAnswered(command.look, leases, actors, drivers)

    def _actor(self, actor_id: bytes) -> ActorFact:
        actor = self._control.actors.machine.actors.get(actor_id)
        if actor is None:
            return ActorFact("other")
        state = _STATES.get(actor.state, "other")
        if state == "placing":
            incarnation = actor.incarnation.to_bytes(4, "big")
            return ActorFact(state, b"actor" + incarnation + actor_id)
        if state == "creating":
            return ActorFact(state, address=actor.address)
        if state == "arguments":
            handle = b"\xff" * 8 + actor_id + (1).to_bytes(4, "little")
            return ActorFact(state, handle=(handle, actor.spec.owner))
        return ActorFact(state)

    def _driver(self, job_id: bytes) -> str:
        for peer in self._server.peers.values():
            if peer.role == "driver" and peer.job_id == job_id:
                return peer.address
        return ""


def report(
    server: NodeServer | HeadServer, peer: Peer, message: wire.WaitReport
) -> None:
    """Takes a report; the service is made by the first one."""
    if server.waits is None:
        server.waits = WaitService(server)
    server.waits.report(peer, message)


def _process(message: wire.WaitReport) -> Process:
    return Process(
        message.title,
        tuple(
            Wait(
                one.number,
                one.call,
                one.group,
                tuple(zip(one.objects, one.owners, strict=True)),
                one.certain,
                one.label,
                one.stops_all,
            )
            for one in message.waits
        ),
        message.slots,
        message.accepted,
        message.constructing,
        message.is_waiting,
    )


def _maker(making: wire.Making) -> Maker:
    return Maker(
        making.task_id,
        making.kind,
        making.label,
        making.address,
        making.actor_id,
        tuple(making.lease_ids),
        tuple(zip(making.objects, making.owners, strict=True)),
        tuple(making.slots),
    )
