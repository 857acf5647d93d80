"""The loop: looks, decides, and carries out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rayshim.autoscaler.control import Control
from rayshim.k8s.api import Kube
from rayshim.k8s.config import Platform
from rayshim.k8s.platform_status import PlatformStatus

#: Seconds between two turns.
INTERVAL_S = 5.0


class PlatformAutoscaler:
    """Keeps the workers of a platform at what the demand needs."""

    def __init__(
        self,
        kube: Kube,
        link: Control,
        platform: Platform,
        *,
        identity: str,
        interval_s: float = INTERVAL_S,
        dry_run: bool = False,
        clock: Callable[[], float] = time.time,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        raise NotImplementedError

    def turn(self) -> PlatformStatus:
        """Looks, decides and acts once."""
        raise NotImplementedError

    def run(self, stop: threading.Event) -> None:
        """Turns until told to stop; then gives the Lease up."""
        raise NotImplementedError
