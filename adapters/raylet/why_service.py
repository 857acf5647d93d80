"""The control service's part for explanations: asks who knows, and puts it together.

Loaded by the first question. Owners say where their calls are, nodes who holds what;
what this process knows itself (actors, placement groups, unplaced requests, the state
of nodes) is added. Whoever does not answer within :data:`LIMIT_S` is left out.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim.adapters.raylet.groups import Deferred
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire import why_payloads as why
from rayshim.adapters.wire.why_messages import AskWhy, WhyTold
from rayshim.lineage import explain, explain_nodes
from rayshim.lineage import placement_groups as pg
from rayshim.lineage.actors import ActorState
from rayshim.lineage.reasons import Explanation, Reason, merged
from rayshim.lineage.resources import describe, to_amounts, to_units

if TYPE_CHECKING:
    from rayshim.adapters.raylet.channels import Peer
    from rayshim.adapters.raylet.control import ControlService

#: Seconds that an owner or node may take to answer.
LIMIT_S = 1.0
#: Arguments, and arguments of what makes them, that one explanation follows.
SHOWN_OBJECTS, DEPTH = 3, 3
#: Leases of one call that are looked at: they are all alike.
SHOWN_LEASES = 2
#: Processes and nodes that are asked at once.
MAX_ASKED = 1024
#: Digits that the beginning of an id must have.
MIN_DIGITS = 8
#: Digits that no id has.
MAX_DIGITS = 80


class WhyService:
    """Answers the request ``why``.

    Args:
        control: The control service.
        server: Its process.
    """

    def __init__(self, control: ControlService, server: Any) -> None:
        self._control = control
        self._server = server
        self._ids = itertools.count(1)
        #: Question -> its answer.
        self._open: dict[int, asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # Questions.

    def request(self, peer: Peer, message: wire.Request) -> None:
        """Takes one request, which is answered later."""
        args = msgspec.msgpack.decode(message.payload, type=why.Why)
        task = self._server.loop.create_task(self._serve(peer, message, args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        raise Deferred

    def told(self, message: WhyTold) -> None:
        """A peer or node answered."""
        answer = self._open.pop(message.request_id, None)
        if answer is not None and not answer.done():
            answer.set_result(message.payload)

    async def _serve(self, peer: Peer, message: wire.Request, args: why.Why) -> None:
        try:
            value = await self._answer(args)
        except ValueError as error:
            failure = ("ValueError", str(error))
            self._control.respond(peer, message.request_id, error=failure)
        except Exception as error:
            text = f"why failed: {type(error).__name__}: {error}"
            failure = ("RuntimeError", text)
            self._control.respond(peer, message.request_id, error=failure)
        else:
            self._control.respond(peer, message.request_id, value=value)

    async def ask(self, send: Callable[[AskWhy], Any], question: why.Question) -> bytes:
        """What somebody answers; empty if nothing, or too late."""
        request_id = next(self._ids)
        answer: asyncio.Future[bytes] = self._server.loop.create_future()
        self._open[request_id] = answer
        send(AskWhy(request_id, msgspec.msgpack.encode(question)))
        try:
            async with asyncio.timeout(_limit_s.get()):
                return await answer
        except TimeoutError:
            return b""
        finally:
            self._open.pop(request_id, None)

    async def _answer(self, args: why.Why) -> list[dict[str, Any]]:
        _limit_s.set(min(args.limit_s, LIMIT_S))
        found: list[Explanation] = []
        if args.id:
            found += await self._by_id(args.id)
        for lease_id in args.lease_ids[:SHOWN_LEASES]:
            found.append(Explanation("", "", tuple(await self._lease(lease_id))))
        for actor_id in args.actor_ids:
            found.append(await self._actor(actor_id))
        for group_id in args.groups:
            found.append(self._group(group_id))
        for place, call in args.places[:SHOWN_OBJECTS]:
            found.append(await self._placed(place, call, DEPTH))
        for object_id, owner in args.objects[:SHOWN_OBJECTS]:
            found.append(await self._owned(object_id, owner, DEPTH))
        return [msgspec.to_builtins(one) for one in found]

    # Ids.

    async def _by_id(self, text: str) -> list[Explanation]:
        """What an id, or the beginning of one, stands for.

        Raises:
            ValueError: it is no id, or nobody knows it, or it stands for several.
        """
        text = text.lower().removeprefix("0x")
        is_hex = not set(text) - set("0123456789abcdef")
        if not (MIN_DIGITS <= len(text) <= MAX_DIGITS and is_hex):
            raise ValueError(
                f"{text[:MAX_DIGITS]!r} is no id: give the hex digits of an object, "
                "task, actor, placement group, lease or node, or the first "
                f"{MIN_DIGITS} of them"
            )
        control = self._control
        groups = [i for i in control.groups.machine.groups if i.hex().startswith(text)]
        actors = [i for i in control.actors.machine.actors if i.hex().startswith(text)]
        nodes = [i for i in control.nodes.known if i.startswith(text)]
        count = len(groups) + len(actors) + len(nodes)
        if count > 1:
            raise ValueError(
                f"{count} actors, placement groups and nodes begin with {text}: give "
                "more digits"
            )
        if groups:
            return [self._group(groups[0])]
        if actors:
            return [await self._actor(actors[0])]
        if nodes:
            return [self._node(nodes[0])]
        leases = [i for i in self._lease_ids() if i.hex().startswith(text)]
        if len(leases) == 1:
            reasons = await self._lease(leases[0])
            return [Explanation(f"lease {leases[0].hex()}", "waiting", tuple(reasons))]
        about = bytes.fromhex(text[: len(text) // 2 * 2])
        told = await self._ask_owners(about)
        if not told:
            if len(text) == 2 * _LEASE_BYTES:
                reasons = await self._lease(about)
                if reasons:
                    return [Explanation(f"lease {text}", "waiting", tuple(reasons))]
            raise ValueError(
                f"nobody in this cluster knows {text}: it may have ended and been "
                "freed, be of another cluster, or its owner may not answer"
            )
        return [await self._complete(one, DEPTH) for one in told]

    def _lease_ids(self) -> Iterable[bytes]:
        if self._control.local is not None:
            yield from self._control.local.raylet.leases
        yield from self._control.placer.not_granted()

    async def _ask_owners(self, about: bytes) -> list[why.Told]:
        """Asks the processes that may own an object or a call; drivers first."""
        peers = [p for p in self._server.peers.values() if p.role in _OWNERS]
        job = about[20:24]
        if len(job) == 4:
            of_job = [p for p in peers if p.role == "executor" or p.job_id == job]
            peers = of_job or peers
        peers.sort(key=lambda peer: peer.role != "driver")
        question = why.Question(about=about)
        answers = await asyncio.gather(
            *(self.ask(one.connection.send, question) for one in peers[:MAX_ASKED])
        )
        found = [_TOLD.decode(answer) for answer in answers if answer]
        return list({one.subject: one for one in found}.values())

    async def _owned(self, object_id: bytes, owner: str, depth: int) -> Explanation:
        name = f"ObjectRef({object_id.hex()[:16]}...)"
        peer = self._server.peers.get(owner)
        if peer is None:
            text = f"{name} belongs to {owner}, which is not connected (any more)"
            return Explanation(name, "waiting", (Reason("owner", text),))
        question = why.Question(about=object_id)
        answer = await self.ask(peer.connection.send, question)
        if not answer:
            text = f"{name} belongs to {owner}, which said nothing within {LIMIT_S:g} s"
            return Explanation(name, "waiting", (Reason("owner", text),))
        return await self._complete(_TOLD.decode(answer), depth)

    async def _placed(self, address: str, call: bytes, depth: int) -> Explanation:
        """What the executor says that a call was sent to."""
        peer = self._server.peers.get(address)
        if peer is None:
            return Explanation("", "")
        answer = await self.ask(peer.connection.send, why.Question(call=call))
        if not answer:
            return Explanation("", "")
        return await self._complete(_TOLD.decode(answer), depth)

    async def _complete(self, told: why.Told, depth: int) -> Explanation:
        """Adds what others know to the words of an owner."""
        reasons = list(told.reasons)
        for lease_id in told.lease_ids[:SHOWN_LEASES]:
            reasons += await self._lease(lease_id)
        for actor_id in told.actor_ids:
            reasons += (await self._actor(actor_id)).reasons
        for group_id in told.groups:
            reasons += self._group(group_id).reasons
        if depth:
            for place, call in told.places[:SHOWN_OBJECTS]:
                reasons += (await self._placed(place, call, depth - 1)).reasons
            for object_id, owner in told.objects[:SHOWN_OBJECTS]:
                reasons += (await self._owned(object_id, owner, depth - 1)).reasons
        return Explanation(told.subject, told.state, merged(reasons))

    # Leases.

    async def _lease(self, lease_id: bytes) -> list[Reason]:
        control = self._control
        now = self._server.now()
        if control.local is not None and not control.nodes.is_cluster:
            found = explain.lease_reasons(control.local.raylet, lease_id, now)
            if found:
                return self._with_group(found)
        entry = control.placer.find(lease_id)
        if entry is None:
            return self._with_group(await self._ask_nodes([lease_id], {}))
        request = entry.request
        if request.placement_group:
            text = "\n".join(control.placer.explain(lease_id))
            here = [Reason("group", text, {"group": request.placement_group.hex()})]
            at_nodes = await self._ask_nodes([lease_id], {})
            return self._with_group([*here, *at_nodes])
        wanted = explain_nodes.Wanted(
            request.label,
            entry.need,
            now - entry.since_s,
            request.nodes,
            request.soft or request.strategy == "AFFINITY",
            request.labels,
        )
        reasons = explain_nodes.request_reasons(wanted, self.views())
        if reasons and reasons[0].kind == "resources":
            reasons += await self._ask_nodes([], request.resources)
        return [*reasons, *self._demand(request.label)]

    async def _ask_nodes(
        self, lease_ids: list[bytes], need: dict[str, float]
    ) -> list[Reason]:
        """What nodes say of leases that wait there, or of who holds what."""
        question = why.Question(lease_ids=lease_ids, need=need)
        units = to_units(need)
        nodes = [
            node
            for node in self._control.nodes.alive()
            if node.node_id != self._server.config.node_id
            and (not units or any(node.total.get(name, 0) for name in units))
        ]
        if need:
            nodes = nodes[: explain_nodes.SHOWN_NODES]
        answers = await asyncio.gather(
            *(self.ask(node.link.send, question) for node in nodes[:MAX_ASKED])
        )
        return [
            reason
            for answer in answers
            if answer
            for reason in msgspec.msgpack.decode(answer, type=why.Leases).reasons
        ]

    def _with_group(self, reasons: list[Reason]) -> list[Reason]:
        """Adds why a group is pending to reasons that name it."""
        for reason in list(reasons):
            group_id = bytes.fromhex(reason.numbers.get("group", ""))
            group = self._control.groups.machine.groups.get(group_id)
            if group is not None and group.state is not pg.GroupState.CREATED:
                reasons += self._group(group_id).reasons
        return reasons

    def views(self) -> list[explain_nodes.NodeView]:
        """The nodes that are not dead."""
        nodes = self._control.nodes
        members = nodes.machine.members
        return [
            explain_nodes.NodeView(
                node.node_id,
                node.join.info.node_ip,
                members[node.node_id].state.name,
                node.total,
                node.free,
                node.labels,
            )
            for node in nodes.alive()
        ]

    def _demand(self, subject: str) -> list[Reason]:
        """What an autoscaler does about it, if there is one that says so."""
        notes = self._control.autoscaler_notes
        return [Reason("autoscaler", text) for text in notes.about(subject)]

    # Actors, groups, nodes.

    async def _actor(self, actor_id: bytes) -> Explanation:
        control = self._control
        now = self._server.now()
        actor = control.actors.machine.actors.get(actor_id)
        texts = control.actors.explain(actor_id, now)
        if actor is None:
            subject = f"actor {actor_id.hex()}"
            return Explanation(subject, "unknown", (Reason("unknown", texts[0]),))
        subject = f"actor {actor.spec.class_name} ({actor_id.hex()})"
        numbers: dict[str, Any] = {
            "state": actor.shown_state,
            "seconds": now - actor.since_s,
            "restarts": actor.incarnation,
        }
        if actor.state is ActorState.PLACING:
            lease_id = b"actor" + actor.incarnation.to_bytes(4, "big") + actor_id
            what = f"actor {actor.spec.class_name} ({actor_id.hex()[:12]})"
            reasons = [
                Reason(
                    one.kind,
                    f"{what} is not placed: {one.text}",
                    {**numbers, **one.numbers},
                    one.remedy,
                )
                for one in await self._lease(lease_id)
            ]
            return Explanation(subject, "waiting", tuple(reasons))
        if actor.state is ActorState.DEAD:
            return Explanation(subject, "dead", _as_reasons("actor", texts, numbers))
        if actor.state in (ActorState.REGISTERED, ActorState.CREATING):
            kind = "actor"
            if actor.state is ActorState.REGISTERED:
                kind = "argument"
                asked = await self._creation(actor_id, actor.spec.owner)
                reasons = [*_as_reasons(kind, texts, numbers), *asked]
                return Explanation(subject, "waiting", merged(reasons))
            return Explanation(subject, "waiting", _as_reasons(kind, texts, numbers))
        return Explanation(subject, "alive", _as_reasons("running", texts, numbers))

    async def _creation(self, actor_id: bytes, owner: str) -> Iterable[Reason]:
        """Which arguments a constructor waits for, as its owner says."""
        handle = b"\xff" * 8 + actor_id + (1).to_bytes(4, "little")
        told = await self._owned(handle, owner, DEPTH)
        return told.reasons

    def _group(self, group_id: bytes) -> Explanation:
        control = self._control
        machine = control.groups.machine
        group = machine.groups.get(group_id)
        subject = f"placement group {group_id.hex()}"
        if group is None:
            text = f"{subject} is not known to this cluster (any more)"
            return Explanation(subject, "unknown", (Reason("unknown", text),))
        if group.state is pg.GroupState.REMOVED:
            text = f"{subject} was removed, and what was in it has ended"
            return Explanation(subject, "removed", (Reason("group_removed", text),))
        if group.state is pg.GroupState.CREATED:
            return Explanation(subject, "created")
        waited_s = self._server.now() - group.requested_s
        local = control.local
        if local is not None and not control.nodes.is_cluster:
            reason = explain.reservation_reason(
                local.raylet, group_id, self._server.now()
            )
            if reason is not None and reason.kind != "infeasible":
                return Explanation(subject, "waiting", (reason,))
        reasons = explain_nodes.group_reasons(
            group.needs,
            self.views(),
            count=len(group.bundles),
            places=group.places,
            waited_s=waited_s,
        )
        reasons = [*reasons, *self._demand(group_id.hex())]
        return Explanation(subject, "waiting", tuple(reasons))

    def _node(self, node_id: str) -> Explanation:
        nodes = self._control.nodes
        node = nodes.known[node_id]
        info = nodes.info(node)
        subject = f"node {node_id}"
        if not info.alive:
            reason = Reason("node", f"it died: {info.death}", {"died_s": info.died_s})
            return Explanation(subject, "dead", (reason,))
        member = nodes.machine.members[node_id]
        free, total = to_amounts(node.free), to_amounts(node.total)
        silent_s = self._server.now() - member.heard_s
        text = (
            f"it is {member.state.name}, was heard {silent_s:.1f} s ago, and has free "
            f"{describe({name: node.free.get(name, 0) for name in node.total})} of "
            f"{describe(node.total)}"
        )
        numbers = {"state": member.state.name, "free": free, "total": total}
        return Explanation(subject, "alive", (Reason("node", text, numbers),))


#: Seconds that whoever is asked may take, of the request that is answered.
_limit_s: ContextVar[float] = ContextVar("limit_s", default=LIMIT_S)
#: Bytes of a lease's id.
_LEASE_BYTES = 16
_OWNERS = ("driver", "executor")
_TOLD = msgspec.msgpack.Decoder(why.Told)


def _as_reasons(
    kind: str, texts: list[str], numbers: dict[str, Any]
) -> tuple[Reason, ...]:
    return tuple(Reason(kind, text, numbers) for text in texts)


def answer_of_node(server: Any, message: AskWhy) -> None:
    """What a node answers to the control service."""
    question = msgspec.msgpack.decode(message.payload, type=why.Question)
    payload = b""
    if question.facts_of:
        from rayshim.adapters.raylet import wait_facts

        payload = msgspec.msgpack.encode(wait_facts.of_node(server, question.facts_of))
    else:
        raylet, now = server.raylet, server.now()
        reasons = [
            reason
            for lease_id in question.lease_ids
            for reason in explain.lease_reasons(raylet, lease_id, now)
        ]
        need = to_units(question.need)
        if need and raylet.resources.is_feasible(need):
            head = f"on node {server.config.node_id[:8]}: "
            reasons.append(explain.need_reason(raylet, need, now, head))
        if reasons:
            payload = msgspec.msgpack.encode(why.Leases(reasons))
    server.head.send(WhyTold(message.request_id, payload))
