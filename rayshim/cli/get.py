"""``rayshim get RESOURCE ID``: one row with all columns."""

from __future__ import annotations

import click

from rayshim.cli import showing

RESOURCES = (
    "actors",
    "placement-groups",
    "nodes",
    "workers",
    "tasks",
    "objects",
    "jobs",
)


@click.command()
@click.argument("resource", type=click.Choice(RESOURCES), metavar="RESOURCE")
@click.argument("id")
@click.option("--address", default=None, metavar="HOST:PORT", help="Which cluster.")
@click.option("--timeout", type=int, default=30, show_default=True, help="Seconds.")
@click.option(
    "--format",
    "output",
    type=click.Choice(("default", "json", "yaml")),
    default="default",
    help="How to print the row; default: YAML.",
)
def get(resource: str, id: str, address: str | None, timeout: int, output: str) -> None:
    """Show one thing, by its id, with all that is known of it.

    \b
    Exit codes:
      0  it was printed
      1  there is none, or the cluster does not answer
      2  wrong usage
    """
    from rayshim.util.state.client import StateApiClient
    from rayshim.util.state.common import GetApiOptions, StateResource
    from rayshim.util.state.exception import RayStateApiException

    kind = StateResource(resource.replace("-", "_"))
    try:
        found = StateApiClient(address).get(kind, id, GetApiOptions(timeout=timeout))
    except (RayStateApiException, ConnectionError, ValueError) as error:
        showing.fail(error)
    if not found:
        showing.fail(f"Resource with id={id} not found in the cluster.")
    rows = found if isinstance(found, list) else [found]
    kept = [row.asdict() for row in rows]
    if output != "json":
        kept = [type(row).humanify(one) for row, one in zip(rows, kept, strict=True)]
    data = kept if len(kept) > 1 or kind is StateResource.OBJECTS else kept[0]
    showing.show_data(data, "yaml" if output == "default" else output)
