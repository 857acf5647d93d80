"""`rayshim compat`: will this program run?"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import click

#: Exit code when something is refused or missing.
NOT_ALL = 1


@click.command()
@click.argument(
    "programs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
)
@click.option("--all", "show_all", is_flag=True, help="Show supported names as well.")
def compat(programs: tuple[Path, ...], form: str, show_all: bool) -> None:
    """Say which names of Ray PROGRAMS use, and whether each is supported.

    PROGRAMS are files or folders. They are read, not run. The exit code is 1 if a name
    is missing or refused.

    Example: rayshim compat train.py
    """
    from rayshim.cli.compat_scan import MISSING, NOT_SUPPORTED, STATES, SUPPORTED, scan

    try:
        uses = scan(list(programs))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise click.ClickException(f"cannot be read as Python: {error}") from None
    counts = Counter(use.state for use in uses)
    rows = [use.row() for use in uses if show_all or use.state != SUPPORTED]
    if form == "json":
        click.echo(json.dumps(rows, indent=2))
    elif form == "yaml":
        import yaml

        click.echo(yaml.safe_dump(rows, sort_keys=False), nl=False)
    else:
        _print(rows)
        parts = [f"{counts[state]} {state}" for state in STATES]
        click.echo(f"{len(uses)} names of Ray: " + ", ".join(parts))
    if counts[MISSING] or counts[NOT_SUPPORTED]:
        raise SystemExit(NOT_ALL)


def _print(rows: list[dict[str, str]]) -> None:
    if not rows:
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(Text(cell) for cell in row.values()))
    Console().print(table)
