"""Types for annotations."""

from __future__ import annotations

from rayshim._core.refs import ObjectRef

__all__ = ["ObjectRef"]
