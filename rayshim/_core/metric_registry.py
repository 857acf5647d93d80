"""What this process counts, and its way to the raylet.

Counting is an update of a dictionary. What changed goes out in one message each
``metrics_report_interval_ms``, and at the end of the process. Counters and histograms
are told as totals, so that a report that is lost, or comes twice, changes nothing.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
from bisect import bisect_left

import msgspec

from rayshim._core import current
from rayshim.adapters.wire.codec import as_text
from rayshim.adapters.wire.metric_messages import FamilyReport, ReportMetrics, Sample

logger = logging.getLogger(__name__)

#: Values of one name (combinations of tags) that a process tells; what is counted
#: under further ones is not shown. Each is memory in the raylet and in Prometheus.
MAX_SERIES = 10_000

#: (tag, value) pairs in the order of the tags.
Tags = tuple[tuple[str, str], ...]


class Family:
    """The values of one name in this process.

    Thread safety: :meth:`add`, :meth:`put` and :meth:`observe` may be called from any
    thread.
    """

    __slots__ = (
        "_changed",
        "_full",
        "_lock",
        "_registry",
        "boundaries",
        "buckets",
        "description",
        "kind",
        "name",
        "values",
    )

    def __init__(
        self,
        registry: Registry,
        name: str,
        kind: str,
        description: str,
        boundaries: list[float],
    ) -> None:
        self._registry = registry
        self._lock = registry.lock
        self._full = False
        #: Tags of values that changed since the last report.
        self._changed: set[Tags] = set()
        self.name = name
        self.kind = kind
        self.description = description
        self.boundaries = boundaries
        #: Tags -> value; of a histogram, the sum.
        self.values: dict[Tags, float] = {}
        #: Tags -> observations in each bucket, of a histogram.
        self.buckets: dict[Tags, list[int]] = {}

    def add(self, tags: Tags, amount: float) -> None:
        """Raise a counter."""
        with self._lock:
            known = self.values.get(tags)
            if known is None:
                if self._is_full():
                    return
                known = 0.0
            self.values[tags] = known + amount
            self._changed.add(tags)
        if not self._registry.armed:
            self._registry.arm()

    def put(self, tags: Tags, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            if tags not in self.values and self._is_full():
                return
            self.values[tags] = value
            self._changed.add(tags)
        if not self._registry.armed:
            self._registry.arm()

    def observe(self, tags: Tags, value: float) -> None:
        """Count a value in a histogram."""
        place = bisect_left(self.boundaries, value)
        with self._lock:
            counts = self.buckets.get(tags)
            if counts is None:
                if self._is_full():
                    return
                counts = self.buckets[tags] = [0] * (len(self.boundaries) + 1)
                self.values[tags] = 0.0
            counts[place] += 1
            self.values[tags] += value
            self._changed.add(tags)
        if not self._registry.armed:
            self._registry.arm()

    def _is_full(self) -> bool:
        if len(self.values) < MAX_SERIES:
            return False
        if not self._full:
            self._full = True
            logger.warning(
                "metric %s has %d combinations of tags in this process; further ones "
                "are not shown. Use tags with few values, no ids",
                self.name,
                MAX_SERIES,
            )
        return True

    def take_changes(self, everything: bool) -> FamilyReport | None:
        """What changed, or all, for a report (under the lock)."""
        chosen = list(self.values) if everything else list(self._changed)
        self._changed.clear()
        if not chosen:
            return None
        samples = [
            Sample(
                {key: as_text(value) for key, value in tags},
                _as_float(self.values[tags]),
                list(self.buckets.get(tags, ())),
            )
            for tags in chosen
        ]
        description = as_text(self.description)
        return FamilyReport(self.name, self.kind, description, self.boundaries, samples)


def _as_float(value: float) -> float:
    """A number as reports have it; a whole number may be too large for that."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


class Registry:
    """All families of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        #: Name -> family.
        self.families: dict[str, Family] = {}
        #: Whether a report is on its way, or there is nobody to report to.
        self.armed = False
        #: The session that knows what was reported.
        self._told: object = None
        self._is_registered = False

    def family(
        self, name: str, kind: str, description: str, boundaries: list[float]
    ) -> Family:
        """The family of a name; made at its first use.

        Raises:
            ValueError: the name is used for another kind of metric in this process.
        """
        with self.lock:
            family = self.families.get(name)
            if family is None:
                family = Family(self, name, kind, description, boundaries)
                self.families[name] = family
            elif family.kind != kind:
                raise ValueError(
                    f"metric {name!r} is a {family.kind} in this process already; "
                    f"give the {kind} another name"
                )
            return family

    def arm(self) -> None:
        """Have the next report sent in a while."""
        peer = current.peer
        if peer is None or peer.ended:
            return
        with self.lock:
            if self.armed:
                return
            self.armed = True
            is_first, self._is_registered = not self._is_registered, True
        if is_first:
            atexit.register(self.flush)
        interval_s = max(0.05, peer.settings.metrics_report_interval_ms / 1000)
        peer.reactor.call_later(interval_s, self.flush)

    def flush(self) -> None:
        """Send what changed now."""
        peer = current.peer
        with self.lock:
            self.armed = False
            if peer is None or peer.ended:
                return
            is_new, self._told = self._told is not peer, peer
            found = [family.take_changes(is_new) for family in self.families.values()]
        reports = [one for one in found if one is not None]
        if not reports:
            return
        message = ReportMetrics(msgspec.msgpack.encode(reports))
        with peer.lock:
            if not peer.raylet.closed:
                peer.raylet.send(message)


#: Of this process.
registry = Registry()
