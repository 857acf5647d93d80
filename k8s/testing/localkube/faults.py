"""Requests that fail because a test wants them to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rayshim.k8s.testing.localkube.authorizing import Call
from rayshim.k8s.testing.localkube.statuses import Refusal

#: An HTTP status; "drop" closes the connection without an answer, "hang" gives none.
How = int | Literal["drop", "hang"]

_REASONS = {
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(slots=True)
class _Fault:
    predicate: Callable[[Call], bool]
    how: How
    left: int


class Faults:
    """What is to fail; each method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: list[_Fault] = []

    def add(self, predicate: Callable[[Call], bool], how: How, times: int) -> None:
        """Let the next requests that fit fail."""
        with self._lock:
            self._wanted.append(_Fault(predicate, how, times))

    def clear(self) -> None:
        """Let nothing fail any more."""
        with self._lock:
            self._wanted.clear()

    def of(self, call: Call) -> How | None:
        """How a request is to fail; None if it is not to. Counts."""
        with self._lock:
            for fault in self._wanted:
                if fault.predicate(call):
                    fault.left -= 1
                    if fault.left <= 0:
                        self._wanted.remove(fault)
                    return fault.how
        return None


def refusal(code: int) -> Refusal:
    """The answer of a request that is to fail with an HTTP status."""
    reason = _REASONS.get(code, "InternalError")
    return Refusal(code, reason, f"a test lets this request fail with {code}")
