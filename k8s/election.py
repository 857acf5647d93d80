"""Who of several autoscalers decides: the holder of a Lease.

As Kubernetes' own components do it (client-go's ``leaderelection``): the holder renews
the Lease; whoever has seen it unchanged for its whole duration, by his own clock, may
take it. Each write names the version that was read, so that of two candidates one gets
a conflict.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from rayshim.k8s import names
from rayshim.k8s.api import Conflict, Kube, KubeError, Unreachable

#: Seconds for which the Lease is held without being renewed.
DURATION_S: Final = 15.0


class Election:
    """One candidate for a Lease.

    Args:
        kube: the namespace of the Lease.
        name: of the Lease.
        identity: of this candidate, different from all others, as the pod's name.
        labels: of the Lease when it is made.
        duration_s: for which it is held without being renewed.
        clock: Unix time.

    Thread safety: none; it belongs to the autoscaler's thread.
    """

    def __init__(
        self,
        kube: Kube,
        name: str,
        identity: str,
        *,
        labels: dict[str, str] | None = None,
        duration_s: float = DURATION_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._kube = kube
        self._name = name
        self._identity = identity
        self._labels = labels or {}
        self._duration_s = duration_s
        self._clock = clock
        #: Of the Lease as last seen, and when it was first seen so.
        self._version = ""
        self._seen_s = 0.0
        #: When it was renewed last, before the write; 0: it is not held.
        self._renewed_s = 0.0
        #: Who holds it; empty: nobody, or it was not looked at yet.
        self.holder = ""

    def holds(self) -> bool:
        """Whether the Lease is held now and nobody else can have taken it."""
        age_s = self._clock() - self._renewed_s
        return self._renewed_s > 0 and 0 <= age_s < self._duration_s

    def campaign(self) -> bool:
        """Takes or renews the Lease if possible; whether this candidate holds it.

        Raises:
            Unreachable: the API server does not answer.
            KubeError: it refuses.
        """
        now = self._clock()
        lease = self._kube.get("Lease", self._name)
        if lease is None:
            return self._write(now, None)
        spec = lease.get("spec") or {}
        self.holder = spec.get("holderIdentity") or ""
        version = str(lease["metadata"].get("resourceVersion", ""))
        if version != self._version:
            self._version, self._seen_s = version, now
        duration_s = float(spec.get("leaseDurationSeconds") or self._duration_s)
        is_expired = now - self._seen_s >= duration_s
        if self.holder in ("", self._identity) or is_expired:
            return self._write(now, lease)
        self._renewed_s = 0.0
        return False

    def release(self) -> None:
        """Gives the Lease up, if held, so that another one need not wait.

        What goes wrong is left to the Lease's expiry.
        """
        if self._renewed_s <= 0:
            return
        self._renewed_s = 0.0
        try:
            lease = self._kube.get("Lease", self._name)
            spec = (lease or {}).get("spec") or {}
            if lease is None or spec.get("holderIdentity") != self._identity:
                return
            now = _micro_time(self._clock())
            lease["spec"] = {
                **spec,
                "holderIdentity": "",
                "leaseDurationSeconds": 1,
                "renewTime": now,
            }
            self._kube.replace(lease)
        except (KubeError, Unreachable):
            return

    def _write(self, now: float, lease: dict[str, Any] | None) -> bool:
        before = (lease or {}).get("spec") or {}
        is_mine = before.get("holderIdentity") == self._identity
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._duration_s)),
            "acquireTime": before.get("acquireTime") if is_mine else _micro_time(now),
            "renewTime": _micro_time(now),
            "leaseTransitions": int(before.get("leaseTransitions") or 0)
            + (lease is not None and not is_mine),
        }
        try:
            if lease is None:
                meta = {"name": self._name, "labels": self._labels}
                written = self._kube.create(
                    {
                        "apiVersion": "coordination.k8s.io/v1",
                        "kind": "Lease",
                        "metadata": meta,
                        "spec": spec,
                    }
                )
            else:
                written = self._kube.replace({**lease, "spec": spec})
        except Conflict:
            # Somebody was faster; whether it was for good is seen in the next turn.
            self._renewed_s = 0.0
            return False
        self._version = str(written["metadata"].get("resourceVersion", ""))
        self._seen_s = self._renewed_s = now
        self.holder = self._identity
        return True


def lease_labels(platform: str) -> dict[str, str]:
    """Labels of what the autoscaler itself makes."""
    return {names.MANAGED_BY: names.RAYSHIM, names.PLATFORM: platform}


def _micro_time(unix_s: float) -> str:
    """A time as Kubernetes' MicroTime."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
