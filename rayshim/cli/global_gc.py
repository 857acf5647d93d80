"""`rayshim global-gc`: collect cycles of objects in all processes."""

from __future__ import annotations

import click


@click.command("global-gc")
@click.option("--address", default=None, help="Of the cluster; default: as `status`.")
def global_gc(address: str | None) -> None:
    """Have all drivers and executors of a cluster collect garbage.

    References that only cycles of objects hold are let go of, and their values freed.
    """
    import msgspec

    from rayshim._core.clusters import find_cluster
    from rayshim.adapters.wire.ask_messages import AskAll, NodeTold, ProcessTold
    from rayshim.adapters.wire.oneshot import OneShot

    question = AskAll("collect_garbage", to="processes")
    try:
        found = find_cluster(address)
        with OneShot(found.head_address, found.token) as head:
            told = head.ask(
                "ask", msgspec.to_builtins(question, builtin_types=(bytes,))
            )
    except (ConnectionError, RuntimeError) as error:
        raise click.ClickException(str(error)) from None
    silent, begun = [], 0
    for row in told:
        node = msgspec.convert(row, NodeTold)
        if node.error:
            silent.append(f"node {node.node_id[:8]}: {node.error}")
            continue
        for one in msgspec.msgpack.decode(node.payload, type=list[ProcessTold]):
            if one.error:
                silent.append(f"pid {one.pid}: {one.error}")
            else:
                begun += 1
    click.echo(f"{begun} processes collect their garbage now")
    if silent:
        raise click.ClickException("not all were reached: " + "; ".join(silent))
