"""Rows on a terminal: as a table, as JSON, or as YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click

#: What ``--format`` takes; "default" is "table".
FORMATS = ("default", "json", "yaml", "table")
FAILED = 1

Row = Mapping[str, Any]


def fail(text: object, code: int = FAILED) -> NoReturn:
    """Ends the command with an error.

    Args:
        text: what is wrong, and what to do.
        code: exit code.
    """
    click.echo(f"Error: {text}", err=True)
    raise SystemExit(code)


def show_rows(
    rows: Sequence[Row], columns: Sequence[str], output: str, *, title: str = ""
) -> None:
    """Prints rows.

    Args:
        rows: what to print.
        columns: names, in order.
        output: one of :data:`FORMATS`.
        title: above a table.
    """
    if output in ("json", "yaml"):
        show_data([{name: row.get(name) for name in columns} for row in rows], output)
        return
    from rich.table import Table
    from rich.text import Text

    if title:
        click.echo(title)
    if not rows:
        click.echo("No resource in the cluster" if title else "Nothing")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in columns:
        table.add_column(name.upper(), overflow="fold")
    for number, row in enumerate(rows):
        cells = [Text(_cell(row.get(name))) for name in columns]
        table.add_row(Text(str(number)), *cells)
    print_wide(table)


def print_wide(table: Any) -> None:
    """Prints a table; where nobody looks on, as wide as it is."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=4096)
        with console.capture() as capture:
            console.print(table)
        for line in capture.get().splitlines():
            click.echo(line.rstrip())
        return
    console.print(table)


def show_data(data: Any, output: str) -> None:
    """Prints anything as JSON or YAML."""
    if output == "yaml":
        import yaml

        text = yaml.safe_dump(
            json.loads(json.dumps(data, default=str)), sort_keys=False
        )
        click.echo(f"---\n{text}...")
    else:
        click.echo(json.dumps(data, indent=2, default=str))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_cell(one)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(one) for one in value)
    return str(value)
