"""Ray Data is not part of this version; the name that other libraries import is.

Modin's engine imports it at its start, whether or not the program uses it.
"""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["from_pandas_refs"]


def from_pandas_refs(dfs: Any) -> NoReturn:
    """Refuse to make a Dataset.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        "ray.data is not part of rayshim yet: from_pandas_refs() cannot make a "
        "Dataset. Get the frames with ray.get(refs), or work on them in tasks."
    )


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"ray.data.{name} is missing: ray.data is not part of rayshim yet; see "
        "docs/compatibility.md"
    )
