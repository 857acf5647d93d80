"""``python -m rayshim.k8s.testing.localkube``: a cluster to try things out in."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import click

from rayshim.k8s.config import ConfigError, Platform
from rayshim.k8s.loading import load_platform
from rayshim.k8s.testing.localkube.local_cluster import LocalCluster
from rayshim.k8s.testing.localkube.nodes import DEFAULT_NODES, FakeNode, platform_nodes

_GPU_TAINT = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}


@click.command()
@click.option("--operator", is_flag=True, help="Run the dask-kubernetes operator.")
@click.option("--kueue", is_flag=True, help="Emulate Kueue's queues.")
@click.option(
    "--namespace", "namespaces", multiple=True, help="A namespace to have at the start."
)
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NAME,CPUS,GIB[,GPUS[,LABEL=VALUE...]]",
    help="A node. [default: cpu-0, cpu-1 and gpu-0 with 4 GPUs]",
)
@click.option(
    "--platform",
    "platform_file",
    metavar="FILE",
    help="A platform.yaml, for whose head and groups there are nodes.",
)
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65535),
    help="Of the API server; 0: any that is free.",
)
def main(
    operator: bool,
    kueue: bool,
    namespaces: tuple[str, ...],
    nodes: tuple[str, ...],
    platform_file: str | None,
    port: int,
) -> None:
    """Start a small Kubernetes cluster in processes of this machine.

    It stays until Ctrl-C, and leaves nothing behind.
    """
    end = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: end.set())
    made = [_node(text) for text in nodes]
    if platform_file is not None:
        made += platform_nodes(_platform(platform_file))
    cluster = LocalCluster(
        made or DEFAULT_NODES,
        namespaces=namespaces,
        operator=operator,
        kueue=kueue,
        port=port,
        tls=True,
    )
    with ExitStack() as stack:
        try:
            stack.enter_context(cluster)
        except RuntimeError as error:
            raise click.ClickException(str(error)) from error
        click.echo(f"export KUBECONFIG={cluster.kubeconfig}")
        click.echo("Names of Services resolve in Python processes that also have:")
        for name, value in cluster.environment().items():
            if name.startswith(("LOCALKUBE_", "PYTHONPATH")):
                click.echo(f"export {name}='{value}'")
        click.echo("It ends with Ctrl-C.")
        end.wait()


def _platform(file: str) -> Platform:
    try:
        return load_platform(Path(file))
    except ConfigError as error:
        raise click.UsageError(str(error)) from error


def _node(text: str) -> FakeNode:
    name, *rest = text.split(",")
    labels = dict(part.split("=", 1) for part in rest if "=" in part)
    try:
        cpus, gib, gpus = [float(one) for one in rest if "=" not in one] + (
            [0.0] if len(rest) - len(labels) == 2 else []
        )
    except ValueError:
        raise click.UsageError(
            f"--node {text!r} must be NAME,CPUS,GIB[,GPUS[,LABEL=VALUE...]], such as "
            "gpu-1,8,32,4,rayshim.io/group=gpu-train"
        ) from None
    taints = (_GPU_TAINT,) if gpus else ()
    return FakeNode(name, cpus, gib, int(gpus), labels, taints)


if __name__ == "__main__":
    main()
