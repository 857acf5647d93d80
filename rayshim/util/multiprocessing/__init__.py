"""`multiprocessing.Pool` on a cluster."""

from __future__ import annotations

from multiprocessing import JoinableQueue, TimeoutError

from rayshim.util.multiprocessing.pool import Pool

__all__ = ["JoinableQueue", "Pool", "TimeoutError"]
