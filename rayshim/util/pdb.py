"""``ray.util.pdb``: breakpoints in tasks and actors, see :mod:`rayshim.util.rpdb`."""

from __future__ import annotations

from rayshim.util.rpdb import set_trace

__all__ = ["set_trace"]
