"""``rayshim timeline``: what ran when and where, for Chrome or Perfetto."""

from __future__ import annotations

import time
from pathlib import Path

import click

from rayshim.cli import showing


@click.command()
@click.option("--address", default=None, metavar="HOST:PORT", help="Which cluster.")
@click.option(
    "--session",
    default=None,
    metavar="NAME",
    help='Of a session that is over: its name, "last", or a folder of events.',
)
@click.option(
    "-o",
    "--output",
    "target",
    default=None,
    metavar="FILE",
    help="File to write; default: one in the folder for temporary files.",
)
@click.option("--temp-dir", default=None, help="Where sessions are (init(_temp_dir=)).")
def timeline(
    address: str | None, session: str | None, target: str | None, temp_dir: str | None
) -> None:
    """Write a timeline of all calls, to be opened with https://ui.perfetto.dev."""
    import tempfile

    from rayshim import exceptions
    from rayshim.util.state import past, timelines
    from rayshim.util.state.exception import RayStateApiException

    if target is None:
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        target = str(Path(tempfile.gettempdir(), f"ray-timeline-{stamp}.json"))
    try:
        if session is not None:
            timelines.write(past.timeline(session, temp_dir), target)
        else:
            timelines.timeline(target, address)
    except (
        RayStateApiException,
        OSError,
        RuntimeError,
        exceptions.RayError,
    ) as error:
        showing.fail(error)
    click.echo(f"Trace file written to {target}.")
    click.echo("Open it with https://ui.perfetto.dev or chrome://tracing.")
