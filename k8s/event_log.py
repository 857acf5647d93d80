"""Events of Kubernetes about the objects that the autoscaler deals with.

One Event for each object and reason, whose count rises: its name follows from both, so
that no restart makes it twice (``kubectl get events``, ``kubectl describe``).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from rayshim.k8s.api import Conflict, Kube
from rayshim.k8s.election import lease_labels

COMPONENT: Final = "rayshim-autoscaler"
#: Characters of a message; the API server takes 1,024.
MOST: Final = 1000


@dataclass(frozen=True, slots=True)
class About:
    """The object that an Event is about."""

    kind: Literal["DaskCluster", "DaskWorkerGroup"]
    name: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Happening:
    """Something to tell."""

    about: About
    #: One word, as "ScaledUp".
    reason: str
    message: str
    is_warning: bool = False


class EventLog:
    """Writes Events.

    Args:
        kube: the namespace.
        platform: name of the platform, for labels.
        identity: of this autoscaler.
        clock: Unix time.
    """

    def __init__(
        self,
        kube: Kube,
        platform: str,
        identity: str,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._kube = kube
        self._platform = platform
        self._identity = identity
        self._clock = clock
        #: What held when last told.
        self._holding: frozenset[Happening] = frozenset()

    def tell(self, happening: Happening) -> None:
        """Writes an Event, or counts it once more."""
        self._write(happening, is_state=False)

    def hold(self, happenings: Iterable[Happening]) -> None:
        """Tells what has begun to hold since the last call; what goes on is known."""
        holding = frozenset(happenings)
        begun = holding - self._holding
        self._holding = self._holding & holding
        for one in sorted(begun, key=lambda one: (one.about.name, one.reason)):
            self._write(one, is_state=True)
            self._holding |= {one}

    def _write(self, happening: Happening, *, is_state: bool) -> None:
        about, now = happening.about, _time(self._clock())
        message = happening.message[:MOST]
        name = event_name(about, happening.reason)
        made = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "labels": lease_labels(self._platform)},
            "involvedObject": {
                "apiVersion": "kubernetes.dask.org/v1",
                "kind": about.kind,
                "name": about.name,
                "namespace": self._kube.namespace,
                **({"uid": about.uid} if about.uid else {}),
            },
            "reason": happening.reason,
            "message": message,
            "type": "Warning" if happening.is_warning else "Normal",
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._identity,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._kube.create(made)
            return
        except Conflict:
            before = self._kube.get("Event", name)
        if before is None:
            return  # It has just expired; the next one is written.
        if is_state and before.get("message") == message:
            return  # Told by an autoscaler before this one.
        count = int(before.get("count") or 1) + 1
        change = {"count": count, "lastTimestamp": now, "message": message}
        self._kube.patch("Event", name, change)


def event_name(about: About, reason: str) -> str:
    """Name of the one Event of an object and a reason."""
    key = f"{about.kind}/{about.name}/{about.uid}/{reason}"
    return f"{about.name}.{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
