"""Placement group requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim.adapters.wire import messages as wire
from rayshim.lineage import lease_events as ev
from rayshim.lineage import placement_groups as pg
from rayshim.lineage.resources import to_amounts, to_units

if TYPE_CHECKING:
    import asyncio

    from rayshim.adapters.raylet.server import NodeServer, Peer


class Deferred(Exception):
    """A request that is answered later."""


class Create(msgspec.Struct):
    """Payload of ``create_placement_group``."""

    id: bytes
    bundles: list[dict[str, float]]
    strategy: str = "PACK"
    name: str | None = ""
    lifetime: str | None = None


class Wait(msgspec.Struct):
    """Payload of ``wait_placement_group``."""

    id: bytes
    #: None or below zero: for ever.
    timeout_s: float | None = None


class Which(msgspec.Struct):
    """Payload of ``remove_placement_group`` and ``placement_group_table``."""

    id: bytes | None = None


class GroupService:
    """Runs the placement group machine.

    Args:
        server: The node, whose lease machine reserves bundles.
        respond: ``respond(peer, request_id, value=...)`` answers a request.
    """

    def __init__(self, server: NodeServer, respond: Callable[..., None]) -> None:
        self._server = server
        self._respond = respond
        self._machine = pg.PlacementGroups()
        #: Group -> who waits for it: peer, request, timer.
        self._waiters: dict[
            bytes, list[tuple[Peer, int, asyncio.TimerHandle | None]]
        ] = {}

    def create(self, peer: Peer, message: wire.Request) -> None:
        """Registers a group and asks for its bundles."""
        args = msgspec.msgpack.decode(message.payload, type=Create)
        group = pg.Group(
            args.id,
            tuple(to_units(bundle) for bundle in args.bundles),
            strategy=args.strategy,
            name=args.name or "",
            job_id=peer.job_id,
            is_detached=args.lifetime == "detached",
            now=self._server.now(),
        )
        self._run(self._machine.requested(group, node_count=1))

    def wait(self, peer: Peer, message: wire.Request) -> bool:
        """Whether a group is created in time; answered later if it is pending."""
        args = msgspec.msgpack.decode(message.payload, type=Wait)
        group = self._machine.groups.get(args.id)
        if group is None or group.state is not pg.GroupState.PENDING:
            return group is not None and group.state is pg.GroupState.CREATED
        timeout_s = args.timeout_s
        timer = None
        if timeout_s is not None and timeout_s >= 0:
            if timeout_s == 0:
                return False
            timer = self._server.loop.call_later(
                timeout_s, self._late, args.id, peer, message.request_id
            )
        waiters = self._waiters.setdefault(args.id, [])
        waiters.append((peer, message.request_id, timer))
        raise Deferred

    def remove(self, message: wire.Request) -> None:
        """Frees a group's bundles and ends what runs in them."""
        args = msgspec.msgpack.decode(message.payload, type=Which)
        if args.id is not None:
            self._run(self._machine.removed(args.id))

    def table(self, message: wire.Request) -> dict[str, Any]:
        """One group's row, or all rows by hex id."""
        args = msgspec.msgpack.decode(message.payload or b"\x80", type=Which)
        if args.id is None:
            return {
                key.hex(): self._row(one) for key, one in self._machine.groups.items()
            }
        group = self._machine.groups.get(args.id)
        return self._row(group) if group is not None else {}

    def rows(self) -> list[dict[str, Any]]:
        """All rows."""
        return [self._row(group) for group in self._machine.groups.values()]

    def bundles_reserved(self, group_id: bytes) -> None:
        """The lease machine has reserved the bundles."""
        self._run(self._machine.reserved(group_id, self._server.now()))

    def job_ended(self, job_id: bytes) -> None:
        """Removes a job's groups."""
        self._run(self._machine.job_ended(job_id))

    def _run(self, commands: list[pg.Command]) -> None:
        for command in commands:
            if isinstance(command, pg.ReserveBundles):
                self._server.feed(ev.BundlesRequested(command.group, command.bundles))
            elif isinstance(command, pg.FreeBundles):
                self._server.feed(ev.BundlesRemoved(command.group))
            else:
                self._report(command.group)

    def _report(self, group_id: bytes) -> None:
        state = self._machine.groups[group_id].state
        for peer, request_id, timer in self._waiters.pop(group_id, ()):
            if timer is not None:
                timer.cancel()
            self._respond(peer, request_id, value=state is pg.GroupState.CREATED)

    def _late(self, group_id: bytes, peer: Peer, request_id: int) -> None:
        waiters = self._waiters.get(group_id, [])
        rest = [one for one in waiters if one[:2] != (peer, request_id)]
        if rest:
            self._waiters[group_id] = rest
        else:
            self._waiters.pop(group_id, None)
        self._respond(peer, request_id, value=False)

    def _row(self, group: pg.Group) -> dict[str, Any]:
        is_placed = group.state is not pg.GroupState.PENDING
        node_id = self._server.config.node_id
        latency_ms = (group.created_s - group.requested_s) * 1000
        return {
            "placement_group_id": group.group_id.hex(),
            "name": group.name,
            "bundles": {
                index: to_amounts(bundle) for index, bundle in enumerate(group.bundles)
            },
            "bundles_to_node_id": {
                index: node_id if is_placed else ""
                for index in range(len(group.bundles))
            },
            "strategy": group.strategy,
            "state": group.state.name,
            "stats": {
                "end_to_end_creation_latency_ms": latency_ms,
                "scheduling_latency_ms": latency_ms,
                "scheduling_attempt": 1,
                "highest_retry_delay_ms": 0.0,
                "scheduling_state": "FINISHED" if is_placed else "QUEUED",
            },
        }
