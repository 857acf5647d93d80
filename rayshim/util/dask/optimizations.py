"""Optimizations of graphs before they run."""

from __future__ import annotations

import warnings
from typing import Any

import dask


def dataframe_optimize(dsk: Any, keys: Any, **kwargs: Any) -> None:
    """What Ray does to shuffles of Dask before 2025.1; nothing is done to later ones.

    Returns:
        None, so that Dask's own optimization is all there is.
    """
    warnings.warn(
        "Custom dataframe shuffle optimization only works on dask>=2024.11.0,<2025.1.0,"
        f" you are on version {dask.__version__}. Doing no additional optimization "
        "aside from the default one.",
        stacklevel=2,
    )
