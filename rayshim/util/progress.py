"""Progress of a group of calls, as a bar in a notebook or terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import rayshim

#: Seconds between two looks when nothing ends.
LOOK_S = 0.25


def track(refs: Sequence[Any], description: str = "calls are done") -> Iterator[Any]:
    """Give references as their values get ready, and show how many are.

    Args:
        refs: distinct ObjectRefs.
        description: shown beside the bar. Without a notebook or terminal nothing is
            shown.

    Yields:
        Each reference once, those that are ready first.

    Example:
        >>> for ref in track([square.remote(i) for i in range(9)]):  # doctest: +SKIP
        ...     print(ray.get(ref))
    """
    from rayshim._core.progress import make_bar

    left, total = list(refs), len(refs)
    bar = make_bar()
    try:
        while left:
            if bar is not None:
                bar.show(total - len(left), total, description)
            ready, left = _ready(left)
            yield from ready
        if bar is not None:
            bar.show(total, total, description)
    finally:
        if bar is not None:
            bar.close()


def _ready(refs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Those that are ready, at least one unless none is for a while, and the rest."""
    first, _ = rayshim.wait(refs, num_returns=1, timeout=LOOK_S)
    if not first:
        return [], refs
    ready, left = rayshim.wait(refs, num_returns=len(refs), timeout=0)
    return ready, left


__all__ = ["track"]
