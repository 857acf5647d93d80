"""Lists of events or commands, which are tuples, that compare the types too."""

from __future__ import annotations

from typing import Any


class TypedList(list[Any]):
    """``TypedList([Kill(1)]) != [Publish(1)]``."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, list)
            and [type(one) for one in self] == [type(one) for one in other]
            and list(self) == list(other)
        )

    __hash__ = None  # type: ignore[assignment]  # As every list.
