"""Drivers hear once of each thing that no node could ever run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rayshim.adapters.raylet import infeasible
from rayshim.adapters.raylet.infeasible import Infeasible
from rayshim.adapters.wire import messages as wire


class Head:
    """A control service without nodes, and drivers that note what they hear."""

    def __init__(self) -> None:
        self.drivers: dict[bytes, Any] = {}
        self.heard: dict[bytes, list[str]] = {}
        nodes = SimpleNamespace(
            on_joined=[], on_died=[], alive=list, find=lambda node_id: None
        )
        control: Any = SimpleNamespace(
            nodes=nodes,
            autoscaler_notes=SimpleNamespace(is_active=False),
            why=SimpleNamespace(views=list),
        )
        self.infeasible = Infeasible(control, SimpleNamespace(drivers=self.drivers))

    def join(self, job_id: bytes) -> None:
        heard = self.heard[job_id] = []
        link = SimpleNamespace(send=lambda message: heard.extend(message.lines))
        self.drivers[job_id] = SimpleNamespace(connection=link)

    def ask(self, job_id: bytes, cpus: float) -> None:
        resources = {"CPU": cpus}
        request = wire.RequestLease(b"lease", job_id, "f", resources, {}, backlog=0)
        self.infeasible.look(request)


def test_a_driver_is_told_once_of_each_shape() -> None:
    head = Head()
    head.join(b"job")
    for cpus in (1.0, 1.0, 2.0):
        head.ask(b"job", cpus)
    assert len(head.heard[b"job"]) == 2
    assert "rayshim why" in head.heard[b"job"][0]


def test_drivers_that_left_leave_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(infeasible, "MAX_SHAPES", 3)
    head = Head()
    for number in range(5):
        job_id = b"job%d" % number
        head.join(job_id)
        for cpus in range(1, 4):
            head.ask(job_id, float(cpus))
        assert len(head.heard[job_id]) == 3
        del head.drivers[job_id]
