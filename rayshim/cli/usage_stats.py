"""`rayshim enable-usage-stats` and `disable-usage-stats`: there are none."""

from __future__ import annotations

import click


@click.command("disable-usage-stats")
def disable_usage_stats() -> None:
    """Does nothing: rayshim sends nothing to anybody."""
    click.echo("rayshim collects no usage statistics; there is nothing to disable.")


@click.command("enable-usage-stats")
def enable_usage_stats() -> None:
    """Fails: rayshim sends nothing to anybody, and has nothing to enable."""
    raise click.ClickException("rayshim collects no usage statistics.")
