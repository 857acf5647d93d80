"""Entry point of the `rayshim` command."""

from __future__ import annotations

import click

from rayshim import RAYSHIM_VERSION
from rayshim.cli.why import why


@click.version_option(RAYSHIM_VERSION, prog_name="rayshim")
@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Run and look after rayshim programs."""


@main.command()
def version() -> None:
    """Print the version of rayshim."""
    click.echo(f"rayshim, version {RAYSHIM_VERSION}")


@main.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(arguments: tuple[str, ...]) -> None:
    """Run a program that says `import ray`: a file, `-m module` or `-c code`."""
    from rayshim.__main__ import main as run_program

    run_program(list(arguments))


main.add_command(why)
