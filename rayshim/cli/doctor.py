"""``rayshim doctor``: what of this host, or of a cluster, may cause trouble."""

from __future__ import annotations

from typing import Any

import click

from rayshim.cli.finding import address_option, show_rows, temp_dir_option

_COLORS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command()
@address_option
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "table", "json", "yaml"]),
    default="text",
    show_default=True,
    help="How to print the findings.",
)
@temp_dir_option
def doctor(address: str, output: str, temp_dir: str | None) -> None:
    """Look for trouble, and say how to mend it.

    Looks at shared memory, limits, folders, ports, versions, the token, and clocks.
    Exit code 1 if something does not work; warnings are no failure.
    """
    from rayshim.cli.doctor_checks import check_all

    findings = check_all(address, temp_dir)
    rows: list[dict[str, Any]] = [one._asdict() for one in findings]
    if output == "text":
        for one in findings:
            click.echo(
                f"{click.style(f'{one.state:7}', fg=_COLORS[one.state])} "
                f"{one.subject}: {one.text}"
            )
            if one.fix:
                click.echo(f"        -> {one.fix}")
    else:
        show_rows(rows, output)
    if any(one.state == "error" for one in findings):
        raise SystemExit(1)
