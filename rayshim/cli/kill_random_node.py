"""``rayshim kill-random-node``: what a cluster does when a node fails."""

from __future__ import annotations

import os
import random
import signal
import socket

import click

from rayshim.cli.finding import address_option, ask, fail, temp_dir_option, the_cluster


@click.command("kill-random-node")
@click.argument("cluster_config_file", required=False)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--hard", is_flag=True, help="SIGKILL, as a host that fails; only on this host."
)
@click.option("-n", "--cluster-name", default="", help="Not supported; see --address.")
@address_option
@temp_dir_option
def kill_random_node(
    cluster_config_file: str | None,
    yes: bool,
    hard: bool,
    cluster_name: str,
    address: str,
    temp_dir: str | None,
) -> None:
    """End one node, not the head's, to see what becomes of what ran there."""
    if cluster_config_file or cluster_name:
        raise click.UsageError(
            "rayshim has no cluster files; name the cluster with --address"
        )
    found = the_cluster(address, temp_dir)
    (rows,) = ask(found, ("node_table", None))
    alive = [
        row
        for row in rows
        if row["alive"] and not row["is_head_node"] and not row["is_client"]
    ]
    if hard:
        here = socket.gethostname()
        alive = [
            row
            for row in alive
            if row["hostname"] == here and os.path.exists(row["socket_path"])
        ]
    if not alive:
        where = " on this host" if hard else ""
        fail(f"the cluster at {found.address} has no node{where} beside the head's")
    row = random.choice(alive)
    short = row["node_id"][:8]
    if not yes:
        click.confirm(f"End node {short} at {row['node_ip']}?", abort=True)
    if hard:
        os.kill(row["pid"], signal.SIGKILL)
    else:
        order = {
            "node_id": row["node_id"],
            "graceful": False,
            "reason": "it was killed",
        }
        ask(found, ("drain_node", order))
    click.echo(f"Ended node {short} at {row['node_ip']}.")
