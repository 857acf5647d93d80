"""`rayshim run` and `rayshim version`."""

from __future__ import annotations

import click

from rayshim import RAYSHIM_VERSION


@click.command()
def version() -> None:
    """Print the version of rayshim."""
    click.echo(f"rayshim, version {RAYSHIM_VERSION}")


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(arguments: tuple[str, ...]) -> None:
    """Run a program that says `import ray`: a file, `-m module` or `-c code`."""
    from rayshim.__main__ import main as run_program

    run_program(list(arguments))
