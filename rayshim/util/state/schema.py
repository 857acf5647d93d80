"""How rows of state are described: columns, what filters, how it prints."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from typing import Any


class Humanify:
    """Numbers in units that people read.

    Example:
        >>> Humanify.memory(3 << 20)
        '3.000 MiB'
    """

    @staticmethod
    def timestamp(x: float) -> str:
        """Milliseconds since 1970 as local date and time; empty for 0."""
        if not x or x < 0:
            return ""
        return str(datetime.datetime.fromtimestamp(x / 1000))

    @staticmethod
    def memory(x: int) -> str:
        """Bytes in B, KiB, MiB or GiB."""
        for limit, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
            if x >= limit:
                return f"{x / limit:.3f} {unit}"
        return f"{x:.3f} B"

    @staticmethod
    def duration(x: int) -> str:
        """Milliseconds as hours, minutes and seconds."""
        return str(datetime.timedelta(milliseconds=x))

    @staticmethod
    def events(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Events of a task with their times in words."""
        for event in events:
            if "created_ms" in event:
                event["created_ms"] = Humanify.timestamp(event["created_ms"])
        return events

    @staticmethod
    def node_resources(resources: dict[str, Any]) -> dict[str, Any]:
        """Resources of a node with their bytes in words."""
        return {
            name: Humanify.memory(int(amount)) if "memory" in name else amount
            for name, amount in resources.items()
        }


def state_column(
    *,
    filterable: bool,
    detail: bool = False,
    format_fn: Callable[[Any], Any] | None = None,
    **kwargs: Any,
) -> Any:
    """A column of a row of state, as a field of its dataclass.

    Args:
        filterable: rows may be chosen by it.
        detail: it is shown only where details are asked for.
        format_fn: makes its value readable.
        kwargs: as for ``dataclasses.field``.
    """
    about = {"detail": detail, "filterable": filterable, "format_fn": format_fn}
    if detail and "default" not in kwargs:
        kwargs["default"] = None
    return dataclasses.field(metadata=about, **kwargs)


class StateSchema:
    """Base of all rows: its columns by what they are for.

    A row is read as an object (``row.name``) or as a mapping (``row["name"]``).
    """

    @classmethod
    def _fields(cls) -> tuple[dataclasses.Field[Any], ...]:
        return dataclasses.fields(cls)  # type: ignore[arg-type]  # all are dataclasses

    @classmethod
    def humanify(cls, state: dict[str, Any]) -> dict[str, Any]:
        """A row with its numbers in words; the dictionary itself is changed."""
        for one in cls._fields():
            convert = one.metadata.get("format_fn")
            if convert is not None and state.get(one.name) is not None:
                state[one.name] = convert(state[one.name])
        return state

    @classmethod
    def list_columns(cls, detail: bool = True) -> list[str]:
        """Names of all columns, or of those without details."""
        return [
            one.name
            for one in cls._fields()
            if detail or not one.metadata.get("detail", False)
        ]

    @classmethod
    def columns(cls) -> set[str]:
        """Names of all columns."""
        return set(cls.list_columns(detail=True))

    @classmethod
    def filterable_columns(cls) -> set[str]:
        """Names of the columns that rows can be chosen by."""
        return {one.name for one in cls._fields() if one.metadata.get("filterable")}

    @classmethod
    def base_columns(cls) -> set[str]:
        """Names of the columns that are always shown."""
        return set(cls.list_columns(detail=False))

    @classmethod
    def detail_columns(cls) -> set[str]:
        """Names of all columns: those that are shown with details."""
        return set(cls.list_columns(detail=True))

    def asdict(self) -> dict[str, Any]:
        """The row as a dictionary."""
        return dataclasses.asdict(self)  # type: ignore[call-overload,no-any-return]

    def get(self, key: str, default: Any = None) -> Any:
        """A column's value, or ``default`` if there is no such column."""
        return getattr(self, key, default)

    def __getitem__(self, key: str) -> Any:
        try:
            return getattr(self, key)
        except AttributeError:
            raise KeyError(key) from None


def filter_fields(
    data: dict[str, Any], state_dataclass: type[StateSchema], detail: bool
) -> dict[str, Any]:
    """The columns that are shown, of a row with all of them."""
    return {name: data.get(name) for name in state_dataclass.list_columns(detail)}
