"""``rayshim list RESOURCE``: rows of what a cluster has, or a session had."""

from __future__ import annotations

from typing import Any

import click

from rayshim.cli import showing

RESOURCES = (
    "actors",
    "jobs",
    "placement-groups",
    "nodes",
    "workers",
    "tasks",
    "objects",
    "runtime-envs",
    "cluster-events",
)


@click.command(name="list")
@click.argument("resource", type=click.Choice(RESOURCES), metavar="RESOURCE")
@click.option(
    "--format",
    "output",
    type=click.Choice(showing.FORMATS),
    default="default",
    help="How to print the rows.",
)
@click.option(
    "-f",
    "--filter",
    "filters",
    multiple=True,
    metavar="KEY=VALUE",
    help="Only rows with this value (key!=value: without); all of several have to fit.",
)
@click.option("--limit", type=int, default=100, show_default=True, help="Rows at most.")
@click.option("--detail", is_flag=True, help="With all columns; prints YAML.")
@click.option("--timeout", type=int, default=30, show_default=True, help="Seconds.")
@click.option("--address", default=None, metavar="HOST:PORT", help="Which cluster.")
@click.option(
    "--session",
    default=None,
    metavar="NAME",
    help='Of a session that is over: its name, "last", or a folder of events.',
)
@click.option("--temp-dir", default=None, help="Where sessions are (init(_temp_dir=)).")
def list_(
    resource: str,
    output: str,
    filters: tuple[str, ...],
    limit: int,
    detail: bool,
    timeout: int,
    address: str | None,
    session: str | None,
    temp_dir: str | None,
) -> None:
    """List what a cluster has and does.

    RESOURCE is one of actors, jobs, placement-groups, nodes, workers, tasks, objects,
    runtime-envs, cluster-events.

    \b
    Exit codes:
      0  rows were printed, or there are none
      1  the cluster does not answer, or a filter is none
      2  wrong usage
    """
    from rayshim.util.state import filtering
    from rayshim.util.state.client import StateApiClient
    from rayshim.util.state.common import (
        ListApiOptions,
        StateResource,
        resource_to_schema,
    )
    from rayshim.util.state.exception import RayStateApiException
    from rayshim.util.state.options import Filter

    kind = StateResource(resource.replace("-", "_"))
    schema = resource_to_schema(kind)
    try:
        chosen: list[Filter] = [parse_filter(one) for one in filters]
        options = ListApiOptions(
            limit=limit, timeout=timeout, detail=detail, filters=chosen
        )
        if session is not None:
            from rayshim.util.state import past

            filtering.check(chosen, schema)
            found = filtering.passing(past.rows_of(kind, session, temp_dir), chosen)
            rows, total = found[:limit], len(found)
        else:
            response = StateApiClient(address).respond(kind, options)
            rows, total = response.result, response.num_filtered
            if response.partial_failure_warning:
                click.echo(f"Warning: {response.partial_failure_warning}", err=True)
    except (RayStateApiException, ConnectionError, ValueError) as error:
        showing.fail(error)
    columns = schema.list_columns(detail)
    if detail and output == "default":
        output = "yaml"
    title = ""
    if output in ("default", "table"):
        title = f"Total: {total}"
        if total > len(rows):
            title += f" ({len(rows)} shown; --limit shows more)"
        rows = [schema.humanify(dict(row)) for row in rows]
        columns = _shown(columns, rows)
    showing.show_rows(rows, columns, output, title=title)


def parse_filter(text: str) -> tuple[str, str, str]:
    """``key=value`` or ``key!=value``.

    Raises:
        ValueError: it is neither.
    """
    for predicate in ("!=", "="):
        key, found, value = text.partition(predicate)
        if found and key.strip():
            return key.strip(), predicate, value.strip()
    raise ValueError(f"--filter {text!r}: write key=value or key!=value")


def _shown(columns: list[str], rows: list[Any]) -> list[str]:
    """Columns of a table: those in which some row has something."""
    filled = [
        name for name in columns if any(row.get(name) not in (None, "") for row in rows)
    ]
    return filled or columns
