"""`rayshim global-gc`: collect cycles of objects in all processes."""

from __future__ import annotations

import click


@click.command("global-gc")
@click.option("--address", default=None, help="Of the cluster; default: as `status`.")
def global_gc(address: str | None) -> None:
    """Have all drivers and executors of a cluster collect garbage.

    References that only cycles of objects hold are let go of, and their values freed.
    """
    from rayshim._core import asking

    try:
        with asking.control_of(address) as control:
            heard = asking.ask(control, "collect_garbage", to="processes")
    except (ConnectionError, RuntimeError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{len(heard.answers)} processes collect their garbage now")
    if heard.silent:
        raise click.ClickException("not all were reached: " + "; ".join(heard.silent))
