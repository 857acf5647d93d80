"""`rayshim compat`: will this program run?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from rayshim.cli.finding import format_option, show_rows

#: Exit code when something is refused or missing.
NOT_ALL = 1


@click.command()
@click.argument(
    "programs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
@format_option
@click.option("--all", "show_all", is_flag=True, help="Show supported names as well.")
def compat(programs: tuple[Path, ...], output: str, show_all: bool) -> None:
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
    if rows or output != "table":
        show_rows(rows, output)
    if output == "table":
        parts = [f"{counts[state]} {state}" for state in STATES]
        click.echo(f"{len(uses)} names of Ray: " + ", ".join(parts))
    if counts[MISSING] or counts[NOT_SUPPORTED]:
        raise SystemExit(NOT_ALL)
