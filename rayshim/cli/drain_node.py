"""``rayshim drain-node``: let a node leave with its values and running work."""

from __future__ import annotations

import socket
from typing import Any

import click

from rayshim.cli.finding import address_option, ask, fail, temp_dir_option, the_cluster

IDLE = "DRAIN_NODE_REASON_IDLE_TERMINATION"
PREEMPTION = "DRAIN_NODE_REASON_PREEMPTION"


@click.command("drain-node")
@address_option
@click.option(
    "--node-id",
    default="",
    help="Hex id, or its first digits.  [default: the node of this host]",
)
@click.option(
    "--reason",
    type=click.Choice([IDLE, PREEMPTION]),
    required=True,
    help="IDLE_TERMINATION is refused by a node with work; PREEMPTION is not.",
)
@click.option("--reason-message", required=True, help="Why, for people.")
@click.option(
    "--deadline-remaining-seconds",
    type=int,
    default=None,
    help="Seconds until the node is gone.  [default: setting drain_timeout_s]",
)
@temp_dir_option
def drain_node(
    address: str,
    node_id: str,
    reason: str,
    reason_message: str,
    deadline_remaining_seconds: int | None,
    temp_dir: str | None,
) -> None:
    """Have a node take no more work, hand its values on, and leave."""
    limit_s = deadline_remaining_seconds
    if limit_s is not None and limit_s < 0:
        raise click.UsageError(
            f"--deadline-remaining-seconds cannot be negative, got {limit_s}"
        )
    found = the_cluster(address, temp_dir)
    (rows,) = ask(found, ("node_table", None))
    row = _chosen(rows, node_id)
    order = {
        "node_id": row["node_id"],
        "reason": reason_message,
        "limit_s": -1.0 if limit_s is None else float(limit_s),
        "is_refusable": reason == IDLE,
    }
    (is_sent,) = ask(found, ("drain_node", order))
    if not is_sent:
        fail(f"node {row['node_id'][:8]} is gone already")
    click.echo(f"Node {row['node_id'][:8]} drains; `rayshim status` shows how far.")


def _chosen(rows: list[dict[str, Any]], node_id: str) -> dict[str, Any]:
    alive = [row for row in rows if row["alive"] and not row["is_client"]]
    if node_id:
        found = [row for row in alive if row["node_id"].startswith(node_id.lower())]
    else:
        found = [row for row in alive if row["hostname"] == socket.gethostname()]
    if len(found) == 1:
        return found[0]
    ids = ", ".join(row["node_id"][:8] for row in alive) or "none"
    what = f"--node-id {node_id}" if node_id else "no --node-id on this host"
    fail(f"{what} stands for {len(found)} live nodes (there are: {ids})")
