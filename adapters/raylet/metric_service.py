"""Gathers what processes of a node count, and what the node itself can say.

Loaded by the first report or scrape. The machine is measured when somebody asks, in a
thread; until then nothing is.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim.adapters.metrics.families import Bucketed, Families
from rayshim.adapters.metrics.machine import MachineMeter
from rayshim.adapters.raylet.groups import Deferred
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire.event_messages import EventBatch, events_of
from rayshim.adapters.wire.metric_messages import FamilyReport, ReportMetrics, Sample
from rayshim.lineage.resources import to_amounts

if TYPE_CHECKING:
    from rayshim.adapters.raylet.channels import ChannelServer, Peer
    from rayshim.adapters.raylet.control import ControlService
    from rayshim.adapters.raylet.server import NodeServer

#: Seconds for which the values of a process that ended are shown as its own. Then its
#: counters and histograms are added to those of all that ended before, under an empty
#: WorkerId: sums stay, and the number of values does not grow with that of processes.
KEEP_ENDED_S = 60.0
#: A scrape within this many seconds of the last one gets its measurement.
FRESH_S = 0.2

#: Names of calls that are told apart; the rest is counted as one.
MAX_NAMES = 1000
#: Values of one name that are kept of all ended processes together.
MAX_ENDED_SERIES = 10_000

#: Tags in the order of their names.
_Tags = tuple[tuple[str, str], ...]
#: Of one name: worker id in hex, the report, the values; none of them changes.
_Told = tuple[str, FamilyReport, list[Sample]]


_BATCH = msgspec.msgpack.Decoder(EventBatch)


class _Counted:
    """One name, as one process or all ended ones count it."""

    __slots__ = ("report", "samples")

    def __init__(self, report: FamilyReport) -> None:
        self.report = report
        self.samples: dict[_Tags, Sample] = {}

    def set(self, report: FamilyReport) -> None:
        self.report = report
        for sample in report.samples:
            self.samples[tuple(sorted(sample.tags.items()))] = sample

    def add(self, other: _Counted) -> None:
        """Adds totals up."""
        for tags, sample in other.samples.items():
            known = self.samples.get(tags)
            if known is None and len(self.samples) >= MAX_ENDED_SERIES:
                continue
            if known is None or len(known.buckets) != len(sample.buckets):
                self.samples[tags] = sample
                continue
            buckets = [
                one + two
                for one, two in zip(known.buckets, sample.buckets, strict=True)
            ]
            self.samples[tags] = Sample(
                sample.tags, known.value + sample.value, buckets
            )


class MetricService:
    """The metrics of one node or head.

    Args:
        server: its process.
    """

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        #: Worker id in hex (empty: ended processes) -> name -> what it counts.
        self._reports: dict[str, dict[str, _Counted]] = {}
        #: Worker id in hex -> when it was first missed.
        self._missed_s: dict[str, float] = {}
        self._meter: MachineMeter | None = None
        #: (name, state) -> calls that ended here.
        self._ended: dict[tuple[str, str], int] = {}
        #: How many of those that were told of are among them.
        self._seen = 0
        self._lock = asyncio.Lock()
        self._last = b""
        self._last_s = float("-inf")

    def take(self, peer: Peer, message: ReportMetrics) -> None:
        """A process tells what changed."""
        reports = msgspec.msgpack.decode(message.payload, type=list[FamilyReport])
        worker_id = peer.worker_id.hex()
        if worker_id not in self._reports:
            # Processes come and go, whether somebody looks at their metrics or not.
            self._forget_ended()
        own = self._reports.setdefault(worker_id, {})
        for report in reports:
            counted = own.get(report.name)
            if counted is None:
                counted = own[report.name] = _Counted(report)
            counted.set(report)

    async def text(self) -> bytes:
        """All metrics in Prometheus' text form."""
        async with self._lock:
            if time.monotonic() - self._last_s > FRESH_S:
                families, pids = self._snapshot()
                self._last = await asyncio.to_thread(
                    self._render, families, pids, self._told(), self._new_batches()
                )
                self._last_s = time.monotonic()
            return self._last

    # What the event loop knows.

    def _snapshot(self) -> tuple[Families, dict[int, str]]:
        families = Families()
        server: Any = self._server
        pids = {os.getpid(): "gcs"}
        if self._server.config.with_raylet:
            pids = {os.getpid(): "raylet"}
            self._of_node(families, server, pids)
        if server.control is not None:
            _of_cluster(families, server, server.control)
        return families, pids

    def _told(self) -> list[_Told]:
        """What processes told: there may be a million values, so only references."""
        self._forget_ended()
        return [
            (worker_id, counted.report, list(counted.samples.values()))
            for worker_id, names in self._reports.items()
            for counted in names.values()
        ]

    @staticmethod
    def _add_told(families: Families, told: _Told) -> None:
        worker_id, report, samples = told
        family = families.get(report.name, report.kind, report.description)
        for sample in samples:
            value: float | Bucketed = sample.value
            if report.kind == "histogram":
                value = Bucketed(report.boundaries, sample.buckets, sample.value)
            family.add(value, **{**_worker(worker_id), **sample.tags})

    def _forget_ended(self) -> None:
        now = time.monotonic()
        here = {peer.worker_id.hex() for peer in self._server.peers.values()}
        for worker_id in list(self._reports):
            if not worker_id or worker_id in here:
                self._missed_s.pop(worker_id, None)
                continue
            since = self._missed_s.setdefault(worker_id, now)
            if now - since < KEEP_ENDED_S:
                continue
            del self._missed_s[worker_id]
            ended = self._reports.setdefault("", {})
            for name, counted in self._reports.pop(worker_id).items():
                if counted.report.kind == "gauge":
                    continue
                total = ended.setdefault(name, _Counted(counted.report))
                if total.report.kind == counted.report.kind:
                    total.add(counted)

    def _of_node(
        self, families: Families, server: NodeServer, pids: dict[int, str]
    ) -> None:
        about = {"Component": "raylet", "WorkerId": ""}
        resources = server.raylet.resources
        total, free = to_amounts(resources.total), to_amounts(resources.available)
        for name, amount in total.items():
            if name.startswith("node:"):
                continue
            for state, value in (
                ("AVAILABLE", free.get(name, 0.0)),
                ("USED", amount - free.get(name, 0.0)),
            ):
                families.gauge(
                    "resources",
                    "Logical resources by name and state",
                    value,
                    Name=name,
                    State=state,
                    **about,
                )
        self._of_store(families, server, about)
        running: dict[str, int] = {}
        for executor in server.raylet.executors:
            lease = executor.lease
            label = _name_of(lease.request.label) if lease is not None else ""
            if lease is not None and not lease.request.fixed:
                running[label] = running.get(label, 0) + 1
            pids[executor.pid] = f"ray::{label.removeprefix('actor ') or 'IDLE'}"
        pids.pop(0, None)  # not up yet
        waiting: dict[str, int] = {}
        for label, _, count in server.raylet.demand():
            label = _name_of(label)
            waiting[label] = waiting.get(label, 0) + count
        _add_tasks(families, waiting, "PENDING_NODE_ASSIGNMENT")
        _add_tasks(families, running, "RUNNING")

    def _of_store(
        self, families: Families, server: NodeServer, about: dict[str, str]
    ) -> None:
        store = server.store
        spilled = sum(store.spilled.values())
        gauge = families.gauge
        where = "Values of this node in the object store, in bytes"
        for location, state, size in (
            ("MMAP_SHM", "SEALED", store.used_bytes),
            ("SPILLED", "", spilled),
        ):
            gauge(
                "object_store_memory",
                where,
                float(size),
                Location=location,
                ObjectState=state,
                **about,
            )
        gauge(
            "object_store_used_memory",
            "Object store memory in use, in bytes",
            float(store.used_bytes),
            **about,
        )
        gauge(
            "object_store_available_memory",
            "Object store memory that is free, in bytes",
            float(max(0, store.limit_bytes - store.used_bytes)),
            **about,
        )
        gauge(
            "spill_manager_objects_bytes",
            "Values on disk, in bytes",
            float(spilled),
            State="Spilled",
            **about,
        )
        gauge(
            "spill_manager_objects",
            "Values on disk",
            float(len(store.spilled)),
            State="Spilled",
            **about,
        )

    def _new_batches(self) -> list[bytes]:
        """Batches of ended calls that were not looked at yet, if they are kept."""
        events = self._server._event_files
        if events is None:
            return []
        total = events.told_count
        found = []
        missing = total - self._seen
        for count, batch in events.newest_first():
            if missing <= 0:
                break
            found.append(batch)
            missing -= count
        self._seen = total
        return found

    # What takes a while.

    def _count_calls(self, batches: list[bytes]) -> None:
        for data in batches:
            for event in events_of(_BATCH.decode(data)):
                key = (event.name, event.state)
                if key not in self._ended and len(self._ended) >= MAX_NAMES:
                    key = ("(others)", event.state)
                self._ended[key] = self._ended.get(key, 0) + 1

    def _render(
        self,
        families: Families,
        pids: dict[int, str],
        told: list[_Told],
        batches: list[bytes],
    ) -> bytes:
        from rayshim.adapters.metrics.exposition import render

        for one in told:
            self._add_told(families, one)
        self._count_calls(batches)
        for (name, state), count in self._ended.items():
            _add_tasks(families, {name: count}, state)
        config = self._server.config
        if config.with_raylet:
            if self._meter is None:
                self._meter = MachineMeter(config.session_dir)
            is_head = config.is_head_node
            labels = {
                "ip": config.node_ip,
                "IsHeadNode": str(is_head).lower(),
                "RayNodeType": "head" if is_head else "worker",
            }
            self._meter.measure(families, pids=pids, labels=labels)
        common = {"SessionName": config.session, "NodeAddress": config.node_ip}
        return render(families, common)


def _worker(worker_id: str) -> dict[str, str]:
    return {"Component": "core_worker", "WorkerId": worker_id}


def _name_of(label: str) -> str:
    """Of a function, from what a lease for it is called."""
    return label.partition(" {")[0]


def _add_tasks(families: Families, counts: dict[str, int], state: str) -> None:
    for name, count in counts.items():
        families.gauge(
            "tasks",
            "Tasks by name and state",
            float(count),
            Component="raylet",
            Name=name,
            State=state,
        )


def _of_cluster(
    families: Families, server: ChannelServer, control: ControlService
) -> None:
    """What the head alone knows."""
    actors: dict[tuple[str, str], int] = {}
    for row in control.actors.rows():
        key = (str(row.get("class_name", "")), str(row.get("state", "")))
        actors[key] = actors.get(key, 0) + 1
    for (name, state), count in actors.items():
        families.gauge(
            "actors",
            "Actors by class and state",
            float(count),
            Component="gcs_server",
            Name=name,
            State=state,
        )
    groups: dict[str, int] = {}
    for row in control.groups.rows():
        state = str(row.get("state", ""))
        groups[state] = groups.get(state, 0) + 1
    for state, count in groups.items():
        families.gauge(
            "gcs_placement_group_count",
            "Placement groups by state",
            float(count),
            Component="gcs_server",
            State=state,
        )
    families.gauge(
        "running_jobs",
        "Jobs whose driver is connected",
        float(len(server.drivers)),
        Component="gcs_server",
    )
    families.gauge(
        "cluster_active_nodes",
        "Nodes that are alive",
        float(len(list(control.nodes.alive()))),
        Component="gcs_server",
    )


def service_of(server: ChannelServer) -> MetricService:
    """The service of a process, made at its first use."""
    if server.metrics is None:
        server.metrics = MetricService(server)
    return server.metrics


def take(server: ChannelServer, peer: Peer, message: ReportMetrics) -> None:
    """Hands a report to the service."""
    service_of(server).take(peer, message)


async def answer(server: ChannelServer, payload: bytes) -> bytes:
    """Answers the question ``metrics``."""
    return await service_of(server).text()


def request_head(
    control: ControlService, server: ChannelServer, peer: Peer, message: wire.Request
) -> None:
    """Takes the request ``head_metrics``: what a head without a node has to say.

    Raises:
        Deferred: it is answered later.
    """

    async def serve() -> None:
        text = b"" if server.config.with_raylet else await service_of(server).text()
        control.respond(peer, message.request_id, value=text)

    task = server.loop.create_task(serve())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    raise Deferred


_tasks: set[asyncio.Task[None]] = set()
