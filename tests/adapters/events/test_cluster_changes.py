"""What the control service notes of nodes does not grow with those that are gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rayshim.adapters.raylet.event_log import KEPT_EVENTS, EventLog


def log_of(known: dict[str, Any]) -> EventLog:
    nodes = SimpleNamespace(on_joined=[], on_died=[], known=known)
    control: Any = SimpleNamespace(
        nodes=nodes, actors=SimpleNamespace(), groups=SimpleNamespace()
    )
    server = SimpleNamespace(
        loop=SimpleNamespace(call_later=lambda delay_s, callback: None)
    )
    return EventLog(control, server)


def test_times_of_forgotten_nodes_go() -> None:
    known: dict[str, Any] = {}
    log = log_of(known)
    for number in range(5000):
        node: Any = SimpleNamespace(
            node_id=f"{number:056x}",
            join=SimpleNamespace(info=SimpleNamespace(node_ip="10.0.0.1"), pid=number),
        )
        known.clear()
        known[node.node_id] = node
        log.node_joined(node)
        log.node_died(node, "its driver ended")
    assert len(log.node_times) <= 1003
    assert next(iter(known)) in log.node_times
    assert len(log.events) == KEPT_EVENTS
