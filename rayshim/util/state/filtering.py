"""Which rows pass filters, and how they are cut down to what was asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rayshim.util.state.exception import RayStateApiException
from rayshim.util.state.options import Filter
from rayshim.util.state.schema import StateSchema

Row = dict[str, Any]
_TRUE, _FALSE = ("true", "1"), ("false", "0")


def check(filters: Iterable[Filter], schema: type[StateSchema]) -> None:
    """Sees that rows of this kind can be chosen by these columns.

    Raises:
        RayStateApiException: one of them does not filter.
    """
    known = schema.filterable_columns()
    for name, _, _ in filters:
        if name not in known:
            raise RayStateApiException(
                f"The given filter column {name} is not supported. Enter filters with "
                "--filter key=value or --filter key!=value. Supported filter columns: "
                f"{', '.join(sorted(known))}"
            )


def passing(rows: Iterable[Row], filters: list[Filter]) -> list[Row]:
    """The rows that pass all filters. Text is compared without regard to case."""
    if not filters:
        return list(rows)
    return [row for row in rows if all(_passes(row, one) for one in filters)]


def _passes(row: Row, one: Filter) -> bool:
    name, predicate, value = one
    return _equals(row.get(name), value) == (predicate == "=")


def _equals(have: Any, wanted: Any) -> bool:
    """Whether a value is what a user wrote, who may have written it as text."""
    if have is None:
        return wanted is None
    if isinstance(have, bool):
        if isinstance(wanted, str):
            text = wanted.lower()
            return text in (_TRUE if have else _FALSE)
        return bool(have == wanted)
    if isinstance(have, (int, float)):
        try:
            return have == float(wanted)
        except (TypeError, ValueError):
            return False
    if isinstance(have, str):
        return have.lower() == str(wanted).lower()
    return bool(have == wanted)
