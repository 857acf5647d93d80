"""Ray's Core API on Dask and Apache Arrow."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "install_as_ray":
        from rayshim.dropin import install_as_ray

        return install_as_ray
    raise AttributeError(f"module 'rayshim' has no attribute {name!r}")
