"""Names of Ray's inside that libraries use all the same."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("services", "worker"):
        return importlib.import_module(f"rayshim._private.{name}")
    raise AttributeError(
        f"ray._private.{name} is missing: of Ray's inside there are `services` and "
        "`worker`; use public names"
    )
