"""``rayshim replay``: what a session had and did at a moment of its past."""

from __future__ import annotations

import datetime
from collections import Counter
from typing import Any

import click

from rayshim.cli import showing

_PARTS = ("tasks", "actors", "nodes", "jobs", "placement_groups")


@click.command()
@click.argument("source", metavar="FILE|SESSION")
@click.option(
    "--until",
    default=None,
    metavar="TIME",
    help="2026-01-31T12:00:00, seconds since 1970, +90s after the first event, or -90s "
    "before the last; default: the end.",
)
@click.option(
    "--format",
    "output",
    type=click.Choice(showing.FORMATS),
    default="default",
    help="How to print; json and yaml have every row.",
)
@click.option("--temp-dir", default=None, help="Where sessions are (init(_temp_dir=)).")
def replay(source: str, until: str | None, output: str, temp_dir: str | None) -> None:
    """Show tasks, actors, nodes, jobs and groups as they were at a moment.

    FILE is an event file or a folder of them, SESSION the name of a session that is
    over ("last": the last one), as `rayshim list --session` takes it.

    \b
    Exit codes:
      0  it was printed
      1  there is nothing to replay
      2  wrong usage
    """
    from rayshim.util.state import past
    from rayshim.util.state.exception import RayStateApiException

    try:
        events = past.events_of(source, temp_dir)
    except RayStateApiException as error:
        showing.fail(error)
    end_s = past.bounds(events)[1]
    try:
        until_s = end_s if until is None else past.moment(until, events)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--until") from None
    state = past.state_at(events, until_s)
    if output in ("json", "yaml"):
        state["time"] = _words(until_s)
        showing.show_data(state, output)
        return
    click.echo(f"As of {_words(until_s)}:")
    rows: list[dict[str, Any]] = []
    for part in _PARTS:
        counts = Counter(row.get("state") or row.get("status") for row in state[part])
        rows.append({"what": part, "count": len(state[part]), "states": dict(counts)})
    showing.show_rows(rows, ["what", "count", "states"], output)
    running = [row for row in state["tasks"] if row["state"] == "RUNNING"]
    if running:
        click.echo("\nRunning:")
        columns = ["task_id", "name", "node_id", "worker_pid", "start_time_ms"]
        showing.show_rows(running, columns, output)


def _words(time_s: float) -> str:
    return datetime.datetime.fromtimestamp(time_s).isoformat(" ", "milliseconds")
