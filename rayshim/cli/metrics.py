"""``rayshim metrics``: Prometheus and Grafana for a cluster."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NoReturn

import click

from rayshim._core.clusters import Found, find_cluster


@click.group()
def metrics() -> None:
    """Metrics of a cluster, and Prometheus and Grafana for them."""


_address = click.option(
    "--address",
    default=None,
    help="Of the cluster, or of its dashboard; by default the newest of this host.",
)


@metrics.command("show")
@_address
def show(address: str | None) -> None:
    """Print the metrics of all nodes, as Prometheus reads them."""
    import msgspec

    from rayshim._core import asking
    from rayshim.adapters.metrics.exposition import merge

    try:
        with asking.control_of(address) as control:
            texts = [bytes(control.ask("head_metrics")).decode()]
            heard = asking.ask(control, "metrics", msgspec.msgpack.encode(None))
    except (ConnectionError, RuntimeError, ValueError) as error:
        _fail(str(error))
    texts += [answer.payload.decode() for answer in heard.answers]
    click.echo(merge(texts), nl=False)
    for line in heard.silent:
        click.echo(line, err=True)
    if heard.silent:
        sys.exit(1)


@metrics.command("config")
@_address
def config(address: str | None) -> None:
    """Print a configuration of Prometheus for a cluster of this host."""
    from rayshim.adapters.metrics.prometheus import configuration

    click.echo(configuration(_folder(address)), nl=False)


@metrics.command("grafana")
def grafana() -> None:
    """Print a dashboard that Grafana can import."""
    from rayshim.adapters.metrics.grafana import dashboard

    click.echo(json.dumps(dashboard(), indent=2))


@metrics.command("launch-prometheus")
@_address
def launch_prometheus(address: str | None) -> None:
    """Start the Prometheus of this host for a cluster, at 127.0.0.1:9090."""
    from rayshim.adapters.metrics import prometheus

    try:
        pid, path = prometheus.launch(_folder(address))
    except prometheus.PrometheusMissing as error:
        _fail(str(error))
    click.echo(f"Prometheus runs (pid {pid}), configured by {path}")
    click.echo(f"http://127.0.0.1:{prometheus.PORT}; its log is beside that file")
    click.echo("rayshim metrics shutdown-prometheus ends it")


@metrics.command("shutdown-prometheus")
@_address
def shutdown_prometheus(address: str | None) -> None:
    """End the Prometheus that launch-prometheus started."""
    from rayshim.adapters.metrics import prometheus

    pid = prometheus.shut_down(_folder(address))
    if pid is None:
        _fail("no Prometheus runs that launch-prometheus started for this cluster")
    click.echo(f"ended Prometheus (pid {pid})")


def _folder(address: str | None) -> Path:
    found = _found(address)
    if not found.session_dir:
        _fail(
            f"the cluster {found.address} is on another host; run this there, or point "
            "a Prometheus at /api/prometheus/sd of its dashboard"
        )
    return Path(found.session_dir)


def _found(address: str | None) -> Found:
    try:
        return find_cluster(address)
    except (ConnectionError, ValueError) as error:
        _fail(str(error))


def _fail(text: str) -> NoReturn:
    click.echo(text, err=True)
    sys.exit(1)
