"""Rows of a page: filtered, sorted and cut into pages here, as the address says.

The parameters of an address are free text of whoever wrote the link: names of columns
that a table does not have are ignored, numbers are held to what a page may show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

#: Rows of a page: by default, and what may be asked for.
ROWS, ROW_CHOICES = 50, (25, 50, 100, 250, 500)
#: Characters of a filter that count.
MAX_TEXT = 200


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Args:
        key: of the rows.
        title: above the column.
        is_choice: its values are few: it is filtered by a list of them.
        is_number: set to the right.
        is_searched: the text that is looked for may be in it.
    """

    key: str
    title: str
    is_choice: bool = False
    is_number: bool = False
    is_searched: bool = False


@dataclass(slots=True)
class Table:
    """What a page shows of rows.

    Example:
        >>> rows = [{"name": "f", "n": 2}, {"name": "g", "n": 1}]
        >>> columns = [Column("name", "Name"), Column("n", "Calls", is_number=True)]
        >>> table = cut(rows, columns, {"sort": "n"}, path="/tasks")
        >>> [row["name"] for row in table.rows], table.matched
        (['g', 'f'], 2)
    """

    path: str
    columns: Sequence[Column]
    rows: list[dict[str, Any]]
    #: Rows before and after filtering.
    total: int
    matched: int
    page: int
    per_page: int
    sort: str
    is_descending: bool
    text: str
    #: Key of a column -> the value that is chosen.
    chosen: dict[str, str]
    #: Key of a column -> values with their counts, most first.
    choices: dict[str, list[tuple[str, int]]] = field(default_factory=dict)

    @property
    def pages(self) -> int:
        """Number of pages, at least one."""
        return max(1, -(-self.matched // self.per_page))

    @property
    def first(self) -> int:
        """Number of the first row that is shown, from one."""
        return (self.page - 1) * self.per_page + 1 if self.rows else 0

    @property
    def last(self) -> int:
        """Number of the last row that is shown."""
        return (self.page - 1) * self.per_page + len(self.rows)

    def link(self, **changes: Any) -> str:
        """The address of this table with other parameters; None takes one away."""
        parameters: dict[str, Any] = dict(self.chosen)
        if self.text:
            parameters["q"] = self.text
        if self.sort:
            parameters["sort"] = self.sort
            if self.is_descending:
                parameters["order"] = "desc"
        if self.per_page != ROWS:
            parameters["rows"] = self.per_page
        parameters.update(changes)
        kept = {key: value for key, value in parameters.items() if value is not None}
        return f"{self.path}?{urlencode(kept)}" if kept else self.path

    def sort_link(self, column: Column) -> str:
        """The address that sorts by a column; a second time the other way round."""
        if self.sort != column.key:
            order = "desc" if column.is_number else None
        else:
            order = None if self.is_descending else "desc"
        return self.link(sort=column.key, order=order)

    def aria_sort(self, column: Column) -> str:
        """Value of the attribute ``aria-sort`` of a column's head."""
        if self.sort != column.key:
            return "none"
        return "descending" if self.is_descending else "ascending"


def cut(
    rows: Sequence[dict[str, Any]],
    columns: Sequence[Column],
    parameters: Mapping[str, str],
    *,
    path: str,
    sort: str = "",
    is_descending: bool = False,
) -> Table:
    """The part of ``rows`` that the parameters of an address ask for.

    Args:
        rows: all of them.
        columns: that may be filtered and sorted by.
        parameters: ``q`` (text), ``sort`` and ``order`` (``desc``), ``page`` (from
            one), ``rows`` (of a page), and keys of columns with the value to keep.
        path: of the page.
        sort: key of the column to sort by if the address names none; empty: as is.
        is_descending: how, then.
    """
    keys = {column.key for column in columns}
    if parameters.get("sort") in keys:
        sort = parameters["sort"]
        is_descending = parameters.get("order") == "desc"
    found = list(rows)
    text = parameters.get("q", "").strip()[:MAX_TEXT]
    if text:
        looked_at = [column.key for column in columns if column.is_searched]
        found = [row for row in found if _contains(row, looked_at, text.lower())]
    chosen = {
        column.key: parameters[column.key][:MAX_TEXT]
        for column in columns
        if column.is_choice and parameters.get(column.key)
    }
    # The counts of a column's values do not depend on what is chosen in that column.
    choices = {}
    for column in columns:
        if column.is_choice:
            others = {k: v for k, v in chosen.items() if k != column.key}
            choices[column.key] = _counted(_kept(found, others), column.key)
    found = _kept(found, chosen)
    if sort:
        found.sort(key=lambda row: _order(row.get(sort)), reverse=is_descending)
    per_page = _number(parameters.get("rows"), ROWS)
    per_page = per_page if per_page in ROW_CHOICES else ROWS
    last_page = max(1, -(-len(found) // per_page))
    page = min(max(1, _number(parameters.get("page"), 1)), last_page)
    begin = (page - 1) * per_page
    return Table(
        path,
        columns,
        found[begin : begin + per_page],
        len(rows),
        len(found),
        page,
        per_page,
        sort,
        is_descending,
        text,
        chosen,
        choices,
    )


def _kept(
    rows: Sequence[dict[str, Any]], chosen: Mapping[str, str]
) -> list[dict[str, Any]]:
    found = list(rows)
    for key, value in chosen.items():
        found = [row for row in found if _shown(row.get(key)) == value]
    return found


def _counted(rows: Sequence[dict[str, Any]], key: str) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for row in rows:
        value = _shown(row.get(key))
        if value:
            counts[value] = counts.get(value, 0) + 1
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _contains(row: Mapping[str, Any], keys: Sequence[str], text: str) -> bool:
    return any(text in _shown(row.get(key)).lower() for key in keys)


def _shown(value: Any) -> str:
    return "" if value is None else str(value)


def _order(value: Any) -> tuple[int, float, str]:
    """A key by which any values can be compared: nothing, numbers, texts."""
    if value is None or value == "":
        return (0, 0.0, "")
    if isinstance(value, int | float):
        return (1, float(value), "")
    return (2, 0.0, str(value))


def _number(text: str | None, default: int) -> int:
    try:
        return int(text or default)
    except ValueError:
        return default
