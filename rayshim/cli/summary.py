"""``rayshim summary tasks|actors|objects``: counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from rayshim.cli import showing


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--format",
            "output",
            type=click.Choice(showing.FORMATS),
            default="default",
            help="How to print the counts.",
        ),
        click.option("--address", default=None, metavar="HOST:PORT", help="Where."),
        click.option("--timeout", type=int, default=30, show_default=True, help="s."),
    ):
        command = option(command)
    return command


@click.group()
def summary() -> None:
    """Count what a cluster has and does."""


@summary.command()
@_options
@click.option(
    "--by",
    type=click.Choice(("func_name", "lineage")),
    default="func_name",
    show_default=True,
    help="Count by name, or by what called what.",
)
def tasks(timeout: int, address: str | None, output: str, by: str) -> None:
    """Count calls by name and state."""
    found = _ask("TASKS", timeout, address, by)
    if output in ("json", "yaml"):
        showing.show_data(found, output)
        return
    click.echo(
        f"total_tasks: {found['total_tasks']}\n"
        f"total_actor_tasks: {found['total_actor_tasks']}\n"
        f"total_actor_scheduled: {found['total_actor_scheduled']}\n"
    )
    if by == "lineage":
        _show_tree(found["summary"])
        return
    rows = [
        {**row, "state_counts": row["state_counts"]}
        for row in found["summary"].values()
    ]
    showing.show_rows(rows, ["func_or_class_name", "state_counts", "type"], output)


@summary.command()
@_options
def actors(timeout: int, address: str | None, output: str) -> None:
    """Count actors by class and state."""
    found = _ask("ACTORS", timeout, address)
    if output in ("json", "yaml"):
        showing.show_data(found, output)
        return
    click.echo(f"total_actors: {found['total_actors']}\n")
    rows = list(found["summary"].values())
    showing.show_rows(rows, ["class_name", "state_counts"], output)


@summary.command()
@_options
def objects(timeout: int, address: str | None, output: str) -> None:
    """Count objects, and their bytes, by the code that made them."""
    found = _ask("OBJECTS", timeout, address)
    if output in ("json", "yaml"):
        showing.show_data(found, output)
        return
    click.echo(
        f"total_objects: {found['total_objects']}\n"
        f"total_size_mb: {found['total_size_mb']:.3f}\n"
        f"callsite_enabled: {found['callsite_enabled']}\n"
    )
    if not found["callsite_enabled"]:
        click.echo(
            "Set RAY_record_ref_creation_sites=1 before the program starts to see "
            "where objects are made.\n"
        )
    rows = [{"call_site": site, **row} for site, row in found["summary"].items()]
    columns = [
        "call_site",
        "total_objects",
        "total_size_mb",
        "total_num_workers",
        "total_num_nodes",
        "ref_type_counts",
        "task_state_counts",
    ]
    showing.show_rows(rows, columns, output)


def _ask(
    resource: str, timeout: int, address: str | None, by: str | None = None
) -> Any:
    from rayshim.util.state.client import StateApiClient
    from rayshim.util.state.common import SummaryApiOptions, SummaryResource
    from rayshim.util.state.exception import RayStateApiException

    try:
        return StateApiClient(address).summary(
            SummaryResource[resource],
            options=SummaryApiOptions(timeout=timeout, summary_by=by),
            raise_on_missing_output=False,
            _explain=True,
        )["cluster"]
    except (RayStateApiException, ConnectionError, ValueError) as error:
        showing.fail(error)


def _show_tree(nodes: list[dict[str, Any]]) -> None:
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text("driver"))
    waiting = [(tree, node) for node in nodes]
    while waiting:
        parent, node = waiting.pop(0)
        counts = ", ".join(f"{s}: {n}" for s, n in node["state_counts"].items())
        branch = parent.add(Text(f"{node['name']} ({node['type']}) {counts}"))
        children = node["children"]
        if node["type"] == "GROUP" and not any(one["children"] for one in children):
            continue  # they are all alike
        waiting += [(branch, child) for child in children]
    showing.print_wide(tree)
