"""The autoscaler's metrics, for Prometheus; names are in ``metric_names``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    start_http_server,
)

from rayshim.k8s import metric_names as known
from rayshim.k8s.metric_names import MetricName
from rayshim.k8s.platform_status import PlatformStatus


class AutoscalerMetrics:
    """Counts turns and what they did.

    Thread safety: each method may be called from any thread.
    """

    def __init__(self) -> None:
        #: Only the autoscaler's own.
        self.registry = CollectorRegistry()
        #: Port on which they are served; 0: they are not.
        self.port = 0
        self._workers = _gauge(known.WORKERS, self.registry)
        self._late = _gauge(known.LATE_WORKERS, self.registry)
        self._age = _gauge(known.DEMAND_AGE, self.registry)
        self._is_leader = _gauge(known.IS_LEADER, self.registry)
        self._infeasible = _gauge(known.INFEASIBLE, self.registry)
        self._gated = _gauge(known.GATED_GANGS, self.registry)
        self._decisions = _counter(known.DECISIONS, self.registry)
        self._errors = _counter(known.API_ERRORS, self.registry)
        self._turns = Histogram(
            known.TURN_SECONDS.name,
            known.TURN_SECONDS.description,
            registry=self.registry,
        )
        for kind in known.DECISION_KINDS:
            self._decisions.labels(kind=kind)

    def turned(
        self,
        status: PlatformStatus,
        duration_s: float,
        counts: Mapping[str, int],
        errors: int,
    ) -> None:
        """A turn is over.

        Args:
            status: after it.
            duration_s: of it.
            counts: kind of decision -> how often it was carried out.
            errors: calls of Kubernetes' API that failed.
        """
        self._turns.observe(duration_s)
        self._is_leader.set(status.is_leader)
        self._errors.inc(errors)
        for kind, count in counts.items():
            self._decisions.labels(kind=kind).inc(count)
        if status.demand_s is not None:
            self._age.set(max(status.time_s - status.demand_s, 0))
        if not status.is_leader and not status.is_dry_run:
            # Its holder shows them; twice would be twice as many.
            self._workers.clear()
            self._late.clear()
            self._infeasible.set(0)
            self._gated.set(0)
            return
        for name, group in status.groups.items():
            self._late.labels(group=name).set(group.late)
            for state, count in group.states.items():
                self._workers.labels(group=name, state=state).set(count)
        decisions = status.decisions
        limited = [one for one in decisions.waiting if one.is_limited]
        self._infeasible.set(len(decisions.infeasible) + len(limited))
        self._gated.set(sum(one.gated_gangs for one in status.groups.values()))

    def serve(self, port: int, host: str = "127.0.0.1") -> Callable[[], None]:
        """Answers ``GET /metrics`` in a thread; returns what ends it.

        Args:
            port: 0: any that is free.
            host: address to listen on; "0.0.0.0" in a pod.
        """
        server, thread = start_http_server(port, host, registry=self.registry)
        self.port = server.server_port

        def stop() -> None:
            self.port = 0
            server.shutdown()
            server.server_close()
            thread.join()

        return stop


def _gauge(about: MetricName, registry: CollectorRegistry) -> Gauge:
    return Gauge(about.name, about.description, about.labels, registry=registry)


def _counter(about: MetricName, registry: CollectorRegistry) -> Counter:
    return Counter(about.name, about.description, about.labels, registry=registry)
