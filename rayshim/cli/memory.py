"""``rayshim memory``: which process holds which object, of what size, made where."""

from __future__ import annotations

from typing import Any

import click

from rayshim.cli import showing

_UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}
_SORT = {
    "PID": "pid",
    "OBJECT_SIZE": "object_size",
    "REFERENCE_TYPE": "reference_type",
}
_COLUMNS = (
    "ip",
    "pid",
    "type",
    "object_id",
    "object_size",
    "reference_type",
    "task_status",
    "attempt_number",
    "call_site",
    "local_refs",
    "owner",
    "borrowers",
    "copies",
)


@click.command()
@click.option("--address", default=None, metavar="HOST:PORT", help="Which cluster.")
@click.option(
    "--group-by",
    type=click.Choice(("NODE_ADDRESS", "STACK_TRACE")),
    default="NODE_ADDRESS",
    help="Group references by their node, or by the code that made them.",
)
@click.option(
    "--sort-by",
    type=click.Choice(tuple(_SORT)),
    default="OBJECT_SIZE",
    help="Sort references, ascending.",
)
@click.option(
    "--units", type=click.Choice(tuple(_UNITS)), default="B", help="Unit of sizes."
)
@click.option(
    "--no-format/--table",
    "is_plain",
    default=True,
    help="Plain lines, or a table that fits the terminal.",
)
@click.option("--stats-only", is_flag=True, help="Only how full the stores are.")
@click.option(
    "--num-entries", "--n", type=int, default=None, help="References of each group."
)
@click.option(
    "--format",
    "output",
    type=click.Choice(showing.FORMATS),
    default="default",
    help="How to print references.",
)
def memory(
    address: str | None,
    group_by: str,
    sort_by: str,
    units: str,
    is_plain: bool,
    stats_only: bool,
    num_entries: int | None,
    output: str,
) -> None:
    """Show which processes hold which objects, and how full the stores are.

    An object that is not freed has a row that says who holds it: local references,
    calls that wait with it, values that contain it, and borrowers in other processes.
    """
    from rayshim import exceptions
    from rayshim._core import asking
    from rayshim.util.state import sources

    try:
        with asking.control_of(address) as control:
            found = sources.held(control, 5.0)
            stores = control.ask("state_rows", {"kind": "stores"})
    except (ConnectionError, RuntimeError, exceptions.RayError) as error:
        showing.fail(error)
    rows = sorted(found.rows, key=lambda row: row[_SORT[sort_by]])
    if output in ("json", "yaml"):
        data: dict[str, Any] = {"stores": stores}
        if not stats_only:
            data["objects"] = rows[: num_entries or None]
        showing.show_data(data, output)
        return
    for line in found.silent:
        click.echo(f"Warning: no answer from {line}", err=True)
    if not stats_only:
        _show_groups(rows, group_by, units, num_entries, is_plain=is_plain)
    _show_stores(stores, units)


def _show_groups(
    rows: list[dict[str, Any]],
    group_by: str,
    units: str,
    num_entries: int | None,
    *,
    is_plain: bool,
) -> None:
    column = "ip" if group_by == "NODE_ADDRESS" else "call_site"
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(str(row[column]), []).append(row)
    words = "node" if column == "ip" else "call site"
    for name, members in groups.items():
        size = sum(max(0, row["object_size"]) for row in members)
        kinds: dict[str, int] = {}
        for row in members:
            kinds[row["reference_type"]] = kinds.get(row["reference_type"], 0) + 1
        counts = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
        click.echo(
            f"======== Object references of {words} {name}: {len(members)}, "
            f"{_size(size, units)} ({counts}) ========"
        )
        shown = members[:num_entries] if num_entries is not None else members
        cells = [
            {**row, "object_size": _size(row["object_size"], units)} for row in shown
        ]
        if is_plain:
            click.echo("  ".join(_COLUMNS))
            for row in cells:
                click.echo("  ".join(_plain(row[name]) for name in _COLUMNS))
        else:
            showing.show_rows(cells, _COLUMNS, "table")
        click.echo()
    if not rows:
        click.echo("No process holds an object.\n")


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    return str(value) if value not in (None, "") else "-"


def _show_stores(stores: list[dict[str, Any]], units: str) -> None:
    click.echo("======== Object stores ========")
    for row in stores:
        line = (
            f"node {row['node_ip']} ({row['node_id'][:12]}): "
            f"{_size(row['used_bytes'], units)} of {_size(row['limit_bytes'], units)} "
            "used"
        )
        if row["spilled_bytes"]:
            line += f", {_size(row['spilled_bytes'], units)} spilled to disk"
        click.echo(line)


def _size(size_bytes: int, units: str) -> str:
    if size_bytes < 0:
        return "?"
    if units == "B":
        return f"{size_bytes} B"
    return f"{size_bytes / _UNITS[units]:.3f} {units}"
