"""What a raylet makes of the reports of processes."""

from __future__ import annotations

import asyncio
import os
import types
from typing import Any

import msgspec
import pytest

from rayshim.adapters.raylet import metric_service
from rayshim.adapters.raylet.metric_service import MetricService
from rayshim.adapters.wire.metric_messages import FamilyReport, ReportMetrics, Sample


class Server:
    """As much of a head process as the service looks at."""

    def __init__(self) -> None:
        self.peers: dict[str, Any] = {}
        self.drivers: dict[bytes, Any] = {}
        self.control = None
        self._event_files = None
        self.config = types.SimpleNamespace(
            with_raylet=False, session="s1", node_ip="10.0.0.1"
        )

    def peer(self, worker_id: bytes) -> Any:
        peer = types.SimpleNamespace(worker_id=worker_id)
        self.peers[worker_id.hex()] = peer
        return peer


def report(value: float, kind: str = "counter", name: str = "n") -> ReportMetrics:
    family = FamilyReport(name, kind, "d", [], [Sample({"a": "1"}, value)])
    return ReportMetrics(msgspec.msgpack.encode([family]))


def values(service: MetricService) -> list[str]:
    text = asyncio.run(service.text()).decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def service(server: Server, monkeypatch: pytest.MonkeyPatch) -> MetricService:
    monkeypatch.setattr(metric_service, "FRESH_S", -1.0)
    return MetricService(server)  # type: ignore[arg-type]


def test_a_report_replaces_what_was_told_before(
    server: Server, service: MetricService
) -> None:
    peer = server.peer(b"\x01")
    service.take(peer, report(1))
    service.take(peer, report(3))
    service.take(peer, report(3))  # twice is once
    (line,) = values(service)
    assert line.startswith("ray_n_total{") and line.endswith(" 3.0")
    for label in ('WorkerId="01"', 'SessionName="s1"', 'NodeAddress="10.0.0.1"'):
        assert label in line


def test_counts_of_ended_processes_stay_and_their_gauges_go(
    server: Server, service: MetricService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        peer = server.peer(bytes([number]))
        service.take(peer, report(5))
        service.take(peer, report(7, "gauge", "g"))
    server.peers.clear()
    assert len(values(service)) == 4  # still shown as their own
    monkeypatch.setattr(metric_service, "KEEP_ENDED_S", 0.0)
    (line,) = values(service)
    assert line.endswith(" 10.0") and 'WorkerId=""' in line
    assert values(service) == [line]


def test_a_scrape_soon_after_another_costs_nothing(
    server: Server, service: MetricService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_service, "FRESH_S", 60.0)
    service.take(server.peer(b"\x01"), report(1))
    first = values(service)
    service.take(server.peer(b"\x01"), report(2))
    assert values(service) == first


def test_this_process_can_be_measured() -> None:
    from rayshim.adapters.metrics.families import Families
    from rayshim.adapters.metrics.machine import MachineMeter

    families = Families()
    MachineMeter("/").measure(
        families, pids={os.getpid(): "me", 2**22 + 1: "nobody"}, labels={"ip": "x"}
    )
    found = {family.name: family for family in families}
    (memory,) = found["component_rss_bytes"].samples
    assert memory[0]["Component"] == "me" and memory[1] > 1e6  # type: ignore[operator]
    assert found["node_mem_total"].samples[0][1] > 0  # type: ignore[operator]


def test_ended_processes_are_few_though_nobody_looks(
    server: Server, service: MetricService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_service, "KEEP_ENDED_S", 0.0)
    for number in range(100):
        service.take(server.peer(number.to_bytes(2, "big")), report(1))
        server.peers.clear()
    assert len(service._reports) < 5


def test_values_of_ended_processes_are_bounded(
    server: Server, service: MetricService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_service, "KEEP_ENDED_S", 0.0)
    monkeypatch.setattr(metric_service, "MAX_ENDED_SERIES", 10)
    for number in range(30):
        family = FamilyReport("n", "counter", "d", [], [Sample({"a": str(number)}, 1)])
        told = ReportMetrics(msgspec.msgpack.encode([family]))
        service.take(server.peer(number.to_bytes(2, "big")), told)
        server.peers.clear()
    assert len(service._reports[""]["n"].samples) == 10
