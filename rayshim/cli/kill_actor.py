"""`rayshim kill-actor`: end a named actor."""

from __future__ import annotations

import click


@click.command("kill-actor")
@click.option("--address", default=None, help="Of the cluster; default: as `status`.")
@click.option("--name", required=True, help="Name of the actor.")
@click.option("--namespace", default="default", show_default=True)
@click.option("--force", is_flag=True, help="At once; else after its accepted calls.")
@click.option("--no-restart", is_flag=True, help="Even if it has restarts left.")
def kill_actor(
    address: str | None, name: str, namespace: str, force: bool, no_restart: bool
) -> None:
    """End a named actor.

    Without --force the actor gets to finish the calls that it has accepted, and is not
    restarted. With --force its process is killed; without --no-restart it is then
    restarted, if it has restarts left.

    Example: rayshim kill-actor --name counter --namespace demo --force
    """
    import rayshim as ray

    with ray.init(address or "auto", namespace=namespace, log_to_driver=False):
        try:
            actor = ray.get_actor(name)
        except ValueError as error:
            raise click.ClickException(str(error)) from None
        if force:
            ray.kill(actor, no_restart=no_restart)
            click.echo(f"killed {name}")
            return
        try:
            ray.get(actor.__ray_terminate__.remote())
        except ray.exceptions.RayActorError:
            pass
        click.echo(f"{name} has ended")
