"""``rayshim health-check``: whether a cluster answers, for probes."""

from __future__ import annotations

import click

from rayshim.cli.finding import address_option, ask, fail, temp_dir_option, the_cluster


@click.command("health-check")
@address_option
@click.option(
    "--component",
    default="",
    help="'ray_client_server': whether remote drivers can connect.",
)
@click.option(
    "--skip-version-check", is_flag=True, help="Other versions are no failure."
)
@temp_dir_option
def health_check(
    address: str, component: str, skip_version_check: bool, temp_dir: str | None
) -> None:
    """Exit code 0 if the cluster answers and has a live node, else 1."""
    from rayshim.adapters.wire import versions

    if component not in ("", "ray_client_server"):
        raise click.UsageError(
            f"--component {component!r} is not known: there is ray_client_server"
        )
    found = the_cluster(address, temp_dir)
    info, nodes = ask(found, ("cluster_info", None), ("nodes", None))
    if not skip_version_check:
        try:
            versions.check(info.get("versions", {}), "this command")
        except RuntimeError as error:
            fail(str(error))
    if component and not info.get("client_port"):
        fail(
            f"the head at {found.address} has no port of its own for ray:// (remote "
            "drivers can use that address); --ray-client-server-port gives it one"
        )
    if not any(row["Alive"] for row in nodes):
        fail(f"the cluster at {found.address} has no live node")
