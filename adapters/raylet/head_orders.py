"""What the control service tells a node, and what the node does then."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rayshim.adapters.wire import ask_messages as ask
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire import node_messages as nodes
from rayshim.adapters.wire.codec import Message
from rayshim.adapters.wire.why_messages import AskWhy
from rayshim.lineage import lease_events as ev
from rayshim.lineage.resources import to_units

if TYPE_CHECKING:
    from rayshim.adapters.raylet.server import NodeServer

logger = logging.getLogger(__name__)


def take(server: NodeServer, message: Message) -> None:
    """Carries one message out; what this node does not know is left alone."""
    method = _ORDERS.get(type(message))
    if method is None:
        logger.warning("the head sent %s, which no node takes", type(message).__name__)
    else:
        method(server, message)


def _request_lease(server: NodeServer, message: wire.RequestLease) -> None:
    server.head.arrived(message.lease_id)
    server.feed(
        ev.LeaseRequested(
            message.lease_id,
            message.holder,
            message.job_id,
            message.label,
            to_units(message.resources),
            message.env_key(),
            message.placement_group,
            message.bundle_index,
            fixed=True,
            retriable=message.retriable,
            hops=message.hops,
        )
    )


def _cancel_lease(server: NodeServer, message: wire.CancelLease) -> None:
    server.feed(ev.LeaseCancelled(message.lease_id))


def _kill_executor(server: NodeServer, message: wire.KillExecutor) -> None:
    server.feed(ev.LeaseKilled(message.lease_id))


def _shrink(server: NodeServer, message: nodes.ShrinkLease) -> None:
    server.feed(ev.LeaseShrunk(message.lease_id, to_units(message.resources)))


def _owners_died(server: NodeServer, message: nodes.OwnersDied) -> None:
    server.dead_owners.died(message.addresses)


def _relay(server: NodeServer, message: nodes.RelayToExecutor) -> None:
    # An executor that closed its channel is about to be reported dead.
    if message.create is not None:
        server.send_executor(message.worker_id, message.create)
        return
    server.send_executor(message.worker_id, wire.Interrupt(message.interrupt))
    if message.patience_s:
        server.loop.call_later(message.patience_s, server.pool.kill, message.worker_id)


def _placed(server: NodeServer, message: nodes.LeasePlaced) -> None:
    if message.error:
        server.feed(ev.LeaseRefused(message.lease_id, message.error, message.kind))
    elif message.address == server.config.address:
        server.head.arrived(message.lease_id)
        server.feed(ev.LeaseAdmitted(message.lease_id))
    else:
        server.feed(ev.LeaseSpilled(message.lease_id, message.address))


def _reserve(server: NodeServer, message: nodes.ReserveBundles) -> None:
    server.feed(
        ev.BundlesRequested(
            message.group,
            tuple(to_units(one) for one in message.bundles),
            tuple(message.indexes),
            is_patient=message.patience_s != 0,
            attempt=message.attempt,
        )
    )
    if message.patience_s > 0:
        event = ev.ReservationExpired(message.group, message.attempt)
        server.loop.call_later(message.patience_s, server.feed, event)


def _free(server: NodeServer, message: nodes.FreeBundles) -> None:
    if message.is_removed:
        server.feed(ev.BundlesRemoved(message.group))
    else:
        indexes = tuple(message.indexes)
        server.feed(ev.BundlesReturned(message.group, indexes))


def _job_ended(server: NodeServer, message: nodes.JobEnded) -> None:
    server.feed(ev.JobEnded(message.job_id))


def _table(server: NodeServer, message: nodes.NodeTable) -> None:
    server.take_table(message)


def _leave(server: NodeServer, message: nodes.LeaveCluster) -> None:
    server.leave(message)


def _ask_why(server: NodeServer, message: AskWhy) -> None:
    from rayshim.adapters.raylet import why_service

    why_service.answer_of_node(server, message)


def _ask(server: NodeServer, message: ask.Ask) -> None:
    server.questions.answer(server, message)


_ORDERS: dict[type, Callable[[NodeServer, Any], None]] = {
    wire.RequestLease: _request_lease,
    wire.CancelLease: _cancel_lease,
    wire.KillExecutor: _kill_executor,
    nodes.ShrinkLease: _shrink,
    nodes.RelayToExecutor: _relay,
    nodes.LeasePlaced: _placed,
    nodes.ReserveBundles: _reserve,
    nodes.FreeBundles: _free,
    nodes.JobEnded: _job_ended,
    nodes.NodeTable: _table,
    nodes.OwnersDied: _owners_died,
    nodes.LeaveCluster: _leave,
    AskWhy: _ask_why,
    ask.Ask: _ask,
}
