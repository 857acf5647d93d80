"""Watches Kubernetes, so that the autoscaler need not wait for its next turn."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final

from rayshim.k8s import names
from rayshim.k8s.api import Kube, KubeError, Unreachable

logger = logging.getLogger(__name__)

#: What is watched.
KINDS: Final = ("Pod", "Deployment", "DaskWorkerGroup")
#: Seconds until a watch that failed is begun again; doubled up to the limit.
RETRY_S, MAX_RETRY_S = 1.0, 30.0
#: Seconds for which one watch lasts.
LASTS_S: Final = 60


class Watches:
    """Sets an event whenever something of a platform changes, until it is left.

    Args:
        kube: the namespace.
        platform: its name.
        wake: what is set.
    """

    def __init__(self, kube: Kube, platform: str, wake: threading.Event) -> None:
        self._kube = kube
        self._labels = {names.PLATFORM: platform}
        self._wake = wake
        self._stop = threading.Event()
        self._lock = threading.Lock()
        #: Kind -> what ends its watch.
        self._enders: dict[str, Callable[[], None]] = {}
        self._threads = [
            threading.Thread(
                target=self._watch, args=(kind,), name=f"watch-{kind}", daemon=True
            )
            for kind in KINDS
        ]

    def __enter__(self) -> Watches:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        with self._lock:
            enders = list(self._enders.values())
        for end in enders:
            _end(end)
        for thread in self._threads:
            thread.join()

    def _watch(self, kind: str) -> None:
        wait_s = RETRY_S

        def opened(end: Callable[[], None]) -> None:
            with self._lock:
                self._enders[kind] = end
            if self._stop.is_set():
                _end(end)

        while not self._stop.is_set():
            try:
                events = self._kube.watch(
                    kind, self._labels, limit_s=LASTS_S, on_open=opened
                )
                for _ in events:
                    wait_s = RETRY_S
                    self._wake.set()
                    if self._stop.is_set():
                        return
            except (KubeError, Unreachable, OSError, ValueError) as error:
                if not self._stop.is_set():
                    logger.debug("the watch of %s ended: %s", kind, error)
                self._stop.wait(wait_s)
                wait_s = min(2 * wait_s, MAX_RETRY_S)
            else:
                # A server that ends each watch at once must not be asked all the time.
                self._stop.wait(RETRY_S / 2)


def _end(end: Callable[[], None]) -> None:
    with suppress(OSError, ValueError, RuntimeError):
        end()
