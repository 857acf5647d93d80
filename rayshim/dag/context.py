"""Settings of compiled graphs."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import Any

_lock = threading.Lock()


def _from_environment(name: str, default: Any) -> Any:
    """A field whose default is the variable ``RAY_CGRAPH_<name>``."""

    def read() -> Any:
        value = os.environ.get(f"RAY_CGRAPH_{name}")
        if value is None:
            return default
        if isinstance(default, bool):
            return value.lower() in ("1", "true")
        return type(default)(float(value))

    return field(default_factory=read)


@dataclass
class DAGContext:
    """What compiled graphs of this process go by; read when a graph is compiled.

    Args:
        submit_timeout: seconds that `CompiledDAG.execute` may take. A call is handed
            over at once here, so it never runs out.
        get_timeout: seconds that a result may take, -1 for ever;
            `RayChannelTimeoutError` after that.
        teardown_timeout: seconds that `CompiledDAG.teardown` waits for calls under way.
        read_iteration_timeout: at most ``get_timeout``; Ray's readers look at their
            channels that often. There are no channels here.
        buffer_size_bytes: size of Ray's channels. Values may have any size here.
        max_inflight_executions: executions that may be under way at a time.
        max_buffered_results: results that may be there and not be fetched.
        overlap_gpu_communication: True is refused, see
            `DAGNode.experimental_compile`.

    Raises:
        ValueError: ``read_iteration_timeout`` is above ``get_timeout``.

    Example:
        >>> from rayshim.dag import DAGContext
        >>> DAGContext.get_current().buffer_size_bytes
        1000000
    """

    submit_timeout: int = _from_environment("submit_timeout", 10)
    get_timeout: int = _from_environment("get_timeout", 10)
    teardown_timeout: int = _from_environment("teardown_timeout", 30)
    read_iteration_timeout: float = _from_environment("read_iteration_timeout_s", 0.1)
    buffer_size_bytes: int = _from_environment("buffer_size_bytes", 1_000_000)
    max_inflight_executions: int = _from_environment("max_inflight_executions", 10)
    max_buffered_results: int = _from_environment("max_buffered_results", 1000)
    overlap_gpu_communication: bool = _from_environment(
        "overlap_gpu_communication", False
    )

    def __post_init__(self) -> None:
        if self.read_iteration_timeout > self.get_timeout:
            raise ValueError(
                "RAY_CGRAPH_read_iteration_timeout_s "
                f"({self.read_iteration_timeout} s) must not be above "
                f"RAY_CGRAPH_get_timeout ({self.get_timeout} s)"
            )

    @staticmethod
    def get_current() -> DAGContext:
        """The context of this process, made at the first call."""
        global _current
        with _lock:
            if _current is None:
                _current = DAGContext()
            return _current


_current: DAGContext | None = None
