"""``rayshim get-head-ip`` and ``rayshim get-worker-ips``."""

from __future__ import annotations

from typing import Any

import click

from rayshim.cli.finding import address_option, ask, temp_dir_option, the_cluster


def _rows(
    file: str | None, name: str, address: str, temp_dir: str | None
) -> list[dict[str, Any]]:
    if file or name:
        raise click.UsageError(
            "rayshim has no cluster files; name the cluster with --address"
        )
    (rows,) = ask(the_cluster(address, temp_dir), ("node_table", None))
    return [row for row in rows if row["alive"] and not row["is_client"]]


@click.command("get-head-ip")
@click.argument("cluster_config_file", required=False)
@click.option("-n", "--cluster-name", default="", help="Not supported; see --address.")
@address_option
@temp_dir_option
def get_head_ip(
    cluster_config_file: str | None,
    cluster_name: str,
    address: str,
    temp_dir: str | None,
) -> None:
    """Print the address of the head's host."""
    for row in _rows(cluster_config_file, cluster_name, address, temp_dir):
        if row["is_head_node"]:
            click.echo(row["node_ip"])


@click.command("get-worker-ips")
@click.argument("cluster_config_file", required=False)
@click.option("-n", "--cluster-name", default="", help="Not supported; see --address.")
@address_option
@temp_dir_option
def get_worker_ips(
    cluster_config_file: str | None,
    cluster_name: str,
    address: str,
    temp_dir: str | None,
) -> None:
    """Print the addresses of the other nodes, one a line."""
    for row in _rows(cluster_config_file, cluster_name, address, temp_dir):
        if not row["is_head_node"]:
            click.echo(row["node_ip"])
