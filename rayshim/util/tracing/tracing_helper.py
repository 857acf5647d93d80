"""Whether calls are traced in this process."""

from __future__ import annotations

__all__ = ["is_tracing_enabled"]


def is_tracing_enabled() -> bool:
    """Return whether the hook of ``init(_tracing_startup_hook=)`` has run here.

    Example:
        >>> is_tracing_enabled()
        False
    """
    from rayshim._core import trace_hooks

    return bool(trace_hooks.hook)


#: Ray's name for it.
_is_tracing_enabled = is_tracing_enabled
