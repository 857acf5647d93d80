"""The queue, where old programs look for it."""

from __future__ import annotations

from rayshim.util.queue import Empty, Full, Queue

__all__ = ["Empty", "Full", "Queue"]
